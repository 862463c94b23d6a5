package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newShowCommand) }

// shown is one thing that `show` has found: its row and what more is known.
type shown struct {
	Kind string          `json:"kind"`
	Row  json.RawMessage `json:"row"`
	*details
}

// details are of the kinds that have them.
type details struct {
	Tensors     []broker.TensorRow `json:"tensors,omitempty"`          // name
	TensorsMore int                `json:"tensors_left_out,omitempty"` // name: very many
	Meta        json.RawMessage    `json:"meta,omitempty"`             // name
	Lanes       []laneRow          `json:"lanes,omitempty"`            // topic
	Waiting     *int               `json:"waiting,omitempty"`          // queue: as its row says
	Readers     []readerRow        `json:"readers,omitempty"`          // topic; the takers of a queue
	EndsMore    int                `json:"ends_left_out,omitempty"`    // topic: those of lanes and readers that moved less
	LastLeft    string             `json:"last_left,omitempty"`        // topic
	Segments    []json.RawMessage  `json:"segments,omitempty"`         // session
	Storages    []json.RawMessage  `json:"storages,omitempty"`         // session, segment: what it made or holds
	// Providers are a function's, which its row has too.
	Providers []broker.ProviderRow `json:"providers,omitempty"`
	Doc       string               `json:"doc,omitempty"` // function
	*children                      // session
}

// laneRow is one sender's lane of a topic.
type laneRow struct {
	Sender string `json:"sender"`
	PID    int    `json:"pid,omitempty"` // 0: its session is over
	State  string `json:"state"`
}

// readerRow is a session that receives from a topic or takes from a queue.
type readerRow struct {
	Reader string `json:"reader"`
	PID    int    `json:"pid"`
	Taken  uint64 `json:"taken"`
	Lost   uint64 `json:"lost"` // overwritten before it had them
}

func newShowCommand(a *app) *cobra.Command {
	var f clientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [" + strings.Join(singular(), "|") + "] WHAT",
		Short: "Show one name, topic, queue, function, session, segment, storage or lease",
		Long: `Show all that is known of one thing. WHAT is a name, topic or queue as it is called, a
function with its version or without, a session by name, serial or pid, and a segment,
storage, lease, or a topic or queue without a name, by its number. Without a kind everything of that name or number is
shown.

Status 3 if there is nothing. --json prints an array.`,
		Example: `  baton show weights/actor
  baton show storage 128`,
		GroupID: groupLook,
		Args:    takes(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.show(cmd.Context(), &f, args, asJSON)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				names, d := a.completeRows(&f, protocol.ListNames)(cmd, args, begun)
				return append(singular(), names...), d
			case 1:
				return a.completeKind(&f, args[0])(cmd, args, begun)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func singular() []string {
	var out []string
	for _, l := range listings {
		out = append(out, strings.TrimSuffix(l.what, "s"))
		if l.what == protocol.ListTopics {
			out = append(out, protocol.KindQueue) // listed among the topics
		}
	}
	return out
}

// listed is the listing of a kind that `show` knows.
func listed(kind string) string {
	if kind == protocol.KindQueue {
		return protocol.ListTopics
	}
	l, _ := findListing(kind)
	return l.what
}

func (a *app) show(ctx context.Context, f *clientFlags, args []string, asJSON bool) (err error) {
	if args[len(args)-1] == "" {
		return badUsage("what is to be shown has an empty name")
	}
	wanted := listings
	what, queues := args[len(args)-1], false
	if len(args) == 2 {
		queues = args[0] == protocol.KindQueue
		l, known := findListing(listed(args[0]))
		if !known {
			return badUsage("%q is no kind: use one of %s", args[0], strings.Join(singular(), ", "))
		}
		wanted = []listing{l}
	}
	broker, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer broker.close()
	found := []shown{}
	for _, l := range wanted {
		rows, err := candidates(ctx, broker, l.what, what)
		if err != nil {
			return err
		}
		for _, raw := range rows {
			if !isCalled(l.what, raw, what) || queues && !isQueue(raw) {
				continue
			}
			d, err := detail(ctx, broker, l.what, raw)
			if err != nil {
				return err
			}
			found = append(found, shown{strings.TrimSuffix(l.what, "s"), raw, d})
		}
	}
	if len(found) == 0 {
		return protocol.Errorf(protocol.CodeNotFound, "baton ls lists what there is; --namespace chooses another namespace",
			"nothing is called %q", what)
	}
	if asJSON {
		for i := range found {
			if found[i].Kind == protocol.KindTopic && isQueue(found[i].Row) {
				found[i].Kind = protocol.KindQueue // as why calls it
			}
		}
		return a.printJSON(found)
	}
	for i, s := range found {
		if i > 0 {
			if err := a.println(""); err != nil {
				return err
			}
		}
		if err := a.printShown(&s); err != nil {
			return err
		}
	}
	return nil
}

// candidates gets the rows among which one is that goes by a name or number. The broker
// chooses where it can: names and topics are found by their name, which has no wildcard,
// segments, storages and leases by their number.
func candidates(ctx context.Context, l *looker, kind, what string) ([]json.RawMessage, error) {
	switch kind {
	case protocol.ListTopics:
		if isNumber(what) { // perhaps one without a name
			return l.fetch(ctx, kind, "")
		}
		return l.fetch(ctx, kind, literally(what))
	case protocol.ListNames:
		return l.fetch(ctx, kind, literally(what))
	case protocol.ListFunctions: // and its versions
		return l.fetch(ctx, kind, literally(what)+"*")
	case protocol.ListSegments, protocol.ListStorages:
		n, err := strconv.ParseUint(what, 10, 32)
		if err != nil {
			return nil, nil
		}
		return l.fetchOne(ctx, kind, n)
	case protocol.ListLeases: // a cursor is the number before
		n, err := strconv.ParseUint(what, 10, 53)
		if err != nil || n == 0 {
			return nil, nil
		}
		return l.fetchOne(ctx, kind, n-1)
	}
	return l.fetch(ctx, kind, "")
}

// isNumber tells whether a word may be a number by which a thing goes.
func isNumber(word string) bool {
	_, err := strconv.ParseUint(word, 10, 64)
	return err == nil
}

// literally is a pattern that matches a name, and few others.
func literally(name string) string { return strings.ReplaceAll(name, "*", "?") }

func isQueue(raw json.RawMessage) bool {
	var r broker.TopicRow
	return json.Unmarshal(raw, &r) == nil && r.Kind == protocol.KindQueue
}

// isCalled tells whether a row goes by a name or number.
func isCalled(kind string, raw json.RawMessage, what string) bool {
	var r struct {
		Name, Former string
		PID          int

		Serial, Lease, ID uint64

		Index, Segment uint32
	}
	if json.Unmarshal(raw, &r) != nil {
		return false
	}
	n, err := strconv.ParseUint(what, 10, 64)
	numbered := err == nil
	switch kind {
	case protocol.ListNames:
		return r.Name == what || r.Former == what
	case protocol.ListTopics:
		return r.Name == what || r.Former == what || numbered && r.Name == "" && r.ID == n
	case protocol.ListFunctions:
		name, _ := protocol.SplitFunction(r.Name)
		return r.Name == what || name == what
	case protocol.ListSessions:
		return isSession(what, r.Name, r.Serial, r.PID)
	case protocol.ListSegments:
		return numbered && uint64(r.Segment) == n
	case protocol.ListStorages:
		return numbered && uint64(r.Index) == n
	default:
		return numbered && r.Lease == n
	}
}

// isSession tells whether a session goes by a name, or by the number of it or of its process.
func isSession(what, name string, serial uint64, pid int) bool {
	n, err := strconv.ParseUint(what, 10, 64)
	return name == what || err == nil && (serial == n || uint64(pid) == n)
}

// detail finds out what a row does not say. What has gone meanwhile is left out.
func detail(ctx context.Context, l *looker, kind string, raw json.RawMessage) (*details, error) {
	switch kind {
	case protocol.ListNames:
		return nameDetail(ctx, l, raw)
	case protocol.ListTopics:
		return topicDetail(ctx, l, raw)
	case protocol.ListFunctions:
		return functionDetail(raw)
	case protocol.ListSessions:
		return sessionDetail(ctx, l, raw)
	case protocol.ListSegments:
		var r broker.SegmentRow
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, err
		}
		var d details
		all, err := l.fetchAll(ctx, protocol.List{What: protocol.ListStorages, Pattern: literally(r.Owner), Limit: 1024})
		for _, raw := range all { // of its owner, and of others of that name
			var s broker.StorageRow
			if json.Unmarshal(raw, &s) == nil && s.Segment == r.Segment {
				d.Storages = append(d.Storages, raw)
			}
		}
		return &d, err
	}
	return nil, nil
}

// nameDetail tells what a name consists of.
func nameDetail(ctx context.Context, l *looker, raw json.RawMessage) (*details, error) {
	var r broker.NameRow
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	rows, err := rowsOf[broker.NameRow](ctx, l, protocol.List{What: protocol.ListNames, Pattern: literally(r.Name), Namespace: r.Namespace, Contents: true})
	if err != nil {
		return nil, err
	}
	for _, found := range rows {
		if c := found.Contents; c != nil && found.Name == r.Name {
			return &details{Tensors: c.Tensors, TensorsMore: c.More, Meta: c.Meta}, nil
		}
	}
	return nil, nil
}

// topicDetail tells which sessions send to a topic or queue, and which receive or take from it.
func topicDetail(ctx context.Context, l *looker, raw json.RawMessage) (*details, error) {
	var r broker.TopicRow
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	flow, err := l.flowOf(ctx, &r)
	if err != nil || flow == nil {
		return nil, err
	}
	d := &details{LastLeft: flow.LastLeft, EndsMore: flow.More}
	if r.Kind == protocol.KindQueue {
		d.Waiting = &r.Waiting
	}
	for i := range flow.Writers {
		lane := laneRow{Sender: flow.Writers[i].Name, PID: flow.Writers[i].PID, State: "live"}
		if flow.Writers[i].Ended {
			lane.PID, lane.State = 0, "ended, kept by the broker"
		}
		d.Lanes = append(d.Lanes, lane)
	}
	for _, e := range flow.Readers {
		d.Readers = append(d.Readers, readerRow{e.Name, e.PID, e.Taken, e.Lost})
	}
	return d, nil
}

// functionDetail tells what its providers say of it.
func functionDetail(raw json.RawMessage) (*details, error) {
	var r broker.FunctionRow
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	var description struct{ Doc string }
	json.Unmarshal(r.Description, &description) // unchecked data from a provider: it may be no object
	return &details{Doc: description.Doc, Providers: r.Providers}, nil
}

func sessionDetail(ctx context.Context, l *looker, raw json.RawMessage) (*details, error) {
	var r broker.SessionRow
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	d := &details{children: childrenOf(&r)}
	segments, err := l.fetch(ctx, protocol.ListSegments, "")
	if err != nil {
		return nil, err
	}
	for _, raw := range segments {
		var s broker.SegmentRow
		if json.Unmarshal(raw, &s) == nil && s.OwnerSerial == r.Serial && s.State == "granted" {
			d.Segments = append(d.Segments, raw)
		}
	}
	// The broker chooses those that the session has made or holds: all would be many more.
	d.Storages, err = l.fetchAll(ctx, protocol.List{What: protocol.ListStorages, Slot: &r.Slot, Limit: 1024})
	return d, err
}

// printShown prints the row as names and values, as the listing calls them, then
// the details.
func (a *app) printShown(s *shown) error {
	l, _ := findListing(s.Kind)
	cells, err := l.cells(s.Row)
	if err != nil {
		return err
	}
	rows := [][2]string{{s.Kind, ""}}
	for i, name := range l.header {
		if name == s.Kind || s.Kind == "name" && i == 0 {
			rows[0][1] = cells[i]
			continue
		}
		if name == "uid" || name == "user" { // named below
			continue
		}
		rows = append(rows, [2]string{name, cells[i]})
	}
	var topic broker.TopicRow
	if s.Kind == "topic" && json.Unmarshal(s.Row, &topic) == nil && topic.Groups > 0 {
		rows = append(rows, [2]string{"waiting", number(topic.Waiting)}, [2]string{"unacknowledged", number(topic.Unacknowledged)}, [2]string{"senders held up by one item", number(topic.HeldUp)})
	}
	var function broker.FunctionRow
	if s.Kind == "function" && json.Unmarshal(s.Row, &function) == nil {
		rows = append(rows, [2]string{"user", userText(function.UID)}, [2]string{"a dead provider's call", map[bool]string{true: "is given to another, also when it was begun", false: "is given to another unless it was begun"}[function.Idempotent]})
		if ends := endsWith(function.Lingering); ends != "" {
			rows = append(rows, [2]string{"lingers", "no session has it open; its listing ends " + ends})
		}
		if function.Exclusive {
			rows = append(rows, [2]string{"provided by", "one process alone"})
		}
		rows = append(rows, [2]string{"calls", fmt.Sprintf("%d, %d of them errors", function.Calls, function.Errors)},
			[2]string{"ran", fmt.Sprintf("half of them within %s, 99 %% within %s", quantile(function.P50), quantile(function.P99))})
	}
	if topic.Kind == protocol.KindQueue && topic.Readers == 0 {
		rows = append(rows, [2]string{"takers", noTakers})
	}
	if d := s.details; d != nil {
		if d.Doc != "" {
			rows = append(rows, [2]string{"about", shorten(d.Doc)})
		}
		if len(d.Meta) > 0 {
			rows = append(rows, [2]string{"meta", shorten(string(d.Meta))})
		}
		if d.LastLeft != "" {
			rows = append(rows, [2]string{"last left", d.LastLeft})
		}
	}
	var session broker.SessionRow
	if s.Kind == "session" && json.Unmarshal(s.Row, &session) == nil {
		rows = append(rows, [2]string{"user", userText(session.UID)})
		if session.Stopped {
			rows = append(rows, [2]string{"process", "is suspended, by a signal or a debugger"})
		}
		for _, more := range [][2]string{{"command", session.Command}, {"container", session.Container}} {
			if more[1] != "" {
				rows = append(rows, more)
			}
		}
		rows = append(rows, [2]string{"sent", fmt.Sprintf("%d messages, %s", session.Sent, size(session.SentBytes))},
			[2]string{"taken", fmt.Sprintf("%d messages, %d lost", session.Taken, session.Lost)})
	}
	if err := a.println(a.pairs(rows)); err != nil || s.details == nil {
		return err
	}
	return a.printDetails(s.details)
}

func (a *app) printDetails(d *details) error {
	if len(d.Tensors) > 0 {
		var rows [][]string
		for _, t := range d.Tensors {
			name := t.Name
			if name == "" {
				name = "(unnamed)"
			}
			rows = append(rows, []string{name, describe(t.DType, t.Shape), size(uint64(max(t.Bytes, 0)))})
		}
		if err := a.println("\n" + a.table(&layout{header: []string{"tensor", "type", "bytes"}, right: []string{"bytes"}, weak: []string{"type", "tensor"}}, rows)); err != nil {
			return err
		}
	}
	if d.TensorsMore > 0 {
		if err := a.println(fmt.Sprintf("and %s more", number(d.TensorsMore))); err != nil {
			return err
		}
	}
	if len(d.Lanes) > 0 {
		var rows [][]string
		for _, l := range d.Lanes {
			pid := "-"
			if l.PID != 0 {
				pid = strconv.Itoa(l.PID)
			}
			rows = append(rows, []string{l.Sender, pid, l.State})
		}
		if err := a.println("\n" + a.table(&layout{header: []string{"sender", "pid", "state"}, right: []string{"pid"}, weak: []string{"state", "sender"}}, rows)); err != nil {
			return err
		}
	}
	if len(d.Providers) > 0 {
		if err := a.println("\n" + a.providers(d.Providers)); err != nil {
			return err
		}
	}
	if len(d.Readers) > 0 {
		header, loses := []string{"reader", "pid", "taken", "lost"}, d.Waiting == nil
		if !loses { // all get what is theirs
			header = []string{"taker", "pid", "taken"}
		}
		var rows [][]string
		for _, r := range d.Readers {
			row := []string{r.Reader, strconv.Itoa(r.PID), strconv.FormatUint(r.Taken, 10)}
			if loses {
				row = append(row, strconv.FormatUint(r.Lost, 10))
			}
			rows = append(rows, row)
		}
		if err := a.println("\n" + a.table(&layout{header: header, right: header[1:], weak: header[:1]}, rows)); err != nil {
			return err
		}
	}
	if d.children != nil {
		if err := a.println("\n" + a.childrenText(d.children)); err != nil {
			return err
		}
	}
	if d.EndsMore > 0 {
		if err := a.println(fmt.Sprintf("and %s more that moved less", number(d.EndsMore))); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		what string
		rows []json.RawMessage
	}{{protocol.ListSegments, d.Segments}, {protocol.ListStorages, d.Storages}} {
		if len(part.rows) == 0 {
			continue
		}
		l, _ := findListing(part.what)
		text, err := a.list(l, part.rows)
		if err != nil {
			return err
		}
		if err := a.println(fmt.Sprintf("\n%s", text)); err != nil {
			return err
		}
	}
	return nil
}
