package record

import "slices"

// Table gives out the numbers of a table's records. A number given back rests
// while the next few are given back, so that it is not reused while somebody may
// still look at what it was; apart from that low numbers are preferred, so that
// the pages of high ones are never touched.
type Table struct {
	size  uint32
	spare int      // how many rest
	next  uint32   // all from here on were never given out
	free  []uint32 // given back, oldest first
	taken int
}

// NewTable makes the table of size numbers of which spare rest when they are given
// back.
func NewTable(size uint32, spare int) Table { return Table{size: size, spare: spare} }

// Take returns a free number; false when there is none.
func (t *Table) Take() (uint32, bool) {
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

// Claim takes a certain free number, as a successor does for what it finds.
func (t *Table) Claim(n uint32) {
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

// Give returns a number that was taken.
func (t *Table) Give(n uint32) {
	t.taken--
	t.free = append(t.free, n)
}

// Room tells whether n numbers can be taken.
func (t *Table) Room(n int) bool { return t.taken+n <= int(t.size) }

// Taken tells how many numbers are taken.
func (t *Table) Taken() int { return t.taken }
