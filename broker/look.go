package broker

import (
	"strconv"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// Look is all that a page about a broker shows. Counts only rise, so two looks give rates.
type Look struct {
	At       time.Time `json:"at"`
	Status   Status    `json:"status"`
	Topics   []any     `json:"topics"`
	Sessions []any     `json:"sessions"`
	Names    []any     `json:"names"`
	Flows    []any     `json:"flows"`
	// Functions are the registered ones.
	Functions []any            `json:"functions"`
	Events    []protocol.Event `json:"events"`         // the newest, the oldest of them first
	More      bool             `json:"more,omitempty"` // there are more rows of a kind than are shown
}

const (
	mostRows   = 1000 // of each kind
	mostEvents = 100
)

// Look looks at everything, of all namespaces. It takes the mutex for a moment at a time. While
// the broker takes over there are no rows. Any goroutine.
func (b *Broker) Look() (l Look) {
	l.At, l.Status = time.Now(), b.fullStatus()
	l.Events = b.cfg.Events.Since(0, mostEvents).Events
	for what, to := range map[string]*[]any{protocol.ListTopics: &l.Topics, protocol.ListSessions: &l.Sessions,
		protocol.ListNames: &l.Names, protocol.ListFlows: &l.Flows, protocol.ListFunctions: &l.Functions} {
		rows, more := b.rows(what)
		*to, l.More = rows, l.More || more
	}
	lookAtProcesses(l.Sessions, true)
	lookAtProcesses(l.Functions, false)
	b.lookAtNATS(l.Names)
	return l
}

// rows lists what there is of a kind, and tells whether there is more than is listed.
func (b *Broker) rows(what string) (rows []any, more bool) {
	rows = []any{}
	for at, r := 0, (&protocol.List{What: what, Limit: maxPage}); len(rows) < mostRows; {
		reply, err := b.page(nil, r, listers[what], at, protocol.AnyNamespace, nil)
		if err != nil {
			return rows, false
		}
		rows = append(rows, reply.Rows...)
		if reply.Cursor == "" && len(rows) <= mostRows {
			return rows, false
		}
		at, _ = strconv.Atoi(reply.Cursor)
	}
	return rows[:mostRows], true
}
