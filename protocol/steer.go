package protocol

// Requests by which an operator changes what a broker has. They need no session.

// Evict ends a session, whether its process lives or not. What the process holds stays until
// the process drops it or ends.
type Evict struct {
	Serial uint64 `json:"serial"`
	// Kill: the process is killed, by the descriptor that the broker has of it.
	Kill bool `json:"kill,omitempty"`
	// Killed: the process is killed next, by the caller, since the broker may not.
	Killed bool `json:"killed,omitempty"`
}

// What is left of a session that was evicted.
const (
	EvictedOver    = "over"    // nothing
	EvictedClosed  = "closed"  // what its process holds
	EvictedUnheard = "unheard" // all its memory: its process does not know of it yet
)

// ReasonEvicted is the detail "reason" of the Expired with which the resume of a session is refused that an
// operator has ended. A broker knows the last 1,024 that are over, those of the previous brokers too.
const ReasonEvicted = "evicted"

// SessionEvicted is the place of a word in a SessionRecord that is 1 while an operator has ended
// the session and its client may not know of it yet. It is the broker's own; a client whose
// session is closed reads it to say why. It stands among the broker's in the vectors, since
// the layout has no other structure for it.
const SessionEvicted = 232

// HeadLost is the place of a word in the head of a session file: its client sets it to 1 once the session is over, and
// the client allocates, recycles and counts up nothing in it any more. A broker that finds none waits for the end of the
// process, so the layout is the same with it and without.
const HeadLost = 56

// EvictReply tells what was ended and what stays.
type EvictReply struct {
	Name   string `json:"name"`
	PID    int    `json:"pid"`
	State  string `json:"state"`
	Killed bool   `json:"killed,omitempty"`
	// Ended: its process had ended before, so that nothing was killed.
	Ended bool `json:"ended,omitempty"`
	// ForChildren: what stays is kept for processes that its process has forked, until these end.
	ForChildren bool `json:"for_children,omitempty"`
	// Held are the bytes of the storages that stay since the process holds them, Granted those
	// of the segments that stay the session's. Where segments stay, HeldOfOthers are those of Held
	// that lie in segments of other sessions: that and Granted is all that stays.
	Held         uint64 `json:"held_bytes"`
	Granted      uint64 `json:"granted_bytes"`
	HeldOfOthers uint64 `json:"held_of_others_bytes,omitempty"`
	// Items are those of queues that its process had taken and not acknowledged, and may still hold: no
	// other taker gets them until then.
	Items int `json:"items,omitempty"`
}

// TopicByName names a topic or queue for an operator.
type TopicByName struct {
	Name string `json:"name"`
	// ID is that of one without a name, in place of it; else 0.
	ID uint64 `json:"topic_id,omitempty"`
	// Kind is KindTopic or KindQueue; "": whichever has the name.
	Kind string `json:"kind,omitempty"`
	// Namespace is as in NameRef.
	Namespace string `json:"namespace,omitempty"`
}

// PurgeReply tells what a purge, or the end of a topic, has dropped.
type PurgeReply struct {
	Kind     string `json:"kind"`
	Messages uint64 `json:"messages"`
	// Sessions that have the topic open.
	Openers int `json:"openers"`
}

// RevokeReply describes a lease that was ended.
type RevokeReply struct {
	Maker    string `json:"maker"`
	Storages int    `json:"storages"`
}

// Collect is the request for what programs and the broker do not use. Again: it is part of a collection that was asked for
// before, for what came free since, and is not told as one of its own.
type Collect struct {
	Again bool `json:"again,omitempty"`
}

// CollectReply tells how many sessions were asked for what they do not need, and what all
// together were granted then.
type CollectReply struct {
	Sessions int    `json:"sessions"`
	Granted  uint64 `json:"granted_bytes"`
}

// Limit changes the quotas of a broker that runs; null leaves one as it is, 0 takes it away,
// or for Memory takes the default.
type Limit struct {
	Memory              *uint64 `json:"memory,omitempty"`
	SessionMemory       *uint64 `json:"session_memory,omitempty"`
	DeviceMemory        *uint64 `json:"device_memory,omitempty"`
	SessionDeviceMemory *uint64 `json:"session_device_memory,omitempty"`
}

// LimitReply are the quotas in force, 0 for none, and what they count.
type LimitReply struct {
	Memory              uint64 `json:"memory"`
	SessionMemory       uint64 `json:"session_memory"`
	DeviceMemory        uint64 `json:"device_memory"`
	SessionDeviceMemory uint64 `json:"session_device_memory"`
	Granted             uint64 `json:"granted_bytes"`
	Lanes               uint64 `json:"lane_bytes"` // of all lanes, which the quotas count as well
}

// States of a broker that answers.
const (
	BrokerServes     = "serving"
	BrokerTakingOver = "taking over"
	BrokerEnding     = "ending"
)

// PingReply tells that a broker answers, and whether clients should come.
type PingReply struct {
	Instance string `json:"instance"`
	Version  string `json:"version"`
	PID      int    `json:"pid"`
	State    string `json:"state"`
}
