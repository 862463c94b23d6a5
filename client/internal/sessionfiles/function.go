package sessionfiles

import (
	"math/bits"
	"os"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// FunctionRecord is what the broker says of a function. It may change at any time.
type FunctionRecord struct {
	r  shm.Region
	id uint64 // of its topic
}

// FunctionRecord returns the record of a function by its topic.
func (p *Files) FunctionRecord(topic uint32, id uint64) FunctionRecord {
	at := protocol.BrokerFunctions + uint64(topic)*protocol.FunctionRecordSize
	return FunctionRecord{p.broker.Sub(at, protocol.FunctionRecordSize), id}
}

// is tells whether the record is still about the function.
func (f FunctionRecord) is() bool { return f.r.Load64(protocol.FunctionTopicID) == f.id }

// Registration is the number of the one that holds, 0 where there is none.
//
// SYNC function: written after what describes it.
func (f FunctionRecord) Registration() uint32 {
	if n := f.r.Load32(protocol.FunctionRegistration); f.is() {
		return n
	}
	return 0
}

// Providers is how many sessions provide the function.
func (f FunctionRecord) Providers() uint32 {
	if n := f.r.Load32(protocol.FunctionProviders); f.is() {
		return n
	}
	return 0
}

// KeepsTraces tells whether traces of errors stay in the process of the provider.
func (f FunctionRecord) KeepsTraces() bool {
	return f.r.Load32(protocol.FunctionFlags)&protocol.FunctionNoTraces != 0
}

// Concurrency is how many calls its providers take at a time.
func (f FunctionRecord) Concurrency() uint32 { return f.r.Load32(protocol.FunctionConcurrency) }

// Version changes with the description.
func (f FunctionRecord) Version() uint64 { return f.r.Load64(protocol.FunctionVersion) }

// Description copies what callers have to know; false while the broker writes it, or where there is
// none.
//
// SYNC function: the version is even before the copy and the same after it, so the copy is whole.
func (f FunctionRecord) Description() (version uint64, text string, ok bool) {
	version = f.Version()
	n := uint64(f.r.Load32(protocol.FunctionBytes))
	if version&1 != 0 || n > protocol.MaxFunctionDescription {
		return 0, "", false
	}
	text = string(f.r.Bytes(protocol.FunctionDescription, n))
	shm.FenceAcquire()
	return version, text, f.Version() == version && f.Registration() != 0
}

// ProcessEnded tells whether the process of the session that a slot has now is known to have ended.
// One that cannot be looked at, since its number is of another pid namespace, may live.
func (p *Files) ProcessEnded(slot uint32) bool {
	if slot >= protocol.MaxSessions {
		return false
	}
	at := func(slot uint32) uint64 { return protocol.BrokerSessions + uint64(slot)*protocol.SessionRecordSize }
	own, its := at(p.Slot), at(slot)
	namespace, pid, start := p.broker.Load64(its+protocol.SessionPIDNS), p.broker.Load32(its+protocol.SessionPID), p.broker.Load64(its+protocol.SessionStartTime)
	// Numbers are those that the broker sees: it has to see this process as the process does.
	if p.broker.Load32(own+protocol.SessionPID) != uint32(os.Getpid()) || p.broker.Load64(own+protocol.SessionPIDNS) != namespace ||
		p.SessionSerial(slot) == 0 || start == 0 {
		return false
	}
	return sys.HasEnded(int(pid), start)
}

// ReaderSlots lists the slots of the sessions that read.
func (t TopicRecord) ReaderSlots() (slots []uint32) {
	for w := range uint32(protocol.BitmapWords) {
		for word := t.r.Load64(protocol.TopicReaders + 8*uint64(w)); word != 0; word &= word - 1 {
			slots = append(slots, 64*w+uint32(bits.TrailingZeros64(word)))
		}
	}
	return slots
}

// TopicNameOf finds the name of a topic by its number, "" of a private one; false where there is no such any more.
func (p *Files) TopicNameOf(id uint64) (string, bool) {
	for i := range min(p.broker.Load32(protocol.BrokerTopicsEnd), protocol.MaxTopics) {
		if r := p.TopicRecord(i); r.ID() == id {
			return textAt(r.r, protocol.TopicName, protocol.TopicNameBytes), true
		}
	}
	return "", false
}
