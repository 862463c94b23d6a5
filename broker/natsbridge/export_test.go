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
