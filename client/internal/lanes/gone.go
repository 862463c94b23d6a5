package lanes

// gone counts what a reader lost with lanes that are no more. The broker counts all
// messages of such lanes, also of those that came and went between two looks.
type gone struct {
	seen    uint64 // the broker's count, as last told
	balance int64  // that it counts and the reader has not had, not yet reported
}

// follow applies a new count and the cursors of lanes that have gone since.
func (g *gone) follow(count uint64, cursors map[uint64]*cursor, first bool) {
	if count < g.seen { // of a new broker, which begins anew
		g.seen = 0
	}
	if !first {
		g.balance += int64(count - g.seen)
	}
	g.seen = count
	for _, k := range cursors {
		g.balance += int64(k.lost) - int64(k.next-1)
	}
}

// keep counts what a member of a group passed over in lanes that have gone since. What
// it did not take of them others have.
func (g *gone) keep(cursors map[uint64]*cursor) {
	for _, k := range cursors {
		g.balance += int64(k.lost)
	}
}

// lost is what is to be reported. A cursor may go a little before the broker's count
// describes its lane.
func (g *gone) lost() uint64 { return uint64(max(g.balance, 0)) }

func (g *gone) take() uint64 {
	n := g.lost()
	g.balance -= int64(n)
	return n
}
