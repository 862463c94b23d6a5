package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newWhyCommand) }

// Reasons for which a holder counts a storage.
const (
	whyMessage = "message" // a topic or queue keeps it
	whyName    = "name"
	whyLease   = "lease"
	whyHeld    = "held"   // by the program itself
	whyUnread  = "unread" // by what the broker cannot read yet
)

// reason is why a holder counts storages, and what would end it.
type reason struct {
	Why      string   `json:"why"`
	What     string   `json:"what"` // the topic, name, lease or program
	Holder   string   `json:"holder"`
	Slot     uint32   `json:"slot"`
	PID      int      `json:"pid,omitempty"`
	Storages int      `json:"storages"`
	Bytes    uint64   `json:"bytes"`
	Counts   uint64   `json:"counts"`
	Awaits   []string `json:"awaits,omitempty"` // of messages: the readers that have not taken them
	Ends     string   `json:"ends"`             // by itself
	Free     string   `json:"free,omitempty"`   // the command that ends it

	of map[uint32]uint64 // bytes of storages
}

// explained is a storage, session, name, topic or queue with the reasons for which memory is held.
type explained struct {
	Kind string          `json:"kind"`
	Row  json.RawMessage `json:"row"`
	// Holds is what a session holds. HeldBy are the holders of the storage, the session's own memory,
	// or the name's tensors.
	Holds []*reason `json:"holds,omitempty"`
	// Granted are the segments of a session.
	Granted   []*grantedSegment `json:"granted,omitempty"`
	HeldBy    []*reason         `json:"held_by"`
	*flow                       // of a topic or queue
	*calling                    // of a function
	*children                   // of the process of a session, for which it keeps memory
}

func newWhyCommand(a *app) *cobra.Command {
	var f clientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "why [storage|session|name|topic|queue|function] WHAT",
		Short: "Tell why memory is not freed, and what waits in a queue or for a function",
		Long: `Tell for each count of a storage what it is for: a message that a topic or queue keeps,
a name, a lease, or the program itself, which still uses it; when that ends, and which
command ends it now. WHAT is a storage by its number, a session by name, serial or pid, or
a name, topic, queue or function. Of a session it shows both: what it holds, and which sessions hold
the memory that it made. Of a topic or queue: the sessions that send and take, the messages that are
kept and for whom, those that a taker has claimed, and their memory. Of a function: its providers,
and the calls that run or wait: of which caller, since when, at which provider, with which deadline.

Programs go on meanwhile, so counts of one moment may not fit those of another. Status 3
if there is nothing.`,
		Example: `  baton why weights/actor
  baton why session 4242
  baton why queue work
  baton why function vision/normalize`,
		GroupID: groupLook,
		Args:    takes(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.why(cmd.Context(), &f, args, asJSON)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return a.completeKind(&f, args[0])(cmd, args, begun)
			}
			return whyKinds, cobra.ShellCompDirectiveNoFileComp
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// whyKinds are the kinds of things that why explains.
var whyKinds = []string{"storage", "session", "name", protocol.KindTopic, protocol.KindQueue, protocol.KindFunction}

func (a *app) why(ctx context.Context, f *clientFlags, args []string, asJSON bool) error {
	wanted := []string{protocol.ListNames, protocol.ListTopics, protocol.ListFunctions, protocol.ListSessions, protocol.ListStorages}
	what, queues := args[len(args)-1], false
	if what == "" {
		return badUsage("what is to be explained has an empty name")
	}
	if len(args) == 2 {
		queues = args[0] == protocol.KindQueue
		l, known := findListing(listed(args[0]))
		if !known || !slices.Contains(wanted, l.what) {
			return badUsage("%q is none of %s", args[0], strings.Join(whyKinds, ", "))
		}
		wanted = []string{l.what}
	}
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	var all *attribution
	found := []*explained{}
	for _, kind := range wanted {
		rows, err := candidates(ctx, l, kind, what)
		if err != nil {
			return err
		}
		for _, raw := range rows {
			if !isCalled(kind, raw, what) || queues && !isQueue(raw) {
				continue
			}
			if all == nil {
				if all, err = l.attribution(ctx); err != nil {
					return err
				}
			}
			e, err := all.explain(ctx, l, kind, raw)
			if err != nil {
				return err
			}
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return protocol.Errorf(protocol.CodeNotFound, "baton ls lists what is held; --namespace chooses another namespace",
			"nothing that is held is called %q, and no topic, queue or function", what)
	}
	if asJSON {
		return a.printJSON(found)
	}
	for i, e := range found {
		if i > 0 {
			if err := a.println(""); err != nil {
				return err
			}
		}
		if err := a.printExplained(e); err != nil {
			return err
		}
	}
	return nil
}

// counted is one holder's count of one storage.
type counted struct {
	slot  uint32
	index uint32
}

// cause is one thing that makes a holder count a storage.
type cause struct {
	reason
	key string
}

// When a name's revision ends by itself, and that of an ephemeral name.
const (
	endOfName      = "when it is set anew or deleted"
	endOfEphemeral = endOfName + ", or when the session ends that has set it"
)

// attribution knows what the places of all holders name.
type attribution struct {
	places   []*broker.PlaceRow
	causes   map[counted][]*cause
	sessions map[uint32]*broker.SessionRow // by slot
	unread   map[uint32]bool               // holders of which something cannot be read
	children map[uint32]*children          // of the processes of sessions, by slot
	lingers  map[uint64]string             // when topics end that no session has open, by their ids
	by       reached
	broker   int // the broker's process, which has sessions of its own
}

// rowsOf gets the rows of a listing, decoded.
func rowsOf[Row any](ctx context.Context, l *looker, ask protocol.List) (rows []*Row, err error) {
	raw, err := l.fetchAll(ctx, ask)
	if err != nil {
		return nil, err
	}
	rows = []*Row{}
	for _, data := range raw {
		r := new(Row)
		if err := json.Unmarshal(data, r); err != nil {
			return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "a row of the listing cannot be read: %w", err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// attribution looks at all places of the broker.
func (l *looker) attribution(ctx context.Context) (*attribution, error) {
	at := &attribution{by: l.by, causes: map[counted][]*cause{}, sessions: map[uint32]*broker.SessionRow{}, unread: map[uint32]bool{}, lingers: map[uint64]string{}, children: map[uint32]*children{}}
	sessions, err := rowsOf[broker.SessionRow](ctx, l, protocol.List{What: protocol.ListSessions})
	if err != nil {
		return nil, err
	}
	for _, s := range sessions {
		at.sessions[s.Slot] = s
	}
	if at.broker, err = l.process(ctx); err != nil {
		return nil, err
	}
	places, err := rowsOf[broker.PlaceRow](ctx, l, protocol.List{What: protocol.ListPlaces, Limit: 1024})
	if err != nil {
		return nil, err
	}
	at.places = places
	for _, p := range places {
		at.addPlace(p)
	}
	leases, err := rowsOf[broker.LeaseRow](ctx, l, protocol.List{What: protocol.ListLeases, Limit: 1024})
	if err != nil {
		return nil, err
	}
	for _, lease := range leases {
		c := &cause{key: number(lease.Lease), reason: reason{Why: whyLease, What: fmt.Sprintf("lease %d of %s", lease.Lease, sessionText(lease.Maker, lease.PID)),
			Ends: leaseCells(lease)[4], Free: l.by.command("", "revoke", strconv.FormatUint(lease.Lease, 10))}}
		for _, index := range lease.Storages {
			at.add(protocol.BrokerSlot, index, c)
		}
	}
	return at, nil
}

func (at *attribution) add(slot, index uint32, c *cause) {
	k := counted{slot, index}
	at.causes[k] = append(at.causes[k], c)
}

func (at *attribution) addPlace(p *broker.PlaceRow) {
	if p.Unread {
		at.unread[p.Slot] = true
	}
	for i := range p.Messages {
		c := at.causeOf(p, &p.Messages[i])
		for _, index := range p.Messages[i].Storages {
			at.add(p.Slot, index, c)
		}
	}
}

// isClaimed tells whether a taker has a message of a queue and has not acknowledged it.
func isClaimed(m *broker.PlaceMessage) bool {
	return slices.ContainsFunc(m.Awaits, func(who string) bool { return strings.Contains(who, ": claimed by ") })
}

// lingersOf says when a topic ends that no session has open, in the same words for all its rows; "": a session has it open.
func (at *attribution) lingersOf(p *broker.PlaceRow) string {
	ends, known := at.lingers[p.ID]
	if !known {
		ends = endsWith(p.Lingering)
		at.lingers[p.ID] = ends
	}
	return ends
}

// causeOf tells why a message, or the revision of a name, is kept.
func (at *attribution) causeOf(p *broker.PlaceRow, m *broker.PlaceMessage) *cause {
	what := p.Kind + " " + p.Name
	switch {
	case p.Former != "":
		what = p.Kind + " " + p.Former + " (deleted)"
	case p.Name == "":
		what = fmt.Sprintf("private %s %d", p.Kind, p.ID)
	}
	c := &cause{key: p.Namespace + " " + what, reason: reason{What: what}}
	claimed := isClaimed(m)
	switch {
	case p.Kind == protocol.KindName:
		c.Why, c.Ends = whyName, endOfName
		if p.Ephemeral {
			c.Ends = endOfEphemeral
		}
		c.Free = at.by.command(p.Namespace, "delete", p.Name)
	case p.Former != "" && !claimed:
		c.Why, c.Ends = whyMessage, "it was dropped: the sender lets go of it when it looks, which it is asked to do"
	case p.Kind == protocol.KindQueue:
		c.Why, c.Awaits, c.Ends = whyMessage, m.Awaits, "when it was taken"
		switch {
		case claimed:
			c.Ends = "when its taker is finished with it, or ends"
			if m.Taker != nil {
				c.Free = at.by.command("", "evict", strconv.FormatUint(m.Taker.Session, 10), "--kill")
			}
			if m.Taker != nil && m.Taker.Over {
				c.Ends = "when its taker's process lets go of it, or ends"
			}
		case len(m.Awaits) == 0:
			c.Ends = "it is released: the sender lets go of it with its next messages, behind older ones"
		}
	case p.Kind == protocol.KindFunction:
		c.Why, c.Awaits, c.Ends = whyMessage, m.Awaits, "when the call has ended: "+at.by.command(p.Namespace, "why", "function", p.Name)+" tells whose it is"
	default:
		c.Why, c.Awaits = whyMessage, m.Awaits
		c.Ends = fmt.Sprintf("when %s newer ones are there", number(p.Depth))
		if len(m.Awaits) > 0 {
			c.Ends += ", and these have taken it"
		}
	}
	if ends := at.lingersOf(p); ends != "" {
		c.Ends += ", or " + ends + " with the " + p.Kind + ", which no session has open"
	}
	c.key += " " + c.Ends
	if m.Taker != nil {
		c.key += " " + c.Free
	}
	if c.Why == whyMessage && p.Former == "" && !claimed && p.Kind != protocol.KindFunction {
		called := p.Name
		if called == "" {
			called = number(p.ID)
		}
		c.Free = at.by.command(p.Namespace, "purge", called)
	}
	return c
}

// tally sums reasons that are the same but for the storage.
type tally map[string]*reason

func (at *attribution) count(t tally, s *broker.StorageRow, h *broker.HolderRow) {
	left := h.Count
	for _, c := range at.causes[counted{h.Slot, s.Index}] {
		if left == 0 {
			break // taken meanwhile
		}
		left--
		t.sum(s, h, c.key, 1, c.reason)
	}
	if left == 0 {
		return
	}
	r := reason{Why: whyHeld, What: "the program", Ends: "when the program lets go of it, or ends"}
	switch session := at.sessions[h.Slot]; {
	case at.unread[h.Slot]:
		r.Why, r.What, r.Ends = whyUnread, "what the broker cannot read yet", "when the processes that have the files are back"
	case h.Slot == protocol.BrokerSlot:
		r.What, r.Ends = "the broker", "soon: it looks through what ended sessions left, or something changed while this was asked"
	case session != nil && session.PID == at.broker: // evict refuses to kill it
		r.What, r.Ends = "the broker's own session", "when it has had no use for "+ownIdleTime(session.Name)
	case session != nil && at.childrenIn(h.Slot) != nil:
		r = at.childrenIn(h.Slot).reason(session)
	case session != nil && session.ForChildren: // no file shows which
		r.What, r.Ends = "the program or children made by fork", "when its forked children let go of it, or end"
	case session != nil && session.State == "unknown":
		r.Ends, r.Free = "when it returns", at.by.command("", "evict", strconv.FormatUint(session.Serial, 10))
	case session != nil:
		r.Free = at.by.command("", "evict", strconv.FormatUint(session.Serial, 10), "--kill")
	}
	t.sum(s, h, "", left, r)
}

func (t tally) sum(s *broker.StorageRow, h *broker.HolderRow, key string, counts uint64, r reason) {
	key = fmt.Sprintf("%d %s %s", h.Slot, r.Why, key)
	sum := t[key]
	if sum == nil {
		r.Holder, r.Slot, r.PID, r.of = h.Session, h.Slot, h.PID, map[uint32]uint64{}
		if h.Slot == protocol.BrokerSlot {
			r.Holder, r.PID = "broker", 0
		}
		r.Awaits = slices.Clone(r.Awaits)
		sum = &r
		t[key] = sum
	}
	sum.Counts += counts
	for _, who := range r.Awaits {
		if !slices.Contains(sum.Awaits, who) {
			sum.Awaits = append(sum.Awaits, who)
		}
	}
	if _, known := sum.of[s.Index]; !known {
		sum.of[s.Index] = s.Bytes
		sum.Storages++
		sum.Bytes += s.Bytes
	}
}

// list gives the reasons, those of most bytes first.
func (t tally) list() []*reason {
	out := slices.SortedFunc(maps.Values(t), func(a, b *reason) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Why, b.Why), cmp.Compare(a.What, b.What))
	})
	if out == nil {
		out = []*reason{}
	}
	return out
}

// explain finds the reasons of one thing.
func (at *attribution) explain(ctx context.Context, l *looker, kind string, raw json.RawMessage) (*explained, error) {
	e := &explained{Kind: strings.TrimSuffix(kind, "s"), Row: raw}
	holds, heldBy := tally{}, tally{}
	switch kind {
	case protocol.ListStorages:
		var s broker.StorageRow
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		for i := range s.Holders {
			at.count(heldBy, &s, &s.Holders[i])
		}
	case protocol.ListSessions:
		var session broker.SessionRow
		if err := json.Unmarshal(raw, &session); err != nil {
			return nil, err
		}
		storages, err := rowsOf[broker.StorageRow](ctx, l, protocol.List{What: protocol.ListStorages, Slot: &session.Slot, Limit: 1024})
		if err != nil {
			return nil, err
		}
		for _, s := range storages {
			for i := range s.Holders {
				if h := &s.Holders[i]; h.Slot == session.Slot {
					at.count(holds, s, h)
				} else if s.CreatorSerial == session.Serial {
					at.count(heldBy, s, h)
				}
			}
		}
		e.Holds, e.children = holds.list(), at.childrenIn(session.Slot)
		if e.Granted, err = l.grantedTo(ctx, &session, storages); err != nil {
			return nil, err
		}
	case protocol.ListNames:
		var name broker.NameRow
		if err := json.Unmarshal(raw, &name); err != nil {
			return nil, err
		}
		if err := at.countAll(ctx, l, heldBy, at.ofName(&name)); err != nil {
			return nil, err
		}
	case protocol.ListFunctions:
		var function broker.FunctionRow
		if err := json.Unmarshal(raw, &function); err != nil {
			return nil, err
		}
		calls, storages, err := at.calls(ctx, l, &function)
		if err != nil {
			return nil, err
		}
		e.calling = calls
		if err := at.countAll(ctx, l, heldBy, storages); err != nil {
			return nil, err
		}
	case protocol.ListTopics:
		var topic broker.TopicRow
		if err := json.Unmarshal(raw, &topic); err != nil {
			return nil, err
		}
		e.Kind = topic.Kind
		f, storages, err := at.flow(ctx, l, &topic)
		if err != nil {
			return nil, err
		}
		e.flow = f
		if err := at.countAll(ctx, l, heldBy, storages); err != nil {
			return nil, err
		}
	}
	e.HeldBy = heldBy.list()
	return e, nil
}

// countAll sums the reasons of some storages.
func (at *attribution) countAll(ctx context.Context, l *looker, t tally, storages []uint32) error {
	for _, index := range storages {
		rows, err := l.fetchOne(ctx, protocol.ListStorages, uint64(index))
		if err != nil {
			return err
		}
		for _, raw := range rows {
			var s broker.StorageRow
			if json.Unmarshal(raw, &s) != nil || s.Index != index {
				continue
			}
			for i := range s.Holders {
				at.count(t, &s, &s.Holders[i])
			}
		}
	}
	return nil
}

// ofName lists the storages of a name's revision.
func (at *attribution) ofName(name *broker.NameRow) (list []uint32) {
	key := name.Namespace + " name " + name.Name
	for k, causes := range at.causes {
		for _, c := range causes {
			if c.Why == whyName && (c.key == key+" "+endOfName || c.key == key+" "+endOfEphemeral) {
				list = append(list, k.index)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (a *app) printExplained(e *explained) error {
	l, _ := findListing(listed(e.Kind))
	is, err := l.named(e.Row)
	if err != nil {
		return err
	}
	head := e.Kind + " " + is(l.header[0])
	switch e.Kind {
	case "storage":
		head += fmt.Sprintf(": %s, %s old, made by %s", is("bytes"), is("age"), is("made by"))
	case "session":
		head += fmt.Sprintf(": %s (pid %s), %s; granted %s, holds %s, has %s in lanes", is("name"), is("pid"), is("state"), is("granted"), is("held"), is("lanes"))
	case protocol.KindTopic, protocol.KindQueue:
		head += fmt.Sprintf(": %s, %s, depth %s for each sender", is("state"), is("mode"), is("depth"))
	case protocol.KindFunction:
		head += fmt.Sprintf(": %s of its calls run, %s wait", is("running"), is("waiting"))
		var row broker.FunctionRow
		if err := json.Unmarshal(e.Row, &row); err != nil {
			return err
		}
		if ends := endsWith(row.Lingering); ends != "" {
			head += "; no session has it open, and its listing ends " + ends
		}
	case "name":
		head += fmt.Sprintf(": revision %s, %s, set by %s", is("revision"), is("bytes"), is("set by"))
		if age := is("age"); age != "-" {
			head += " " + age + " ago"
		} else {
			head += ", and not here: it is " + is("on NATS")
		}
	}
	if err := a.say(head); err != nil {
		return err
	}
	if e.flow != nil {
		if err := a.printFlow(e.Kind, is("mode") == "lossless", e.flow); err != nil {
			return err
		}
	}
	if e.calling != nil {
		if err := a.printCalls(e.calling); err != nil {
			return err
		}
	}
	messages := e.flow != nil || e.calling != nil
	for _, part := range []struct {
		title   string
		reasons []*reason
		shown   bool
	}{{"it holds", e.Holds, e.Kind == "session"}, {"its memory is held by others", e.HeldBy, e.Kind == "session"}, {"held by", e.HeldBy, e.Kind != "session" && !messages}, {"memory of its messages", e.HeldBy, messages}} {
		if !part.shown {
			continue
		}
		text := " nothing"
		if len(part.reasons) > 0 {
			text = "\n" + a.reasonTable(part.reasons)
		}
		if err := a.println(part.title + ":" + text); err != nil {
			return err
		}
	}
	if text := a.grantedText(e.Granted); text != "" {
		if err := a.println(text); err != nil {
			return err
		}
	}
	if e.children != nil {
		return a.println(a.childrenText(e.children))
	}
	return nil
}
