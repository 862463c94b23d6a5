package broker

import "github.com/baton-ipc/baton/internal/crashpoint"

// recount makes the broker's row say what its places name: names, leases, and
// the messages of adopted lanes. It is raised first and lowered last, and rows
// of the dead are dropped only afterwards, so that no count is too low in
// between, however often a broker dies here.
func (b *Broker) recount() {
	crashpoint.At("broker-rebuild-read")
	b.topics.Reread(map[uint32]uint64{}, false)
	b.raiseRow()
	crashpoint.At("broker-rebuild-raised")
	b.lowerRow()
}

// rowTarget counts what the broker's places name.
func (b *Broker) rowTarget() map[uint32]uint64 {
	target := map[uint32]uint64{}
	b.topics.Recount(target)
	b.leases.Recount(target)
	return target
}

func (b *Broker) raiseRow() { b.memory.Raise(b.rowTarget()) }

// lowerRow takes away what the row counts for nothing. While it is not known what
// some message names, any count may be for that.
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
	b.topics.Reread(b.rowTarget(), true)
	b.raiseRow()
	b.lowerRow()
}

// letGo un-names everything of the broker's that lies where lost says.
func (b *Broker) letGo(lost func(index uint32) bool) {
	b.topics.LetGo(lost)
	b.leases.LetGo(lost)
}
