package broker

// refcountsTarget counts what the broker's places name.
func (b *Broker) refcountsTarget() map[uint32]uint64 {
	target := map[uint32]uint64{}
	b.topics.Recount(target)
	b.leases.Recount(target)
	return target
}

func (b *Broker) raiseRefcounts() { b.memory.Raise(b.refcountsTarget()) }

// lowerRefcounts takes away what the refcounts count beyond its places. While it is not known what
// some message names, any count may be for that message.
func (b *Broker) lowerRefcounts() {
	if b.topics.Unread() == 0 {
		b.memory.Lower(b.refcountsTarget())
	}
}

// reread looks again at what could not be read, after a file has come.
func (b *Broker) reread() {
	if b.topics.Unread() == 0 {
		return
	}
	b.topics.RereadAwaited(b.refcountsTarget())
	b.raiseRefcounts()
	b.lowerRefcounts()
}

// letGo un-names everything that the broker names in storages that lost reports.
func (b *Broker) letGo(lost func(index uint32) bool) {
	b.topics.LetGo(lost)
	b.leases.LetGo(lost)
}
