package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func functionOf(name string, create bool) protocol.TopicOpenRequest {
	return protocol.TopicOpenRequest{Name: name, Kind: protocol.KindFunction, Create: create}
}

// provider is a session that reads in the group of a function.
type provider struct {
	*peer
	info   protocol.TopicInfo
	joined protocol.TopicReadReply
	group  shm.Region
	fd     *sys.FD
}

const aFunction = `{"parameters":[{"name":"x"}],"doc":"adds"}`

func provide(t *testing.T, socket, session, name string, change func(*protocol.FunctionRegister)) (*provider, error) {
	p := &provider{peer: connect(t, socket, session)}
	return p, p.provide(name, change)
}

func (p *provider) provide(name string, change func(*protocol.FunctionRegister)) error {
	p.info = p.open(functionOf(name, true))
	fds, err := p.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(p.info), Group: ptr(protocol.GroupOfFunction)}, &p.joined)
	if err != nil {
		return err
	}
	p.t.Cleanup(func() { wire.CloseAll(fds) })
	p.fd = fds[0]
	p.group = p.mapRegion(fds[0], int(protocol.GroupBytes(p.info.Slots)), true)
	r := protocol.FunctionRegister{TopicRef: ref(p.info), Reader: p.joined.Reader, Description: aFunction}
	if change != nil {
		change(&r)
	}
	_, err = p.call(protocol.OpFunctionRegister, r, nil)
	return err
}

func (p *provider) area(lane uint32) shm.GroupLane {
	a, err := shm.NewGroupLane(p.group, lane, p.info.Slots)
	require.NoError(p.t, err)
	return a
}

func (p *provider) takes(lane uint32, head uint64) uint64 {
	i, hint, ok := p.area(lane).Next(head)
	require.True(p.t, ok)
	require.True(p.t, p.area(lane).Take(i, hint, p.joined.Member, true))
	return i
}

// functionWord reads a word of a function's record.
func (p *peer) functionWord(info protocol.TopicInfo, at uint64) uint32 {
	return p.broker.Load32(protocol.BrokerFunctions + uint64(info.Topic)*protocol.FunctionRecordSize + at)
}

func (p *peer) providers(info protocol.TopicInfo) uint32 {
	return p.functionWord(info, protocol.FunctionProviders)
}

func state(a shm.GroupLane, i uint64) uint8 {
	_, _, s := protocol.SplitClaim(a.Claim(i))
	return s
}

func TestFunctionIsRegisteredListedAndFound(t *testing.T) {
	b := serve(t, nil)
	p, err := provide(t, b.socket, "worker", "vision/normalize@1.2", func(r *protocol.FunctionRegister) { r.Concurrency = 4 })
	require.NoError(t, err)
	require.EqualValues(t, p.hello.Slot, p.joined.Member, "a caller knows the provider by its claim")
	c := connect(t, b.socket, "caller")
	require.Equal(t, "vision/normalize@1.2", c.open(functionOf("vision/normalize", false)).Name, "the newest version")
	require.EqualValues(t, 1, c.providers(p.info))
	require.EqualValues(t, 4, c.functionWord(p.info, protocol.FunctionConcurrency))
	at := protocol.BrokerFunctions + uint64(p.info.Topic)*protocol.FunctionRecordSize
	n := uint64(c.functionWord(p.info, protocol.FunctionBytes))
	require.Equal(t, aFunction, string(c.broker.Bytes(at+protocol.FunctionDescription, n)))

	rows := list[broker.FunctionRow](c, protocol.ListFunctions, "vision/*")
	require.Len(t, rows, 1)
	require.Equal(t, "worker", rows[0].Providers[0].Name)
	require.Empty(t, list[broker.TopicRow](c, protocol.ListTopics, "*"), "a function is no topic")

	e := c.refused(protocol.CodeNotFound, protocol.OpTopicOpen, functionOf("vision/normalise", false))
	require.Contains(t, e.Message, "vision/normalize@1.2")
	p.bye()
	require.EqualValues(t, 0, c.providers(p.info))
}

func TestNewestVersionIsFound(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "worker")
	for _, v := range []string{"f", "f@9", "f@10", "f@2.1"} {
		require.NoError(t, (&provider{peer: p}).provide(v, nil))
	}
	c := connect(t, b.socket, "caller")
	require.Equal(t, "f", c.open(functionOf("f", false)).Name, "the one of exactly this name")
	require.Equal(t, "f@2.1", c.open(functionOf("f@2.1", false)).Name)
	require.NoError(t, (&provider{peer: p}).provide("g@9", nil))
	require.NoError(t, (&provider{peer: p}).provide("g@10", nil))
	require.Equal(t, "g@10", c.open(functionOf("g", false)).Name)
	c.refused(protocol.CodeInvalid, protocol.OpTopicOpen, functionOf("g@", false))
	c.refused(protocol.CodeInvalid, protocol.OpTopicOpen, functionOf("g@1..2", true))
	c.refused(protocol.CodeInvalid, protocol.OpTopicOpen, functionOf("g.h", true))
}

func TestSecondProviderMustAgree(t *testing.T) {
	b := serve(t, nil)
	_, err := provide(t, b.socket, "one", "f", nil)
	require.NoError(t, err)
	two, err := provide(t, b.socket, "two", "f", func(r *protocol.FunctionRegister) {
		r.Description = `{"doc":"other words", "parameters":[{"name":"x"}]}`
	})
	require.NoError(t, err, "documentation and the order of fields may differ")
	require.EqualValues(t, 2, two.providers(two.info))
	for name, change := range map[string]func(*protocol.FunctionRegister){
		"signature": func(r *protocol.FunctionRegister) { r.Description = `{"parameters":[]}` },
		"options":   func(r *protocol.FunctionRegister) { r.Idempotent = true },
	} {
		_, err := provide(t, b.socket, "three", "f", change)
		require.Equal(t, protocol.CodeConflict, protocol.CodeOf(err), name)
		require.Contains(t, err.Error(), "one (pid", name)
		if name == "signature" {
			require.Contains(t, err.Error(), " as "+aFunction+", and here as "+`{"parameters":[]}`)
		}
	}
	for name, change := range map[string]func(*protocol.FunctionRegister){
		"not JSON":    func(r *protocol.FunctionRegister) { r.Description = "x" },
		"no object":   func(r *protocol.FunctionRegister) { r.Description = "[]" },
		"concurrency": func(r *protocol.FunctionRegister) { r.Concurrency = protocol.MaxConcurrency + 1 },
	} {
		_, err := provide(t, b.socket, "four", "f", change)
		require.Equal(t, protocol.CodeInvalid, protocol.CodeOf(err), name)
	}
	require.Equal(t, protocol.CodeConflict, protocol.CodeOf((&provider{peer: two.peer}).provide("f", nil)), "twice in a session")
}

func TestOverrideEndsTheProvidersThatAreThere(t *testing.T) {
	b := serve(t, nil)
	old, err := provide(t, b.socket, "old", "f", nil)
	require.NoError(t, err)
	before := old.functionWord(old.info, protocol.FunctionRegistration)
	bell := old.bells.Parking(old.hello.Slot).Begin()
	_, err = provide(t, b.socket, "new", "f", func(r *protocol.FunctionRegister) { r.Override, r.Description = true, `{}` })
	require.NoError(t, err)
	require.EqualValues(t, 1, old.providers(old.info))
	require.Greater(t, old.functionWord(old.info, protocol.FunctionRegistration), before)
	require.NotEqual(t, bell, old.rung())

	var gone protocol.FunctionRemoved
	old.must(protocol.OpFunctionRemove, protocol.FunctionByName{Name: "f"}, &gone)
	require.Equal(t, 1, gone.Providers)
	require.EqualValues(t, 0, old.providers(old.info))
	old.refused(protocol.CodeNotFound, protocol.OpFunctionRemove, protocol.FunctionByName{Name: "g"})
}

func TestCallsOfAProviderThatEndedAreFreedOrOver(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		b := serve(t, nil)
		c := connect(t, b.socket, "caller")
		p, err := provide(t, b.socket, "worker", "f", func(r *protocol.FunctionRegister) { r.Idempotent = idempotent })
		require.NoError(t, err)
		other, err := provide(t, b.socket, "other", "f", func(r *protocol.FunctionRegister) { r.Idempotent = idempotent })
		require.NoError(t, err)
		c.open(functionOf("f", false))
		w := c.writer(p.info)
		for range 4 {
			w.post("call", 0, nil)
		}
		waiting, claimed, begun := p.takes(w.num, 4), p.takes(w.num, 4), p.takes(w.num, 4)
		require.True(t, p.area(w.num).Acknowledge(waiting, p.joined.Member)) // not begun, since its time was over
		require.True(t, p.area(w.num).Begin(begun, p.joined.Member))
		require.False(t, p.area(w.num).Begin(begun, p.joined.Member))
		bell := c.bells.Parking(c.hello.Slot).Begin()
		p.bye()

		a := other.area(w.num)
		require.EqualValues(t, protocol.ClaimDone, state(a, waiting))
		require.EqualValues(t, protocol.ClaimFree, state(a, claimed))
		require.EqualValues(t, protocol.ClaimFree, state(a, 4))
		require.NotEqual(t, bell, c.rung(), "its caller looks")
		if !idempotent {
			require.EqualValues(t, protocol.ClaimDone, state(a, begun))
		} else {
			_, times, s := protocol.SplitClaim(a.Claim(begun))
			require.EqualValues(t, protocol.ClaimFree, s)
			require.EqualValues(t, 1, times)
		}
		var fate protocol.FateReply
		c.must(protocol.OpFunctionFate, protocol.FunctionFate{TopicRef: ref(p.info), Member: p.joined.Member}, &fate)
		require.Equal(t, "worker", fate.Name)
		require.False(t, fate.Lives)
		require.Equal(t, "its session was closed", fate.Reason)
		c.must(protocol.OpFunctionFate, protocol.FunctionFate{TopicRef: ref(p.info), Member: other.joined.Member}, &fate)
		require.Equal(t, "other", fate.Name)
		require.True(t, fate.Lives)
		require.Equal(t, claimed, other.takes(w.num, 4), "the hint has gone back")
	}
}

func TestCallsOfACallerThatEndedAreWithdrawn(t *testing.T) {
	b := serve(t, nil)
	c := connect(t, b.socket, "caller")
	p, err := provide(t, b.socket, "worker", "f", nil)
	require.NoError(t, err)
	c.open(functionOf("f", false))
	w := c.writer(p.info)
	for range 3 {
		w.post("call", 0, nil)
	}
	begun, claimed := p.takes(w.num, 3), p.takes(w.num, 3)
	require.True(t, p.area(w.num).Begin(begun, p.joined.Member))
	bell := p.bells.Parking(p.hello.Slot).Begin()
	c.bye()
	a := p.area(w.num)
	require.EqualValues(t, protocol.ClaimDone, state(a, 3))
	require.NotEqual(t, bell, p.rung(), "what runs can find out that it was cancelled")
	require.True(t, a.End(begun, p.joined.Member))
	require.True(t, a.Acknowledge(claimed, p.joined.Member))
	eventually(t, "the lane is gone", func() bool { return len(p.members(p.info).Lanes) == 0 })
}

func TestNewBrokerKnowsFunctionsProvidersAndCalls(t *testing.T) {
	old, socket, _ := first(t, "")
	c := connect(t, socket, "caller")
	p, err := provide(t, socket, "worker", "f@2", func(r *protocol.FunctionRegister) { r.Concurrency = 3 })
	require.NoError(t, err)
	before := p.functionWord(p.info, protocol.FunctionRegistration)
	c.open(functionOf("f", false))
	w := c.writer(p.info)
	for range 2 {
		w.post("call", 0, nil)
	}
	begun := p.takes(w.num, 2)
	require.True(t, p.area(w.num).Begin(begun, p.joined.Member))
	stray, hint, ok := p.area(w.num).Next(2)
	require.True(t, ok)
	require.True(t, p.area(w.num).Take(stray, hint, p.joined.Member+1, true), "of a provider that ended with the broker")
	require.True(t, p.area(w.num).Begin(stray, p.joined.Member+1))
	old.kill()
	made := next(t, socket, nil)
	file := handedOver{"group", p.joined.GroupID, p.fd}
	c2, p2 := c.returns(socket, file), p.returns(socket, file)
	c2.resumed()
	p2.resumed()
	made()
	require.EqualValues(t, 1, c.providers(p.info))
	require.EqualValues(t, 3, c.functionWord(p.info, protocol.FunctionConcurrency))
	require.Equal(t, before, c.functionWord(p.info, protocol.FunctionRegistration))
	require.EqualValues(t, protocol.ClaimBegun, state(p.area(w.num), begun), "it runs on")
	require.EqualValues(t, protocol.ClaimDone, state(p.area(w.num), stray), "no provider runs it")
	rows := list[broker.FunctionRow](c2, protocol.ListFunctions, "")
	require.Len(t, rows, 1)
	require.Equal(t, "f@2", rows[0].Name)
	require.Equal(t, 1, rows[0].Running)
	require.JSONEq(t, aFunction, string(rows[0].Description))
	var again protocol.FunctionRegistered
	p2.must(protocol.OpFunctionRegister, protocol.FunctionRegister{TopicRef: ref(p.info), Reader: p.joined.Reader, Description: aFunction}, &again)
	require.Equal(t, before, again.Registration, "asked again it is the same")
}

// private makes a private function, and provides it.
func private(t *testing.T, socket, session string) *provider {
	p := &provider{peer: connect(t, socket, session)}
	require.NoError(t, p.provide("", func(r *protocol.FunctionRegister) { r.Concurrency, r.Description = protocol.MaxConcurrency, `{}` }))
	return p
}

func byToken(token string) protocol.TopicOpenRequest {
	return protocol.TopicOpenRequest{Token: token, Kind: protocol.KindFunction}
}

func TestPrivateFunctionIsFoundByItsTokenAndProvidedByItsMaker(t *testing.T) {
	b := serve(t, nil)
	p := private(t, b.socket, "maker")
	require.Len(t, p.info.Token, 32)
	require.Empty(t, p.info.Name)
	other := private(t, b.socket, "maker of another")
	require.NotEqual(t, p.info.Token, other.info.Token)
	require.NotEqual(t, p.info.ID, other.info.ID)
	c := connect(t, b.socket, "caller")
	require.Equal(t, p.info.ID, c.open(byToken(p.info.Token)).ID)
	require.EqualValues(t, 1, c.providers(p.info))
	require.Empty(t, list[broker.FunctionRow](c, protocol.ListFunctions, ""), "it has no name to be listed by")
	rows := list[broker.TopicRow](c, protocol.ListTopics, "")
	require.Len(t, rows, 2)
	require.Equal(t, protocol.KindFunction, rows[0].Kind)

	c.refused(protocol.CodeNotFound, protocol.OpTopicOpen, byToken("000102030405060708090a0b0c0d0e0f"))
	c.refused(protocol.CodeNotFound, protocol.OpTopicOpen, byToken("x"))
	c.refused(protocol.CodeConflict, protocol.OpTopicOpen, protocol.TopicOpenRequest{Token: p.info.Token, Kind: protocol.KindTopic})
	c.refused(protocol.CodeInvalid, protocol.OpFunctionRemove, protocol.FunctionByName{})
	var joined protocol.TopicReadReply
	fds, err := c.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(p.info), Group: ptr(protocol.GroupOfFunction)}, &joined)
	require.NoError(t, err)
	wire.CloseAll(fds)
	for _, override := range []bool{false, true} {
		c.refused(protocol.CodePermission, protocol.OpFunctionRegister,
			protocol.FunctionRegister{TopicRef: ref(p.info), Reader: joined.Reader, Description: `{}`, Override: override})
	}
	require.EqualValues(t, 1, c.providers(p.info))

	w := c.writer(p.info)
	for range 2 {
		w.post("call", 0, nil)
	}
	begun := p.takes(w.num, 2)
	require.True(t, p.area(w.num).Begin(begun, p.joined.Member))
	a := p.area(w.num)
	p.bye()
	require.EqualValues(t, 0, c.providers(p.info))
	require.EqualValues(t, protocol.ClaimDone, state(a, begun))
	require.EqualValues(t, protocol.ClaimFree, state(a, 2), "its caller looks at the record, and ends it")
	c.bye()
	other.bye()
	left := connect(t, b.socket, "last")
	eventually(t, "both are gone", func() bool { return len(list[broker.TopicRow](left, protocol.ListTopics, "")) == 0 })
	left.refused(protocol.CodeNotFound, protocol.OpTopicOpen, byToken(p.info.Token))
}

func TestNewBrokerKnowsPrivateFunctions(t *testing.T) {
	old, socket, _ := first(t, "")
	c := connect(t, socket, "caller")
	p := private(t, socket, "maker")
	c.open(byToken(p.info.Token))
	w := c.writer(p.info)
	w.post("call", 0, nil)
	begun := p.takes(w.num, 1)
	require.True(t, p.area(w.num).Begin(begun, p.joined.Member))
	old.kill()
	made := next(t, socket, nil)
	file := handedOver{"group", p.joined.GroupID, p.fd}
	c2, p2 := c.returns(socket, file), p.returns(socket, file)
	c2.resumed()
	p2.resumed()
	made()
	require.EqualValues(t, 1, c.providers(p.info))
	require.EqualValues(t, protocol.ClaimBegun, state(p.area(w.num), begun), "it runs on")
	require.Equal(t, p.info.ID, connect(t, socket, "another").open(byToken(p.info.Token)).ID)
	require.Empty(t, list[broker.FunctionRow](c2, protocol.ListFunctions, ""))
}
