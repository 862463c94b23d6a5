package record

import "slices"

// Table gives out the numbers of a table's records, and to each holder its share of
// them. A number that is given back rests until the next few are given back, so that it is not
// reused while its former meaning may still be read. Otherwise low numbers are preferred, so that
// the pages of high ones are never touched.
type Table struct {
	Shares
	spare int      // how many rest
	next  uint32   // all from here on were never given out
	free  []uint32 // given back, oldest first
}

// NewTable makes a table of which spare numbers rest when they are given back.
func NewTable(s Shares, spare int) Table {
	return Table{Shares: s, spare: spare}
}

// Used returns the lowest number that was never given out.
func (t *Table) Used() uint32 { return t.next }

// Take returns a free number for a holder, or ErrTooMany.
func (t *Table) Take(h Holder) (uint32, error) {
	if err := t.Check(h, 1); err != nil {
		return 0, err
	}
	n := t.next
	if len(t.free) > t.spare || t.next >= uint32(t.size) {
		n = t.free[0]
		t.free = t.free[1:]
	} else {
		t.next++
	}
	t.Add(h, 1)
	return n, nil
}

// Claim takes a given free number, as a successor does for each record that it finds.
func (t *Table) Claim(n uint32, h Holder) {
	t.Add(h, 1)
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

// Give returns a number that a holder took.
func (t *Table) Give(n uint32, h Holder) {
	t.Add(h, -1)
	t.free = append(t.free, n)
}
