package takeover

// Repair is one step. Each is safe by itself and may be done again.
type Repair interface{ repair() }

// Steps that put right what a killed broker left half done.
type (
	// KeepChunk takes Retiring off a chunk's serial: its test did not come to an end.
	KeepChunk struct{ Chunk uint32 }
	// FreeChunk un-names a chunk whose segment is gone.
	FreeChunk struct{ Chunk uint32 }
	// Detach takes a bit away: of a chunk that is free, or of a slot that is.
	Detach struct{ Chunk, Slot uint32 }
	// FreeRemains forgets the remains of a session that is still in its slot: it will
	// be ended.
	FreeRemains struct{ Index uint32 }
	// FreeLane takes a lane that cannot be read out of its topic.
	FreeLane struct{ Topic, Lane uint32 }
	// FreeJoin forgets an opener or reader that is no more.
	FreeJoin struct{ Index uint32 }
	// FreeGroup ends a group without members.
	FreeGroup struct{ Topic, Group uint32 }
	// FreeLease ends a lease of what is gone.
	FreeLease struct{ Index uint32 }
	// TimeLease gives a time to a lease that was to end with its session, which is over.
	TimeLease struct{ Index uint32 }
	// Unname empties a slot of a lane that the broker keeps.
	Unname struct {
		Topic, Lane uint32
		Slot        uint64
	}
	// DeleteName marks a name as deleted; its revision goes.
	DeleteName struct{ Topic uint32 }
	// OrphanSegment notes that a segment's owner is over.
	OrphanSegment struct{ Segment uint32 }
)

// Steps that make the broker's own refcounts right.
type (
	// Raise counts a storage up in the broker's refcounts.
	Raise struct {
		Index uint32
		To    uint64
	}
	// Lower counts it down.
	Lower struct {
		Index uint32
		To    uint64
	}
)

// Steps that end dead sessions and free what they left.
type (
	// MarkDead notes that a session's process has ended. The session is ended when its file has
	// come, or can come no more; until then its refcounts count all that it is attached to.
	MarkDead struct{ Slot uint32 }
	// EndSession ends a session whose process has ended, in the order of docs/protocol.md,
	// Death.
	EndSession struct {
		Slot   uint32
		Serial uint64
	}
	// Reclaim asks for a test of an orphan: it is freed if no holder counts anything of it,
	// storage by storage, or as a Whole if its file or its owner's is missing. If its
	// own file is Lost, the broker first un-names what it names there itself, unless any
	// other holder counts anything of it.
	Reclaim struct {
		Segment     uint32
		Serial      uint64
		Whole, Lost bool
	}
)

func (KeepChunk) repair()     {}
func (FreeChunk) repair()     {}
func (Detach) repair()        {}
func (FreeRemains) repair()   {}
func (FreeLane) repair()      {}
func (FreeJoin) repair()      {}
func (FreeGroup) repair()     {}
func (FreeLease) repair()     {}
func (TimeLease) repair()     {}
func (Unname) repair()        {}
func (DeleteName) repair()    {}
func (OrphanSegment) repair() {}
func (Raise) repair()         {}
func (Lower) repair()         {}
func (MarkDead) repair()      {}
func (EndSession) repair()    {}
func (Reclaim) repair()       {}
