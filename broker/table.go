package broker

// table gives out the numbers of a table's records, the longest free first, so
// that a number is not reused while somebody may still look at what it was.
type table struct {
	free []uint32 // a queue: given back ones, oldest at next
	next uint32   // of those never given out
	size uint32
	used map[uint32]struct{}
}

func newTable(size uint32) table { return table{size: size, used: map[uint32]struct{}{}} }

// take returns a free number; false when there is none.
func (t *table) take() (uint32, bool) {
	for t.next < t.size {
		n := t.next
		t.next++
		if _, taken := t.used[n]; !taken {
			t.used[n] = struct{}{}
			return n, true
		}
	}
	if len(t.free) == 0 {
		return 0, false
	}
	n := t.free[0]
	t.free = t.free[1:]
	t.used[n] = struct{}{}
	return n, true
}

// claim takes a given number, as a successor does for what it finds.
func (t *table) claim(n uint32) { t.used[n] = struct{}{} }

func (t *table) give(n uint32) {
	if _, taken := t.used[n]; taken {
		delete(t.used, n)
		t.free = append(t.free, n)
	}
}

func (t *table) len() int { return len(t.used) }
