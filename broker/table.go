package broker

import "slices"

// table gives out the numbers of a table's records. A number given back rests
// while the next few are given back, so that it is not reused while somebody may
// still look at what it was; apart from that low numbers are preferred, so that
// the pages of high ones are never touched.
type table struct {
	size  uint32
	spare int      // how many rest
	next  uint32   // all from here on were never given out
	free  []uint32 // given back, oldest first
	taken int
}

func newTable(size uint32, spare int) table { return table{size: size, spare: spare} }

// take returns a free number; false when there is none.
func (t *table) take() (uint32, bool) {
	if len(t.free) > t.spare || t.next >= t.size {
		if len(t.free) == 0 {
			return 0, false
		}
		n := t.free[0]
		t.free = t.free[1:]
		t.taken++
		return n, true
	}
	t.next++
	t.taken++
	return t.next - 1, true
}

// claim takes a certain free number, as a successor does for what it finds.
func (t *table) claim(n uint32) {
	t.taken++
	if n < t.next {
		if i := slices.Index(t.free, n); i >= 0 {
			t.free = slices.Delete(t.free, i, i+1)
		}
		return
	}
	for ; t.next < n; t.next++ {
		t.free = append(t.free, t.next)
	}
	t.next = n + 1
}

// give returns a number that was taken.
func (t *table) give(n uint32) {
	t.taken--
	t.free = append(t.free, n)
}

// room tells whether n numbers can be taken.
func (t *table) room(n int) bool { return t.taken+n <= int(t.size) }
