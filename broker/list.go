package broker

import (
	"strconv"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// listReply is a protocol.ListReply before its rows are encoded.
type listReply struct {
	Rows   []any  `json:"rows"`
	Cursor string `json:"cursor,omitempty"`
}

const (
	defaultPage = 256
	maxPage     = 1024
	// maxScan bounds how many table entries one page looks at with the mutex held, as lookTime
	// bounds the time.
	maxScan = 8192
)

// lister looks at one entry of a table: its row, if it has one, and what the
// entry cost to look at. Entries are numbered from 0; end tells how many were ever used.
type lister struct {
	end func(b *Broker) int
	row func(b *Broker, namespace string, i int, match func(name string) bool) (row any, cost int)
}

// listers list what is in tables; leases are not.
var listers = map[string]lister{
	protocol.ListSessions: {func(b *Broker) int { return len(b.used()) }, (*Broker).sessionRow},
	protocol.ListTopics: {(*Broker).usedTopics, func(b *Broker, namespace string, i int, match func(string) bool) (any, int) {
		return b.topics.TopicRow(namespace, i, match)
	}},
	protocol.ListFlows: {(*Broker).usedTopics, func(b *Broker, namespace string, i int, match func(string) bool) (any, int) {
		return b.topics.FlowRow(namespace, i, match)
	}},
	protocol.ListFunctions: {(*Broker).usedTopics, func(b *Broker, namespace string, i int, match func(string) bool) (any, int) {
		return b.topics.FunctionRow(namespace, i, match)
	}},
	protocol.ListCalls: {(*Broker).usedTopics, func(b *Broker, namespace string, i int, match func(string) bool) (any, int) {
		return b.topics.CallsRow(namespace, i, match)
	}},
	protocol.ListNames: {(*Broker).usedTopics, func(b *Broker, namespace string, i int, match func(string) bool) (any, int) {
		return b.topics.NameRow(namespace, i, match)
	}},
	protocol.ListSegments: {func(b *Broker) int { n, _ := b.memory.Used(); return n }, func(b *Broker, _ string, i int, match func(string) bool) (any, int) {
		return b.memory.SegmentRow(i, match)
	}},
	protocol.ListStorages: {func(b *Broker) int { _, n := b.memory.Used(); return n }, func(b *Broker, _ string, i int, match func(string) bool) (any, int) {
		return b.memory.StorageRow(i, match)
	}},
}

func (b *Broker) usedTopics() int { return b.topics.Used() }

// opList gives a page of a listing. Topics and names are those of the session's namespace, or,
// without a session, of the namespace in the request; all else is of the whole broker. A page
// before the last may be short, even empty.
func (b *Broker) opList(s *session, data []byte) (any, []*sys.FD, error) {
	var r protocol.List
	if err := decode(data, &r); err != nil {
		return nil, nil, err
	}
	if r.What == protocol.ListHosts {
		reply, err := b.hostRows(&r)
		return reply, nil, err
	}
	l, ok := listers[r.What]
	if !ok && r.What != protocol.ListLeases && r.What != protocol.ListPlaces {
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "use names, topics, functions, sessions, segments, storages, leases, places, flows, calls or hosts", "unknown listing %q", r.What)
	}
	at := 0
	if r.Cursor != "" {
		n, err := strconv.ParseUint(r.Cursor, 10, 53)
		if err != nil {
			return nil, nil, protocol.Errorf(protocol.CodeInvalid, "give the cursor that came with the page before", "unknown cursor %q", r.Cursor)
		}
		at = int(n)
	}
	if r.Limit <= 0 {
		r.Limit = defaultPage
	}
	r.Limit = min(r.Limit, maxPage)
	namespace, err := namespaceOf(s, r.Namespace)
	if err != nil {
		return nil, nil, err
	}
	if r.Slot != nil && *r.Slot >= protocol.MaxSessions {
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "take it from a row of sessions", "no session has the slot %d", *r.Slot)
	}
	if r.Slot != nil && r.What == protocol.ListStorages {
		l.row = func(b *Broker, _ string, i int, match func(string) bool) (any, int) {
			return b.memory.StorageRowOf(*r.Slot, i, match)
		}
	}
	var named *contents
	if r.Contents && r.What == protocol.ListNames {
		named = &contents{}
	}
	reply, err := b.page(s, &r, l, at, namespace, named)
	switch r.What {
	case protocol.ListSessions, protocol.ListFunctions:
		lookAtProcesses(reply.Rows, r.Programs)
	case protocol.ListNames:
		b.lookAtNATS(reply.Rows)
		if err == nil && b.cfg.Span != nil {
			b.lookAtHosts(&reply, &r, at, namespace)
		}
		if named != nil {
			named.describe(reply.Rows)
		}
	}
	return reply, nil, err
}

// lookAtNATS adds to rows of names how far they are mirrored. The mutex is not held, since the
// mirror's publisher has one of its own.
func (b *Broker) lookAtNATS(rows []any) {
	b.mu.Lock()
	m := b.mirror
	b.mu.Unlock()
	for i := range rows {
		if row, ok := rows[i].(NameRow); ok && m != nil {
			row.NATS = m.to.NameState(row.Namespace, row.Name)
			rows[i] = row
		}
	}
}

// lookAtHosts adds to a page of names how far they are the same on other hosts, and behind the last of this host those
// that are on others alone.
func (b *Broker) lookAtHosts(reply *listReply, r *protocol.List, at int, namespace string) {
	select {
	case <-b.namesAre:
	default:
		return
	}
	for i := range reply.Rows {
		if row, ok := reply.Rows[i].(NameRow); ok && b.spans(row.Namespace) {
			row.Hosts = b.names.NameState(row.Namespace, row.Name)
			reply.Rows[i] = row
		}
	}
	if reply.Cursor != "" {
		return
	}
	all := b.names.Far(namespace)
	next := max(at-protocol.MaxTopics, 0)
	for ; next < len(all) && len(reply.Rows) < r.Limit; next++ {
		if protocol.MatchName(r.Pattern, all[next].Name) {
			reply.Rows = append(reply.Rows, all[next])
		}
	}
	if next < len(all) {
		reply.Cursor = strconv.Itoa(protocol.MaxTopics + next) // behind all of this host's
	}
}

// page makes a page of a listing, with the mutex held. Contents of names are copied to named, where it is not nil.
func (b *Broker) page(s *session, r *protocol.List, l lister, at int, namespace string, named *contents) (reply listReply, err error) {
	match := func(name string) bool { return protocol.MatchName(r.Pattern, name) }
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(s); err != nil {
		return reply, err
	}
	if l.row == nil {
		rows, next := []any(nil), uint64(0)
		if r.What == protocol.ListLeases {
			rows, next = b.leases.Rows(uint64(at), r.Limit, match)
		} else {
			rows, next = b.topics.Places(uint64(at), r.Limit, lookTime, match)
		}
		reply.Rows = rows
		if next != 0 {
			reply.Cursor = strconv.FormatUint(next, 10)
		}
		return reply, nil
	}
	end, began := l.end(b), time.Now()
	reply.Rows = []any{}
	for cost := 0; at < end && len(reply.Rows) < r.Limit && cost < maxScan && !named.full() && (cost == 0 || time.Since(began) < lookTime); {
		row, n := l.row(b, namespace, at, match)
		if row != nil {
			reply.Rows = append(reply.Rows, row)
			named.add(b, at)
		}
		cost += max(n, 1)
		at++
		if r.What == protocol.ListStorages && n == 0 {
			at = (at + protocol.ChunkIndices - 1) &^ (protocol.ChunkIndices - 1)
		}
	}
	if at < end {
		reply.Cursor = strconv.Itoa(at)
	}
	return reply, nil
}

func namespaceOf(s *session, named string) (string, error) {
	if s != nil {
		return s.namespace, nil
	}
	switch named {
	case "":
		return protocol.DefaultNamespace, nil
	case protocol.AnyNamespace:
		return named, nil
	}
	return named, protocol.CheckNamespace(named)
}
