package broker

// checkIdle starts or stops the countdown to the end of a broker that no session
// uses. Called whenever sessions or leases come or go.
func (b *Broker) checkIdle() {
	busy := b.leases.Count() > 0 || b.liveSessions() > 0 || b.taking != nil
	switch {
	case b.cfg.IdleExit == 0 || b.closing:
	case busy && b.idle != nil:
		b.idle.Cancel()
		b.idle = nil
	case !busy && b.idle == nil:
		b.idle = b.clock.After(b.cfg.IdleExit, func() {
			b.log.Info("ending: no session and no lease", "for", b.cfg.IdleExit)
			b.stop(endStop, nil)
		})
	}
}

func (b *Broker) liveSessions() (n int) {
	for _, s := range b.used() {
		if s != nil {
			n++
		}
	}
	return n
}
