package sessionfiles

import "github.com/baton-ipc/baton/protocol"

// Provided is what the providers of a function say of their calls, summed up to what JSON can hold.
type Provided struct {
	Calls, Failed uint64
	Took          uint64 // ns, of all calls
	counts        [protocol.ProviderBuckets]uint64
}

// Add adds.
func (p *Provided) Add(o *Provided) {
	p.Failed, p.Took = add(p.Failed, o.Failed), add(p.Took, o.Took)
	for i, n := range o.counts {
		p.count(i, n)
	}
}

func (p *Provided) count(i int, n uint64) {
	p.Calls, p.counts[i] = add(p.Calls, n), add(p.counts[i], n)
}

func add(a, b uint64) uint64 { return min(a+min(b, protocol.MaxSafeInt), protocol.MaxSafeInt) }

// Quantile is the time in ns within which a part of the calls ended; false where there were none. Of the
// bucket that it is in it is the end.
func (p *Provided) Quantile(part float64) (uint64, bool) {
	if p.Calls == 0 {
		return 0, false
	}
	left := uint64(part * float64(p.Calls))
	for i, n := range p.counts {
		if n > left {
			return protocol.BucketFrom(i + 1), true
		}
		left -= n
	}
	return protocol.BucketFrom(protocol.ProviderBuckets), true
}

// Within counts the calls that ended within ns, for each of several times in rising order: those of a bucket
// that a time divides are counted as longer.
func (p *Provided) Within(times []uint64) []uint64 {
	within, sum, i := make([]uint64, len(times)), uint64(0), 0
	for k, ns := range times {
		for ; i < len(p.counts) && protocol.BucketFrom(i+1) <= ns; i++ {
			sum = add(sum, p.counts[i])
		}
		within[k] = sum
	}
	return within
}

// ReserveProvider makes sure that a look at the record of a provider meets no hole.
func (p *SessionFile) ReserveProvider(number uint64) error {
	at := int64(protocol.ProviderRecordAt(number))
	if _, done := p.counts[at]; done {
		return nil
	}
	if err := p.File.FD.Reserve(at, protocol.ProviderRecordSize); err != nil {
		return NoMemory(err, "what a provider counts")
	}
	if p.counts == nil {
		p.counts = map[int64]struct{}{}
	}
	p.counts[at] = struct{}{}
	return nil
}

// isProvider tells whether the record of a provider is there, and not another one's.
func (p *SessionFile) isProvider(number uint64) bool {
	return p.There() && p.ReserveProvider(number) == nil && p.File.Region.Load64(protocol.ProviderRecordAt(number)+protocol.ProviderNumber) == number
}

// Provided returns what a provider says of its calls, and since when it provides, in ns since 1970; nil where it
// says nothing.
func (p *SessionFile) Provided(number uint64) (got *Provided, since uint64) {
	if !p.isProvider(number) {
		return nil, 0
	}
	r := p.File.Region.Sub(protocol.ProviderRecordAt(number), protocol.ProviderRecordSize)
	got = &Provided{Failed: min(r.Load64(protocol.ProviderFailed), protocol.MaxSafeInt), Took: min(r.Load64(protocol.ProviderTook), protocol.MaxSafeInt)}
	for i := range got.counts {
		got.count(i, r.Load64(protocol.ProviderCounts+8*uint64(i)))
	}
	return got, r.Load64(protocol.ProviderSince)
}

// Begun returns the word in which a provider notes when a call began; 0 where it notes nothing. It may be of
// another call.
func (p *SessionFile) Begun(number uint64, lane uint32, message uint64) uint64 {
	if !p.isProvider(number) {
		return 0
	}
	return p.File.Region.Load64(protocol.ProviderRecordAt(number) + protocol.BegunAt(lane, message))
}
