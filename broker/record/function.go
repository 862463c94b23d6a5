package record

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Function is a copy of a FunctionRecord.
type Function struct {
	TopicID      uint64
	Registration uint32 // 0: not registered yet
	Providers    uint32
	Concurrency  uint32
	Flags        uint32
	UID          uint32
	MadeAt       uint64 // ns, CLOCK_REALTIME
	Description  string
}

// FunctionView stands for the FunctionRecord of a topic.
type FunctionView struct{ r shm.Region }

// Function views the record of a topic that is a function.
func (f File) Function(topic uint32) FunctionView {
	p := FunctionPlace(topic)
	return FunctionView{f.r.Sub(p.At, p.Bytes)}
}

// Load copies the record. A description that does not fit is none.
func (v FunctionView) Load() Function {
	f := Function{TopicID: v.r.Load64(protocol.FunctionTopicID), Registration: v.r.Load32(protocol.FunctionRegistration),
		Providers: v.r.Load32(protocol.FunctionProviders), Concurrency: v.r.Load32(protocol.FunctionConcurrency),
		Flags: v.r.Load32(protocol.FunctionFlags), UID: v.r.Load32(protocol.FunctionUID), MadeAt: v.r.Load64(protocol.FunctionMadeAt)}
	if n := uint64(v.r.Load32(protocol.FunctionBytes)); n <= protocol.MaxFunctionDescription {
		f.Description = string(v.r.Bytes(protocol.FunctionDescription, n))
	}
	return f
}

// Begin makes the record that of a topic that is not registered.
func (v FunctionView) Begin(topicID uint64) {
	v.r.Store64(protocol.FunctionTopicID, 0)
	clear(v.r.Bytes(protocol.FunctionRegistration, protocol.FunctionDescription-protocol.FunctionRegistration))
	v.r.Store64(protocol.FunctionTopicID, topicID)
}

// Describe writes what the registrations have in common, and then the registration: one that a
// reader finds has what it finds after it.
//
// SYNC function: the version is odd before any of it changes and even after all; a client copies
// and compares.
func (v FunctionView) Describe(f Function) {
	version := v.r.Load64(protocol.FunctionVersion) | 1
	v.r.Store64(protocol.FunctionVersion, version)
	shm.Fence()
	v.r.Store32(protocol.FunctionFlags, f.Flags)
	v.r.Store32(protocol.FunctionUID, f.UID)
	v.r.Store64(protocol.FunctionMadeAt, f.MadeAt)
	v.r.Store32(protocol.FunctionBytes, uint32(len(f.Description)))
	copy(v.r.Bytes(protocol.FunctionDescription, protocol.MaxFunctionDescription), f.Description)
	shm.Fence()
	v.r.Store64(protocol.FunctionVersion, version+1)
	v.r.Store32(protocol.FunctionRegistration, f.Registration)
}

// SetProviders tells how many providers there are, and how many calls they take at a time.
func (v FunctionView) SetProviders(n, concurrency uint32) {
	v.r.Store32(protocol.FunctionConcurrency, concurrency)
	v.r.Store32(protocol.FunctionProviders, n)
}
