package natsbridge

// PublishEach publishes messages that stand in different places.
func (b *Bridge) PublishEach(subject string, messages ...[]byte) int {
	var text []byte
	bounds := []int{0}
	for _, m := range messages {
		text = append(text, m...)
		bounds = append(bounds, len(text))
	}
	return b.Publish(subject, text, bounds)
}

// Streams tells how many streams the embedded server has.
func (b *Bridge) Streams() int {
	info, err := b.server.srv.Jsz(nil)
	if err != nil {
		return -1
	}
	return info.Streams
}

// PassQuietTime has the bridge look at its clients as often as it does before it removes
// the buckets.
func (b *Bridge) PassQuietTime() {
	q := quiet{}
	for range quietLooks + 1 {
		b.lookAtClients(&q)
	}
}

// Known counts the names that the bridge knows.
func (b *Bridge) Known() (count int) {
	b.names.mu.Lock()
	defer b.names.mu.Unlock()
	for _, s := range b.names.spaces {
		count += len(s.keys)
	}
	return count
}

// HoldService takes the lock of the service, as an update of it does, and returns what gives it back.
func (b *Bridge) HoldService() func() {
	b.service.mu.Lock()
	return b.service.mu.Unlock
}
