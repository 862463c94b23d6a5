// Package sparse has a table by number for things of which many could be and few are: one
// that costs next to nothing while few numbers are used, and a look two loads.
package sparse

import (
	"iter"
	"sync/atomic"
)

const (
	part  = 128
	parts = 256
)

// Size is how many numbers a table has.
const Size = parts * part

// Table has a value for some of the numbers below Size. The zero Table is empty. Any
// goroutine; a larger number is a mistake of the caller.
type Table[T any] struct {
	parts [parts]atomic.Pointer[[part]atomic.Pointer[T]]
}

// Load returns the value of a number, nil where there is none.
func (t *Table[T]) Load(i uint32) *T {
	p := t.parts[i/part].Load()
	if p == nil {
		return nil
	}
	return p[i%part].Load()
}

// Store sets the value of a number.
func (t *Table[T]) Store(i uint32, v *T) { t.at(i).Store(v) }

// Swap sets the value of a number and returns the one before.
func (t *Table[T]) Swap(i uint32, v *T) *T { return t.at(i).Swap(v) }

// CompareAndSwap sets the value of a number that has the old one, and tells whether it did.
func (t *Table[T]) CompareAndSwap(i uint32, old, v *T) bool { return t.at(i).CompareAndSwap(old, v) }

// at finds the place of a number, and makes it where it is not there.
func (t *Table[T]) at(i uint32) *atomic.Pointer[T] {
	p := t.parts[i/part].Load()
	if p == nil {
		p = new([part]atomic.Pointer[T])
		if !t.parts[i/part].CompareAndSwap(nil, p) { // another goroutine was first
			p = t.parts[i/part].Load()
		}
	}
	return &p[i%part]
}

// All lists the numbers that have a value, in order.
func (t *Table[T]) All() iter.Seq2[uint32, *T] {
	return func(yield func(uint32, *T) bool) {
		for k := range t.parts {
			p := t.parts[k].Load()
			if p == nil {
				continue
			}
			for i := range p {
				if v := p[i].Load(); v != nil && !yield(uint32(k*part+i), v) {
					return
				}
			}
		}
	}
}
