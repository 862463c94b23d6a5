package natsbridge

// Interest tells whether a message on the subject would reach a subscriber besides
// this bridge. On a joined server that is not known: there it is always true. After Close it
// is false with the embedded server.
func (b *Bridge) Interest(subject string) bool {
	if b.server == nil {
		return true
	}
	return b.link.connected.Load() && b.server.interest(subject)
}

// InterestVersion changes whenever a subscription comes or goes, and perhaps
// without: a caller that sees it unchanged need not ask Interest again. It costs about a
// microsecond. Joined: always 0.
func (b *Bridge) InterestVersion() uint64 {
	if b.server == nil {
		return 0
	}
	return b.server.version()
}

// InterestMayChange tells whether InterestVersion may soon be another: not before a client
// of the embedded server is there, and Config.Tell is called for each that comes. Joined:
// never.
func (b *Bridge) InterestMayChange() bool { return b.server != nil && b.attended() }
