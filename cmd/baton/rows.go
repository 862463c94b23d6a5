package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cmd/baton/internal/top"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

// listing is one kind of rows: how a table shows them.
type listing struct {
	what string
	layout
	// cells decodes a row and gives its cells.
	cells func(raw json.RawMessage) ([]string, error)
}

// listings in the order that help and overviews have them.
var listings = []listing{
	{protocol.ListNames, layout{[]string{"name", "revision", "kind", "tensors", "bytes", "age", "set by", "readers", "on NATS"},
		[]string{"revision", "tensors", "bytes", "age", "readers"}, []string{"set by", "on NATS", "kind", "name"}, []string{"tensors", "age", "on NATS", "kind", "set by"}, ""}, cellsOf(nameCells)},
	{protocol.ListTopics, layout{[]string{"topic", "kind", "state", "depth", "mode", "writers", "readers", "kept", "made by"},
		[]string{"depth", "writers", "readers", "kept"}, []string{"made by", "kept", "mode", "topic"}, []string{"made by", "depth", "mode", "writers"}, ""}, cellsOf(topicCells)},
	{protocol.ListFunctions, layout{[]string{"function", "providers", "running", "waiting", "callers", "takes and gives", "user", "since"},
		[]string{"providers", "running", "waiting", "callers", "user", "since"}, []string{"takes and gives", "function"}, []string{"user", "since", "callers", "takes and gives"}, ""}, cellsOf(functionCells)},
	{protocol.ListSessions, layout{[]string{"session", "name", "pid", "uid", "language", "namespace", "state", "granted", "held", "lanes", "connected"},
		[]string{"session", "pid", "uid", "granted", "held", "lanes", "connected"}, []string{"language", "namespace", "state", "name"}, []string{"language", "namespace", "connected", "uid", "lanes", "granted"}, ""}, cellsOf(sessionCells)},
	{protocol.ListSegments, layout{[]string{"segment", "bytes", "kind", "state", "owner", "pid", "storages", "age"},
		[]string{"segment", "bytes", "pid", "storages", "age"}, []string{"kind", "owner"}, []string{"age", "kind", "pid"}, ""}, cellsOf(segmentCells)},
	{protocol.ListStorages, layout{[]string{"storage", "bytes", "age", "made by", "held by", "made at"},
		[]string{"storage", "bytes", "age"}, []string{"made at", "made by", "held by"}, []string{"made at", "age"}, ""}, cellsOf(storageCells)},
	{protocol.ListLeases, layout{[]string{"lease", "made by", "storage", "unread", "ends"},
		[]string{"lease", "unread"}, []string{"storage", "made by"}, []string{"storage", "ends"}, "ends"}, cellsOf(leaseCells)},
}

// hostListing is of what other brokers are, and not of what this one has: only ls shows it.
var hostListing = listing{protocol.ListHosts, layout{[]string{"host", "on", "pid", "state", "namespaces", "data", "protocol", "seen", "why"},
	[]string{"pid", "seen"}, []string{"why", "data", "namespaces", "on"}, []string{"seen", "protocol", "pid"}, ""}, cellsOf(hostCells)}

// findAll is findListing of what ls lists.
func findAll(word string) (listing, bool) {
	if word == hostListing.what || word == "host" {
		return hostListing, true
	}
	return findListing(word)
}

// findListing finds a kind by its name, singular or plural.
func findListing(word string) (listing, bool) {
	for _, l := range listings {
		if word == l.what || word == strings.TrimSuffix(l.what, "s") {
			return l, true
		}
	}
	return listing{}, false
}

// named gives the cells of a row by the names of their columns.
func (l *listing) named(raw json.RawMessage) (func(column string) string, error) {
	cells, err := l.cells(raw)
	if err != nil {
		return nil, err
	}
	return func(column string) string { return cells[l.at(column)] }, nil
}

func kinds() []string {
	var out []string
	for _, l := range listings {
		out = append(out, l.what)
	}
	return out
}

// cellsOf ties a row's type to its cells.
func cellsOf[Row any](cells func(*Row) []string) func(json.RawMessage) ([]string, error) {
	return func(raw json.RawMessage) ([]string, error) {
		var r Row
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "a row of the listing cannot be read: %w", err)
		}
		return cells(&r), nil
	}
}

// fetch gets all rows of a listing, page by page.
func (l *looker) fetch(ctx context.Context, what, pattern string) ([]json.RawMessage, error) {
	return l.fetchAll(ctx, protocol.List{What: what, Pattern: pattern, Namespace: l.namespace, Programs: what == protocol.ListSessions})
}

// fetchAll gets all rows that are asked for.
func (l *looker) fetchAll(ctx context.Context, ask protocol.List) ([]json.RawMessage, error) {
	rows := []json.RawMessage{}
	for {
		var page protocol.ListReply
		if err := l.Broker(ctx, protocol.OpList, ask, &page); err != nil {
			return nil, err
		}
		rows = append(rows, page.Rows...)
		if page.Cursor == "" || page.Cursor == ask.Cursor {
			return rows, nil
		}
		ask.Cursor = page.Cursor
		l.patient(l.answers) // a broker with much to list answers page by page
	}
}

// fetchOne gets one row after a cursor: listings of segments, storages and leases are in the order of their numbers,
// and a cursor is one.
func (l *looker) fetchOne(ctx context.Context, what string, cursor uint64) ([]json.RawMessage, error) {
	var page protocol.ListReply
	err := l.Broker(ctx, protocol.OpList, protocol.List{What: what, Cursor: strconv.FormatUint(cursor, 10), Limit: 1}, &page)
	return page.Rows, err
}

// list draws rows of a listing.
func (a *app) list(l listing, rows []json.RawMessage) (string, error) {
	var cells [][]string
	for _, raw := range rows {
		row, err := l.cells(raw)
		if err != nil {
			return "", err
		}
		cells = append(cells, row)
	}
	return a.table(&l.layout, cells), nil
}

// completeRows completes the names, or numbers, of what the broker lists: of its first rows, where there are many.
func (a *app) completeRows(f *clientFlags, what string) cobra.CompletionFunc {
	return a.completeSome(f, what, func(json.RawMessage) bool { return true })
}

// completeKind is completeRows of a kind in the singular; topics and queues are one listing.
func (a *app) completeKind(f *clientFlags, kind string) cobra.CompletionFunc {
	return a.completeSome(f, listed(kind), func(raw json.RawMessage) bool {
		return listed(kind) != protocol.ListTopics || isQueue(raw) == (kind == protocol.KindQueue)
	})
}

// completeSome completes the rows that fit.
func (a *app) completeSome(f *clientFlags, what string, fits func(json.RawMessage) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		l, err := a.look(ctx, f)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer l.close()
		var page protocol.ListReply
		if l.Broker(ctx, protocol.OpList, protocol.List{What: what, Namespace: l.namespace, Limit: mostCompleted}, &page) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, raw := range page.Rows {
			if name := calledIn(what, raw); name != "" && strings.HasPrefix(name, begun) && fits(raw) {
				out = append(out, name)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeSerials completes the numbers of sessions, with their names.
func (a *app) completeSerials(f *clientFlags) cobra.CompletionFunc {
	return completeNumbers(a, f, protocol.ListSessions, func(r *broker.SessionRow) (string, string) {
		return number(r.Serial), sessionText(r.Name, r.PID)
	})
}

// completeLeases completes the numbers of leases, with what they protect.
func (a *app) completeLeases(f *clientFlags) cobra.CompletionFunc {
	return completeNumbers(a, f, protocol.ListLeases, func(r *broker.LeaseRow) (string, string) {
		return strconv.FormatUint(r.Lease, 10), fmt.Sprintf("%s, of %s", plural(int64(len(r.Storages)), "storage"), r.Maker)
	})
}

// completeNumbers completes the numbers of a listing, each with what a shell shows beside it.
func completeNumbers[Row any](a *app, f *clientFlags, what string, named func(*Row) (number, text string)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) (out []string, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		l, err := a.look(ctx, f)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer l.close()
		rows, err := rowsOf[Row](ctx, l, protocol.List{What: what, Namespace: l.namespace, Limit: mostCompleted})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, r := range rows {
			if n, text := named(r); strings.HasPrefix(n, begun) {
				out = append(out, n+"\t"+text)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// mostCompleted bounds what a shell is given to choose from.
const mostCompleted = 1000

// calledIn is what a row is called by: a name, or a number where it has none.
func calledIn(what string, raw json.RawMessage) string {
	var r struct {
		Name           string
		Lease          uint64
		Index, Segment uint32
	}
	if json.Unmarshal(raw, &r) != nil {
		return ""
	}
	switch what {
	case protocol.ListSegments:
		return number(r.Segment)
	case protocol.ListStorages:
		return number(r.Index)
	case protocol.ListLeases:
		return strconv.FormatUint(r.Lease, 10)
	}
	return r.Name
}

func number[N int | uint16 | uint32 | uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }

func size(n uint64) string { return termtext.Size(n) }

// seconds writes an age.
func seconds(s float64) string {
	return termtext.Duration(time.Duration(min(max(s, 0), 1e9) * float64(time.Second)))
}

func nameCells(r *broker.NameRow) []string {
	kind := "published"
	if r.Live {
		kind = "live"
	}
	if r.Ephemeral {
		kind += ", ephemeral"
	}
	nats := r.NATS
	if nats == "" {
		nats = "-" // the broker runs without
	}
	if r.Hosts != "" {
		nats = r.Hosts
	}
	age := seconds(r.Age)
	if r.Far {
		age = "-"
	}
	return []string{r.Name, number(r.Revision), kind, number(r.Tensors), size(r.Bytes), age, r.Setter, number(r.Readers), nats}
}

func topicCells(r *broker.TopicRow) []string {
	mode := "overwrites"
	switch {
	case r.Redeliver:
		mode = "redelivers"
	case r.Kind == protocol.KindQueue:
		mode = "one taker"
	case !r.Overwrite:
		mode = "lossless"
	}
	kept := number(r.Kept)
	if r.Adopted > 0 {
		kept += fmt.Sprintf(" (%d of ended senders)", r.Adopted)
	}
	state := r.State
	if ends := endsWith(r.Lingering); ends != "" {
		state += ", ends " + ends
	}
	return []string{top.TopicName(r), r.Kind, state, number(r.Depth), mode, number(r.Writers), number(r.Readers), kept, r.Creator}
}

// endsWith says when what no session has open ends; "": a session has it open.
func endsWith(l broker.Lingering) string {
	if l.EndsIn == nil {
		return ""
	}
	return "in " + seconds(*l.EndsIn)
}

// signatureOf is what a function takes and gives, as its description says.
func signatureOf(r *broker.FunctionRow) string {
	text, err := client.SignatureOf(string(r.Description))
	if err != nil {
		return "?"
	}
	return text
}

func functionCells(r *broker.FunctionRow) []string {
	return []string{r.Name, number(len(r.Providers)), number(r.Running), number(r.Waiting), number(r.Callers), signatureOf(r), number(r.UID),
		seconds(time.Since(r.Since).Seconds())}
}

func sessionCells(r *broker.SessionRow) []string {
	language := r.Language
	if r.Version != "" {
		language += " " + r.Version
	}
	state := r.State
	if r.ForChildren {
		state += ", for children"
	}
	if r.Stopped {
		state += ", suspended"
	}
	return []string{number(r.Serial), r.Name, number(r.PID), number(r.UID), language, r.Namespace, state, size(r.Granted), size(r.Held), size(r.Lanes),
		seconds(time.Since(r.ConnectedAt).Seconds())}
}

func segmentCells(r *broker.SegmentRow) []string {
	kind := r.Kind
	if r.Device != "" {
		kind = r.Device
	}
	return []string{number(r.Segment), size(r.Bytes), kind, r.State, r.Owner, number(r.PID), number(r.Storages), seconds(r.Age)}
}

func storageCells(r *broker.StorageRow) []string {
	made := sessionText(r.Creator, r.CreatorPID)
	if r.Orphan {
		made += ", ended"
	}
	holders := make([]string, len(r.Holders))
	for i, h := range r.Holders {
		holders[i] = holderText(&h)
	}
	return []string{number(r.Index), size(r.Bytes), seconds(r.Age), made, strings.Join(holders, ", "), r.Trace}
}

// sessionText names a session by its program and its process, whose number is not known of one that is over.
func sessionText(name string, pid int) string {
	if pid > 0 {
		name += fmt.Sprintf(" (pid %d)", pid)
	}
	return name
}

// holderText names the holders of a storage: the broker does for names, leases and
// messages of ended senders.
func holderText(h *broker.HolderRow) string {
	who := "broker"
	if h.Slot != protocol.BrokerSlot {
		who = sessionText(h.Session, h.PID)
	}
	if h.Count != 1 {
		who += fmt.Sprintf(" ×%d", h.Count)
	}
	return who
}

func leaseCells(r *broker.LeaseRow) []string {
	storages := make([]string, len(r.Storages))
	for i, s := range r.Storages {
		storages[i] = number(s)
	}
	ends := "with its session"
	if r.ExpiresIn != nil {
		ends = "in " + seconds(*r.ExpiresIn)
	}
	if r.Once {
		ends += ", or once redeemed"
	}
	unread := ""
	if r.Unread != nil {
		unread = seconds(*r.Unread)
	}
	if r.MayGo {
		ends += ", or when memory is refused"
	}
	return []string{number(r.Lease), sessionText(r.Maker, r.PID), few(storages), unread, ends}
}
