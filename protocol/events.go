package protocol

import (
	"encoding/json"
	"time"
)

// Events asks for what has happened at the broker since an event.
type Events struct {
	After uint64 `json:"after,omitempty"` // number of the last event that is known
	Limit int    `json:"limit,omitempty"` // the newest of them; 0: all that are kept
	// Wait is for how many seconds, MostEventsWait at most, the answer waits for an event where there is none yet. It comes
	// before that when the broker ends. A connection with a session does not wait.
	Wait float64 `json:"wait,omitempty"`
}

// MostEventsWait bounds Events.Wait.
const MostEventsWait = 10

// EventsReply answers it.
type EventsReply struct {
	// Epoch changes where numbers begin anew: with a broker that took over from one that had ended.
	Epoch  uint64  `json:"epoch"`
	Last   uint64  `json:"last"` // number of the newest event
	Events []Event `json:"events"`
}

// ReplaceReadyReply says that the new broker serves.
type ReplaceReadyReply struct {
	Events EventsReply `json:"events"` // of the old one
}

// Event is one thing that happened.
type Event struct {
	Number uint64    `json:"number"` // from 1; a broker that takes over from a living one goes on with it
	At     time.Time `json:"at"`
	Level  string    `json:"level"` // as in the log
	Kind   string    `json:"kind"`
	Text   string    `json:"text"`
	// Details is a JSON object, in the order of the log line.
	Details json.RawMessage `json:"details,omitempty"`
	// Times and Until say that the same happened more than once, the last time then.
	Times int        `json:"times,omitempty"`
	Until *time.Time `json:"until,omitempty"`
}
