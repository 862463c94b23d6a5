package lanes

import (
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// provided is the record in the session file in which a provider says what it makes of its calls, for the
// broker's listings and for callers whose calls it has when it ends. Any goroutine. Of two providers of a
// session that would have the same record, the first has it.
type provided struct {
	set  *Topics
	file shm.Region
	at   uint64
}

// providedBy makes the record of a provider, where the broker has made sure of its memory.
func (s *Topics) providedBy(number uint64, ready bool) *provided {
	at := protocol.ProviderRecordAt(number)
	if !ready || number == 0 || !s.takeRecord(at) {
		return nil
	}
	p := &provided{s, s.files.Session.Region.Sub(at, protocol.ProviderRecordSize), at}
	// Nothing of it is read while the number is another one.
	for off := uint64(0); off < protocol.ProviderRecordSize; off += 8 {
		p.file.Store64(off, 0)
	}
	p.file.Store64(protocol.ProviderSince, uint64(time.Now().UnixNano()))
	p.file.Store64(protocol.ProviderNumber, number)
	return p
}

// begins notes that a call begins to run, by the number of its lane and of the message in it.
func (p *provided) begins(lane uint32, message uint64) {
	if p != nil {
		p.file.StoreRelease64(protocol.BegunAt(lane, message), protocol.BegunWord(lane, message, sys.Monotonic()))
	}
}

// noReply notes that a call ends without a reply, for which there is no memory. The end of the claim publishes it.
func (p *provided) noReply(lane uint32, message uint64) {
	p.file.StoreRelease64(protocol.BegunAt(lane, message), protocol.NoReplyWord(lane, message))
}

// ran counts a call that has run for ns, failed one that ends by an error.
func (p *provided) ran(ns uint64) {
	p.file.Add64(protocol.ProviderCounts+8*uint64(protocol.BucketOf(ns)), 1)
	p.file.Add64(protocol.ProviderTook, ns)
}

func (p *provided) failed() { p.file.Add64(protocol.ProviderFailed, 1) }

// end gives the record to another provider. It says what it said until then, as counted.end.
func (p *provided) end() {
	if p != nil {
		p.set.giveRecord(p.at)
	}
}
