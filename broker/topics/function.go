package topics

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// A function is a queue of calls. Its FunctionRecord describes it to callers and says how many
// processes provide it; the claim of each call says how it stands, and by that the broker answers for
// providers that have ended (docs/protocol.md, Functions).

// function is what a topic is besides, of kind function.
type function struct {
	registration uint32 // 0: not registered yet
	uid          uint32
	idempotent   bool
	exclusive    bool
	overNATS     bool
	description  string
	made         time.Time
	providers    map[*reader]*Party
	// ended are providers that have left, by member, for their callers.
	ended map[uint16]*endedProvider
	// begun says by lane how often a call was begun that the broker gave to others, and which provider was the last.
	begun map[*Lane]map[uint64]begunCall
	left  *sessionfiles.Provided // what providers that have left counted; nil: nothing
}

// begunCall is how often a call was begun, and by whom last.
type begunCall struct {
	times  uint16
	member uint16
}

// callOf is a call by the number of its lane and of the message in it.
type callOf struct {
	lane    uint32
	message uint64
}

func newFunction() *function {
	return &function{providers: map[*reader]*Party{}, ended: map[uint16]*endedProvider{}, begun: map[*Lane]map[uint64]begunCall{}}
}

// groupName is the name of the one group of a queue or function.
func (t *Topic) groupName() string {
	if t.kind == protocol.TopicKindFunction {
		return protocol.GroupOfFunction
	}
	return protocol.KindQueue
}

// makeFunction makes the record of a function that is not registered.
func (ts *Topics) makeFunction(t *Topic) error {
	if err := ts.store.Reserve(record.FunctionPlace(t.index)); err != nil {
		return err
	}
	t.function = newFunction()
	ts.store.Record.Function(t.index).Begin(t.id)
	return nil
}

// readFunction reads the record of a previous broker; false where it makes no sense.
func (ts *Topics) readFunction(t *Topic) bool {
	r := ts.store.Record.Function(t.index).Load()
	if r.TopicID != t.id {
		return false
	}
	t.function = newFunction()
	t.function.set(r)
	if r.Registration > 0 && r.Flags&protocol.FunctionNoTraces != 0 != ts.noTraces {
		ts.describe(t)
	}
	return true
}

// set stores what the registrations have in common.
func (f *function) set(r record.Function) {
	f.registration, f.uid = r.Registration, r.UID
	f.describe(r.Description)
	f.idempotent, f.exclusive = r.Flags&protocol.FunctionIdempotent != 0, r.Flags&protocol.FunctionExclusive != 0
	f.made = record.Formerly(r.MadeAt)
}

// describe sets what its providers say of it.
func (f *function) describe(text string) {
	f.description = text
	var d struct {
		NATS bool `json:"nats"`
	}
	f.overNATS = json.Unmarshal([]byte(text), &d) == nil && d.NATS
}

// takeBackProvider lists a provider that a previous broker had.
func (ts *Topics) takeBackProvider(t *Topic, r *reader, s *Party) {
	if t.function != nil && r.calls > 0 {
		t.function.providers[r] = s
	}
}

// putProviders tells callers how many providers there are.
func (ts *Topics) putProviders(t *Topic) {
	calls := uint32(0)
	for r := range t.function.providers {
		calls += r.calls
	}
	ts.store.Record.Function(t.index).SetProviders(uint32(len(t.function.providers)), calls)
	ts.watch.Provided()
}

// OverNATS is a function that is called over NATS.
type OverNATS struct{ Namespace, Name, Description string }

// OverNATS lists the functions whose providers say that they may be called over NATS.
func (ts *Topics) OverNATS() (all []OverNATS) {
	for _, t := range ts.used() {
		if t != nil && t.isRegistered() && t.function.overNATS && len(t.function.providers) > 0 {
			all = append(all, OverNATS{t.key.namespace, t.key.name, t.function.description})
		}
	}
	return all
}

// lookUpFunction finds a function by its name, without a version the newest; nil when it may be made.
func (ts *Topics) lookUpFunction(s *Party, r *protocol.TopicOpenRequest) (*Topic, error) {
	if err := protocol.CheckFunction(r.Name); err != nil {
		return nil, err
	}
	wanted, version := protocol.SplitFunction(r.Name)
	exact := ts.named[topicKey{s.Namespace, r.Name, ofFunctions}]
	if r.Create || exact != nil && (version != "" || len(exact.function.providers) > 0) {
		return exact, nil
	}
	// One without a provider stands behind those that have one: callers hold it open. One that lingers stands behind all
	// that sessions have open: it is listed, and no more.
	newest := exact
	later := func(t *Topic, version string) bool {
		switch provided := len(t.function.providers) > 0; {
		case newest == nil:
			return true
		case provided != (len(newest.function.providers) > 0):
			return provided
		case newest == exact:
			return false
		case (len(t.members) > 0) != (len(newest.members) > 0):
			return len(t.members) > 0
		}
		return protocol.CompareVersions(version, newest.version()) > 0
	}
	similar := []string(nil)
	for key, t := range ts.named {
		if key.space != ofFunctions || key.namespace != s.Namespace || t.function.registration == 0 {
			continue
		}
		name, v := protocol.SplitFunction(key.name)
		if name == wanted && version == "" && later(t, v) {
			newest = t
		}
		if likeName(wanted, name) {
			similar = append(similar, key.name)
		}
	}
	if newest != nil {
		return newest, nil
	}
	slices.Sort(similar)
	similar = similar[:min(len(similar), 8)]
	e := protocol.Errorf(protocol.CodeNotFound, "register it, or wait for it: baton ls functions lists them",
		"there is no function %s in namespace %s", r.Name, s.Namespace)
	if len(similar) > 0 {
		e.Message += "; similar ones: " + strings.Join(similar, ", ")
		e = e.With("similar", similar)
	}
	return nil, e
}

func (t *Topic) version() string {
	_, v := protocol.SplitFunction(t.key.name)
	return v
}

// Register makes a reader of a session's a provider of a function.
func (ts *Topics) Register(s *Party, r *protocol.FunctionRegister) (reply protocol.FunctionRegistered, err error) {
	t, m, err := ts.findTopic(s, r.TopicRef)
	if err != nil {
		return reply, err
	}
	rd := m.readers[r.Reader]
	if t.function == nil || rd == nil || rd.group == nil {
		return reply, protocol.Errorf(protocol.CodeNotFound, "read in the group of the function first", "this session has no reader %d of %s that could provide it", r.Reader, t)
	}
	if r.Concurrency == 0 {
		r.Concurrency = 1
	}
	if r.Concurrency > protocol.MaxConcurrency {
		return reply, protocol.Errorf(protocol.CodeInvalid, "use 1 to 1024", "concurrency %d of %s", r.Concurrency, t)
	}
	want, err := describes(t, r.Description)
	if err != nil {
		return reply, err
	}
	linger, err := lingerOf(r.Linger)
	if err != nil {
		return reply, err
	}
	f := t.function
	if rd.calls > 0 { // asked again, because the answer was lost
		return protocol.FunctionRegistered{Registration: f.registration, Counted: s.ReserveProvider(rd.number) == nil}, nil
	}
	if t.token != "" && f.registration != 0 { // what it is called for, its maker alone knows
		return reply, protocol.Errorf(protocol.CodePermission, "make one", "%s is provided by its maker alone", t)
	}
	uid := ts.store.Record.Session(s.Slot).Load().UID
	if err := ts.mayProvide(t, s, uid, want, r, linger); err != nil {
		return reply, err
	}
	if r.Override {
		ts.endRegistration(t, "another process has taken its place")
	}
	if f.registration == 0 || r.Override || len(f.providers) == 0 {
		if f.registration == 0 {
			f.made = time.Now()
		}
		f.registration++
		f.uid, f.idempotent, f.exclusive = uid, r.Idempotent, r.Exclusive
		f.describe(r.Description)
		ts.describe(t)
		ts.setLinger(t, linger)
	}
	rd.calls = r.Concurrency
	f.providers[rd] = s
	delete(f.ended, rd.member)
	ts.store.Record.Join(rd.join).Store(rd.joined(s, t))
	ts.putProviders(t)
	crashpoint.At("broker-function-registered")
	ts.groupsChanged(t)
	if t.token == "" { // else it is an argument of calls
		ts.log.Info("function registered", events.Of(events.Function), "function", t.key.name, "namespace", t.key.namespace, "serial", s.Serial, "name", s.Name, "pid", s.PID, "registration", f.registration)
	}
	return protocol.FunctionRegistered{Registration: f.registration, Counted: s.ReserveProvider(rd.number) == nil}, nil
}

// setLinger sets for how long a function stays listed that no session has open.
func (ts *Topics) setLinger(t *Topic, linger time.Duration) {
	t.linger = linger
	ts.store.Record.Topic(t.index).SetLinger(uint64(linger))
}

// describe writes the record of a function anew.
func (ts *Topics) describe(t *Topic) {
	r := t.function.recorded(t)
	if ts.noTraces {
		r.Flags |= protocol.FunctionNoTraces
	}
	ts.store.Record.Function(t.index).Describe(r)
}

// NoTraces has traces of errors stay with the providers of all functions, or not.
func (ts *Topics) NoTraces(stay bool) {
	ts.noTraces = stay
	for _, t := range ts.used() {
		if t != nil && t.function != nil && t.function.registration > 0 {
			ts.describe(t)
		}
	}
}

// recorded is the record of a function.
func (f *function) recorded(t *Topic) record.Function {
	r := record.Function{TopicID: t.id, Registration: f.registration, UID: f.uid, MadeAt: uint64(f.made.UnixNano()), Description: f.description}
	if f.idempotent {
		r.Flags |= protocol.FunctionIdempotent
	}
	if f.exclusive {
		r.Flags |= protocol.FunctionExclusive
	}
	return r
}

// describes checks a description: an object. What two have in common is compared without "doc".
func describes(t *Topic, text string) (map[string]any, error) {
	var d map[string]any
	if len(text) > protocol.MaxFunctionDescription {
		return nil, protocol.Errorf(protocol.CodeInvalid, "shorten its documentation, or its parameters' defaults",
			"the description of %s has %d bytes, at most %d fit", t, len(text), protocol.MaxFunctionDescription)
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil || d == nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, "give a JSON object", "the description of %s is not a JSON object", t)
	}
	delete(d, "doc")
	return d, nil
}

// mayProvide tells whether a session may provide a function beside those that do.
func (ts *Topics) mayProvide(t *Topic, s *Party, uid uint32, want map[string]any, r *protocol.FunctionRegister, linger time.Duration) error {
	f := t.function
	if f.registration == 0 {
		return nil
	}
	if uid != f.uid {
		return protocol.Errorf(protocol.CodePermission, "use another name, or have that user remove it",
			"%s was registered by user %d, and this process is of user %d", t, f.uid, uid)
	}
	if r.Override || len(f.providers) == 0 {
		return nil
	}
	others := slices.Collect(maps.Values(f.providers))
	slices.SortFunc(others, func(a, b *Party) int { return int(a.Slot) - int(b.Slot) })
	by := others[0].Who()
	switch have, _ := describes(t, f.description); {
	case !reflect.DeepEqual(have, want):
		return protocol.Errorf(protocol.CodeConflict, remedyFor(have, want),
			"%s is registered by %s as %s, and here as %s", t, by, f.description, r.Description)
	case f.idempotent != r.Idempotent || f.exclusive != r.Exclusive:
		return protocol.Errorf(protocol.CodeConflict, "register it with the same options, or override it",
			"%s is registered by %s as idempotent=%t exclusive=%t, and here as idempotent=%t exclusive=%t", t, by, f.idempotent, f.exclusive, r.Idempotent, r.Exclusive)
	case t.linger != linger:
		return protocol.Errorf(protocol.CodeConflict, "register it with the same linger, or override it",
			"%s is registered by %s with a linger of %v, and here of %v", t, by, t.linger, linger)
	case f.exclusive && slices.ContainsFunc(others, func(p *Party) bool { return p.PID != s.PID }):
		return protocol.Errorf(protocol.CodeConflict, "let that process end it, or override it", "%s is exclusive, and %s provides it", t, by)
	}
	return nil
}

// remedyFor is what to do about two descriptions that differ. That of integers is easily overlooked.
func remedyFor(have, want map[string]any) string {
	const others = "use another name or version, or override it"
	alike := func(d map[string]any) string {
		text, _ := json.Marshal(d) // it was read from JSON
		return strings.ReplaceAll(string(text), "int64", "int")
	}
	if alike(have) != alike(want) {
		return others
	}
	return "int64 is not int: int in Python and *big.Int in Go make int, other integers of Go int64; give both the same type, or " + others
}

// endRegistration ends what all providers are: they take no more calls once they have seen the
// record. The caller tells the record how many there are: where others follow at once, no caller may
// find that there are none.
func (ts *Topics) endRegistration(t *Topic, why string) (n int) {
	f := t.function
	for r, s := range f.providers {
		r.calls = 0
		ts.store.Record.Join(r.join).Store(r.joined(s, t))
		n++
		ts.noteNoProvider(t, s, len(f.providers)-n, why)
	}
	clear(f.providers)
	return n
}

// noteNoProvider logs that a session provides a function no more, and how many others do.
func (ts *Topics) noteNoProvider(t *Topic, s *Party, left int, why string) {
	if t.token != "" {
		return // an argument of calls
	}
	ts.log.Info("provider of a function ended", events.Of(events.Function), "function", t.key.name, "namespace", t.key.namespace, "serial", s.Serial, "name", s.Name, "pid", s.PID,
		"providers_left", left, "why", why)
}

// RemoveFunction ends all registrations of a function, and tells how many providers there were.
func (ts *Topics) RemoveFunction(namespace string, r *protocol.FunctionByName, may func(uid uint32) error) (reply protocol.FunctionRemoved, err error) {
	if err := protocol.CheckFunction(r.Name); err != nil {
		return reply, err
	}
	t := ts.named[topicKey{namespace, r.Name, ofFunctions}]
	if t == nil || t.function.registration == 0 {
		return reply, protocol.Errorf(protocol.CodeNotFound, "baton ls functions lists them, with their versions", "there is no function %s in namespace %s", r.Name, namespace)
	}
	if err := may(t.function.uid); err != nil {
		return reply, err
	}
	reply.Providers = ts.endRegistration(t, "it was removed")
	t.function.registration++
	ts.describe(t)
	ts.putProviders(t)
	ts.groupsChanged(t)
	ts.setLinger(t, 0) // the listing goes as well, with the last session that has it open
	ts.removeIfUnused(t)
	return reply, nil
}

// endProvider notes that a provider leaves, for those whose calls it had.
func (ts *Topics) endProvider(t *Topic, r *reader) {
	f := t.function
	s := r.group.owners[r.member]
	if s == nil {
		return
	}
	if len(f.ended) >= mostEnded {
		for member := range f.ended { // any
			delete(f.ended, member)
			break
		}
	}
	if counted, _ := s.Provided(r.number); counted != nil {
		if f.left == nil {
			f.left = &sessionfiles.Provided{}
		}
		f.left.Add(counted)
	}
	fate := s.fate()
	f.ended[r.member] = &endedProvider{fate: fate}
	if _, was := f.providers[r]; was {
		delete(f.providers, r)
		ts.putProviders(t)
		ts.noteNoProvider(t, s, len(f.providers), fate.Reason)
	}
}

// leaving tells whether the session leaves all its topics, since it is over.
func (s *Party) leaving() bool { return s.touched != nil }

// releaseCalls ends the claims of providers that are over: what was not begun is for others, and so
// is what was begun of an idempotent function; else a call that was begun is over. It tells whether
// there was any. Of what a living process holds still nothing is given to others.
//
// SYNC claim: what is DONE here has no reply but one that the provider sent before it ended, in a
// lane that was adopted already.
func (ts *Topics) releaseCalls(g *group, l *Lane, a shm.GroupLane, over func(member uint16) bool) (any bool) {
	f := g.topic.function
	freed, now, last := 0, sys.Monotonic(), map[uint64]uint16{}
	changed := a.ReleaseCalls(func(i uint64, m uint16, state uint8) (uint8, uint16, bool) {
		begun := state == protocol.ClaimBegun
		switch {
		case !over(m):
			return 0, 0, false
		case begun && !f.idempotent || l.state == protocol.LaneAdopted:
			if begun {
				f.noteRan(g, callOf{l.Number, i}, m, now)
			}
			return protocol.ClaimDone, m, true
		case ts.stillHeld(g, l, i, m):
			return 0, 0, false
		case begun:
			f.noteRan(g, callOf{l.Number, i}, m, now)
			last[i] = m
			return protocol.ClaimFree, f.begun[l][i].times + 1, true
		}
		return protocol.ClaimFree, f.begun[l][i].times, true
	}, func(i uint64, to uint8, times uint16) {
		if to != protocol.ClaimFree {
			return
		}
		freed++
		if m, ok := last[i]; ok {
			if f.begun[l] == nil {
				f.begun[l] = map[uint64]begunCall{}
			}
			f.begun[l][i] = begunCall{times, m}
		}
	})
	if l.state == protocol.LaneAdopted {
		l.withdrawIn(a)
	}
	if changed == 0 {
		return false
	}
	crashpoint.At("broker-calls-released")
	ts.freed += uint64(freed)
	shm.Fence()
	ts.waits(g.topic).Active().Mark(l.Number)
	return true
}

// lastOf tells which provider had begun a call last that waits again; 0: none.
func (f *function) lastOf(call callOf) uint16 {
	for l, begun := range f.begun {
		if l.Number == call.lane {
			return begun[call.message].member
		}
	}
	return 0
}

// withdrawCalls ends the calls of a caller that has gone which no provider has taken.
func (ts *Topics) withdrawCalls(l *Lane) {
	for _, g := range l.Topic.groups {
		if g == nil {
			continue
		}
		if a, ok := g.area(l.Number); ok {
			l.withdrawIn(a)
		}
	}
	crashpoint.At("broker-calls-withdrawn")
}

func (l *Lane) withdrawIn(a shm.GroupLane) {
	for k := uint64(0); l.File.There() && k < l.View.Slots(); k++ {
		if i := l.View.Seq(k); i != 0 {
			a.Drop(i)
		}
	}
}
