package record

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// In a SessionRecord, only for brokers.
const (
	sessionFile     = 192 // u64 inode of the session file
	sessionAnswered = 208 // u32: 1 when its client knows of it
	sessionHeard    = 212 // u32: 1 when its client said something after hello
	sessionHolder   = 216 // u64 family, u64 user
	sessionEvicted  = 232 // u32: 1 when it was evicted and its client may not know of it yet, 2 when it does
)

// A client reads this word as well: it does not compile if the two constants differ. (The
// vectors evaluate the constants above by themselves.)
var _ = [1]struct{}{}[sessionEvicted-protocol.SessionEvicted]

// Session is a copy of a SessionRecord.
type Session struct {
	Serial     uint64
	State      uint32
	PID        uint32
	StartTime  uint64
	UID        uint32
	Language   uint32
	SecretHash [16]byte
	Connected  uint64 // ns, CLOCK_REALTIME
	PIDNS      uint64 // inode of its process's pid namespace
	Name       string
	Namespace  string
	File       uint64 // inode of its file, by which a successor knows that it was handed the right one
	Answered   bool   // its client knows of it: hello was answered
	Heard      bool   // its client said something after hello: it has the session's files
	Evicted    uint32 // EvictionUnread or EvictionRead: an operator ended it
	Holder     Holder
}

// SessionView stands for one SessionRecord.
type SessionView struct {
	f    File
	slot uint32
	r    shm.Region
}

// Session views the record of a slot.
func (f File) Session(slot uint32) SessionView {
	p := SessionPlace(slot)
	return SessionView{f, slot, f.r.Sub(p.At, p.Bytes)}
}

// Serial returns the serial of the session in the slot, 0 when it is free.
func (v SessionView) Serial() uint64 { return v.r.Load64(protocol.SessionSerial) }

// Load copies the record.
func (v SessionView) Load() Session {
	s := Session{
		Serial: v.Serial(), State: v.r.Load32(protocol.SessionState), PID: v.r.Load32(protocol.SessionPID),
		StartTime: v.r.Load64(protocol.SessionStartTime), UID: v.r.Load32(protocol.SessionUID),
		Language:  v.r.Load32(protocol.SessionLanguage),
		Connected: v.r.Load64(protocol.SessionConnected), PIDNS: v.r.Load64(protocol.SessionPIDNS),
		Name:      text(v.r, protocol.SessionName, protocol.SessionNameBytes),
		Namespace: text(v.r, protocol.SessionNamespace, protocol.SessionNamespaceBytes),
		File:      v.r.Load64(sessionFile), Answered: v.Answered(), Heard: v.Heard(), Evicted: v.Evicted(),
		Holder: loadHolder(v.r, sessionHolder),
	}
	copy(s.SecretHash[:], v.r.Bytes(protocol.SessionSecretHash, 16))
	return s
}

// Store writes the record, the serial last. A session that is in the slot already
// stays readable meanwhile: without it a successor would take what it holds for free. Its start
// time is cleared before its process changes: a pid with another process's start time would
// look like a process that has ended.
func (v SessionView) Store(s Session) {
	v.f.markUsed(protocol.BrokerSessionsEnd, v.slot)
	if v.Serial() != s.Serial {
		v.r.Store64(protocol.SessionSerial, 0)
		clear(v.r.Bytes(8, protocol.SessionRecordSize-8))
	}
	v.r.Store64(protocol.SessionStartTime, 0)
	v.r.Store32(protocol.SessionState, s.State)
	v.r.Store32(protocol.SessionPID, s.PID)
	v.r.Store64(protocol.SessionStartTime, s.StartTime)
	v.r.Store32(protocol.SessionUID, s.UID)
	v.r.Store32(protocol.SessionLanguage, s.Language)
	copy(v.r.Bytes(protocol.SessionSecretHash, 16), s.SecretHash[:])
	v.r.Store64(protocol.SessionConnected, s.Connected)
	v.r.Store64(protocol.SessionPIDNS, s.PIDNS)
	v.r.Store64(sessionFile, s.File)
	s.Holder.store(v.r, sessionHolder)
	if s.Answered {
		v.SetAnswered()
	}
	if s.Heard {
		v.SetHeard()
	}
	putText(v.r, protocol.SessionName, protocol.SessionNameBytes, s.Name)
	putText(v.r, protocol.SessionNamespace, protocol.SessionNamespaceBytes, s.Namespace)
	v.r.Store64(protocol.SessionSerial, s.Serial)
}

// State returns the session's state.
func (v SessionView) State() uint32 { return v.r.Load32(protocol.SessionState) }

// SetState changes the session's state alone.
func (v SessionView) SetState(state uint32) { v.r.Store32(protocol.SessionState, state) }

// Answered tells whether the session's client knows of it.
func (v SessionView) Answered() bool { return v.r.Load32(sessionAnswered) == 1 }

// SetAnswered notes that the session's client knows of it.
func (v SessionView) SetAnswered() { v.r.Store32(sessionAnswered, 1) }

// ForgetProcess notes that the pid cannot be compared with any process: the session is
// unknown until its process is back.
func (v SessionView) ForgetProcess() { v.r.Store64(protocol.SessionStartTime, 0) }

// Heard tells whether the session's client has said anything after hello.
func (v SessionView) Heard() bool { return v.r.Load32(sessionHeard) == 1 }

// SetHeard notes that the session's client said something after hello.
func (v SessionView) SetHeard() { v.r.Store32(sessionHeard, 1) }

// SetPIDNamespace notes the pid namespace of the session's process.
func (v SessionView) SetPIDNamespace(inode uint64) { v.r.Store64(protocol.SessionPIDNS, inode) }

// Free makes the slot free.
func (v SessionView) Free() { v.r.Store64(protocol.SessionSerial, 0) }
