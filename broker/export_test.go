package broker

// LookAgainAfter has the broker lose sight of a session's process, as a new broker does
// that cannot look for it, and look again after the process has ended.
func (b *Broker) LookAgainAfter(serial uint64, end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.used() {
		if s != nil && s.Serial == serial {
			s.process.Stop()
			s.process, s.unknown = nil, true
			end()
			b.lookFor([]*session{s})
		}
	}
}

// Held does something while no request is carried out.
func (b *Broker) Held(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
}
