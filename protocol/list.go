package protocol

import "encoding/json"

// What a List request lists.
const (
	ListNames     = "names"
	ListFunctions = "functions"
	ListTopics    = "topics"
	ListSessions  = "sessions"
	ListSegments  = "segments"
	ListStorages  = "storages"
	ListLeases    = "leases"
	ListPlaces    = "places"
	ListFlows     = "flows"
	ListCalls     = "calls"
	ListHosts     = "hosts"
)

// List asks for rows of one kind whose name fits Pattern (see MatchName), in
// pages: Cursor is that of the reply before, Limit the most rows wanted, 0 for
// as many as the broker gives at once. The cursor of segments and storages is a
// number of theirs: the rows are those from that one on.
type List struct {
	What    string `json:"what"`
	Pattern string `json:"pattern,omitempty"`
	Cursor  string `json:"cursor,omitempty"`
	Limit   int    `json:"limit,omitempty"`
	// Namespace is that of names and topics where there is no session, whose it is else; AnyNamespace: all.
	Namespace string `json:"namespace,omitempty"`
	// Programs: of sessions, how their processes were started, and in which containers.
	Programs bool `json:"programs,omitempty"`
	// Slot is that of a session: of storages, those that it counts or has made.
	Slot *uint32 `json:"slot,omitempty"`
	// Contents: of names, which tensors and meta they have.
	Contents bool `json:"contents,omitempty"`
}

// AnyNamespace stands for all, in a List without a session.
const AnyNamespace = "*"

// ListReply is one page. Rows are objects that may gain fields; a Cursor tells
// of more.
type ListReply struct {
	Rows   []json.RawMessage `json:"rows"`
	Cursor string            `json:"cursor,omitempty"`
}
