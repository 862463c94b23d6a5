package record

// How far the end of a session is that an operator ended.
const (
	// EvictionUnread: its client may not know of it yet, and may allocate.
	EvictionUnread = 1
	// EvictionRead: its client has read the event. It counts up nothing more, and no client comes
	// back for the session.
	EvictionRead = 2
)

// Evicted is EvictionUnread or EvictionRead, 0 for a session that was not evicted.
func (v SessionView) Evicted() uint32 { return v.r.Load32(sessionEvicted) }

// SetEvicted notes, before the session is closed, that an operator has ended it.
func (v SessionView) SetEvicted(n uint32) { v.r.Store32(sessionEvicted, n) }
