package record

import "slices"

// Table gives out the numbers of a table's records, and to each holder its share of
// them. A number given back rests while the next few are given back, so that it is not
// reused while somebody may still look at what it was; apart from that low numbers are
// preferred, so that the pages of high ones are never touched.
type Table struct {
	Shares
	holders map[uint32]Holder // of numbers that are taken; the broker's own are left out
	spare   int               // how many rest
	next    uint32            // all from here on were never given out
	free    []uint32          // given back, oldest first
}

// NewTable makes a table of which spare numbers rest when they are given back.
func NewTable(s Shares, spare int) Table {
	return Table{Shares: s, holders: map[uint32]Holder{}, spare: spare}
}

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
	t.note(n, h)
	return n, nil
}

func (t *Table) note(n uint32, h Holder) {
	t.Add(h, 1)
	if h != (Holder{}) {
		t.holders[n] = h
	}
}

// Claim takes a certain free number, as a successor does for what it finds.
func (t *Table) Claim(n uint32, h Holder) {
	t.note(n, h)
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
	t.Add(t.holders[n], -1)
	delete(t.holders, n)
	if len(t.holders) == 0 {
		t.holders = map[uint32]Holder{} // a map keeps the size that it had once
	}
	t.free = append(t.free, n)
}
