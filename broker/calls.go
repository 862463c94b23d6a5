package broker

import (
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// CallStatus counts the calls of all functions, as their providers tell.
type CallStatus struct {
	CallTotals
	Waiting, Running uint64
	// Providers are the sessions that provide functions, each as often as it provides one.
	Providers uint64
}

// Calls sums what functions count, and shows each. It takes the mutex for a moment at a time, so
// functions that come or go meanwhile may be missing. Any goroutine.
func (b *Broker) Calls(each func(*FunctionRow)) (sum CallStatus, ok bool) {
	at := 0
	ok = b.whileServing(func() { sum.CallTotals = b.topics.EndedCalls() })
	for ok && at >= 0 {
		var rows []FunctionRow
		ok = b.whileServing(func() { rows, at = b.functionRows(at) })
		for i := range rows {
			r := &rows[i]
			sum.Add(&r.CallTotals)
			sum.Waiting += uint64(r.Waiting)
			sum.Running += uint64(r.Running)
			sum.Providers += uint64(len(r.Providers))
			if each != nil {
				each(r)
			}
		}
	}
	return sum, ok
}

// functionRows are rows of functions from a number on; next is -1 at the end.
func (b *Broker) functionRows(at int) (rows []FunctionRow, next int) {
	began, all := time.Now(), func(string) bool { return true }
	for end := b.topics.Used(); at < end; at++ {
		if time.Since(began) > lookTime {
			return rows, at
		}
		if row, _ := b.topics.FunctionRow(protocol.AnyNamespace, at, all); row != nil {
			rows = append(rows, row.(FunctionRow))
		}
	}
	return rows, -1
}
