// Package ranges keeps free space: which runs of bytes of a slab or a file are free.
package ranges

import "sort"

// Free is free space: runs sorted by offset, none touching the next.
type Free struct{ runs []run }

type run struct{ at, len uint64 }

// Has tells whether one run has n bytes.
func (r *Free) Has(n uint64) bool {
	for i := range r.runs {
		if r.runs[i].len >= n {
			return true
		}
	}
	return false
}

// Take cuts n bytes from the first run that has them.
func (r *Free) Take(n uint64) (uint64, bool) {
	for i := range r.runs {
		if r.runs[i].len < n {
			continue
		}
		at := r.runs[i].at
		r.runs[i].at += n
		r.runs[i].len -= n
		if r.runs[i].len == 0 {
			r.runs = append(r.runs[:i], r.runs[i+1:]...)
		}
		return at, true
	}
	return 0, false
}

// Give returns a run and joins it with its neighbours.
func (r *Free) Give(at, n uint64) {
	i := sort.Search(len(r.runs), func(i int) bool { return r.runs[i].at > at })
	before := i > 0 && r.runs[i-1].at+r.runs[i-1].len == at
	after := i < len(r.runs) && at+n == r.runs[i].at
	switch {
	case before && after:
		r.runs[i-1].len += n + r.runs[i].len
		r.runs = append(r.runs[:i], r.runs[i+1:]...)
	case before:
		r.runs[i-1].len += n
	case after:
		r.runs[i].at = at
		r.runs[i].len += n
	default:
		r.runs = append(r.runs, run{})
		copy(r.runs[i+1:], r.runs[i:])
		r.runs[i] = run{at, n}
	}
}
