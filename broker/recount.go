package broker

// rowTarget counts what the broker's places name.
func (b *Broker) rowTarget() map[uint32]uint64 {
	target := map[uint32]uint64{}
	b.topics.Recount(target)
	b.leases.Recount(target)
	return target
}

func (b *Broker) raiseRow() { b.memory.Raise(b.rowTarget()) }

// lowerRow takes away what the row counts beyond its places. While it is not known what
// some message names, any count may be for that message.
func (b *Broker) lowerRow() {
	if b.topics.Unread() == 0 {
		b.memory.Lower(b.rowTarget())
	}
}

// reread looks again at what could not be read, after a file has come.
func (b *Broker) reread() {
	if b.topics.Unread() == 0 {
		return
	}
	b.topics.RereadAwaited(b.rowTarget())
	b.raiseRow()
	b.lowerRow()
}

// letGo un-names everything that the broker names in storages that lost reports.
func (b *Broker) letGo(lost func(index uint32) bool) {
	b.topics.LetGo(lost)
	b.leases.LetGo(lost)
}
