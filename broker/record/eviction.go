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

// Sessions that an operator has ended and that are over, only for brokers: their serials. A new one takes
// the place of the oldest.
const evictionSize = 8 // u64 serial of the session

// EvictionPlace is the place of the serial that is added next.
func (f File) EvictionPlace() Place {
	return place(evictionsAt, f.r.Load64(headEvictions)%MaxEvictions, evictionSize)
}

// AddEviction notes that an evicted session is over. The caller has reserved EvictionPlace.
func (f File) AddEviction(serial uint64) {
	f.r.Store64(f.EvictionPlace().At, serial)
	f.r.Store64(headEvictions, f.r.Load64(headEvictions)+1) // after it: what is not counted is not looked at
}

// WasEvicted tells whether a session that is over is among the last that an operator has ended.
func (f File) WasEvicted(serial uint64) bool {
	for i := range min(f.r.Load64(headEvictions), MaxEvictions) {
		if f.r.Load64(evictionsAt+i*evictionSize) == serial {
			return true
		}
	}
	return false
}
