package integration

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// pong answers messages of out/aa on back/aa in another process, until it is told
// to end: hand-over there and back, for tests that watch it go on.
type pong struct {
	t      *testing.T
	ctx    context.Context
	c      *client.Client
	out    *client.Topic
	back   *client.Topic
	reader *client.Reader
	p      *testkit.Process
	id     int
}

func newPong(t *testing.T, b *testkit.Broker) *pong {
	k := &pong{t: t, ctx: testkit.Context(t), c: b.Connect()}
	k.p = b.Start("echo", 1)
	k.p.Next(new(string))
	var err error
	k.out, err = k.c.Topic(k.ctx, echoName("out", 0))
	require.NoError(t, err)
	k.back, err = k.c.Topic(k.ctx, echoName("back", 0))
	require.NoError(t, err)
	k.reader, err = k.back.Reader(k.ctx)
	require.NoError(t, err)
	return k
}

func (k *pong) rounds(n int) {
	k.t.Helper()
	for range n {
		seed := seedOf("pong", k.id)
		x, err := filled(k.ctx, k.c, 64, seed)
		require.NoError(k.t, err)
		require.NoError(k.t, k.out.Send(k.ctx, x))
		x.Release()
		m, err := k.reader.Receive(k.ctx)
		require.NoError(k.t, err)
		words, err := client.Slice[uint64](m.Tensor())
		require.NoError(k.t, err)
		require.NoError(k.t, verify(words, seed))
		m.Release()
		k.id++
	}
}

// lacksBroker makes a call that needs a broker, which fails and ends no session.
func (k *pong) lacksBroker() {
	k.t.Helper()
	_, err := k.c.Topic(shortly(k.t), "new")
	require.ErrorIs(k.t, err, protocol.ErrBrokerLost)
	require.NotErrorIs(k.t, err, protocol.ErrSessionLost)
}

func TestClientsHandOverWhileTheirBrokerIsDead(t *testing.T) {
	b := testkit.StartBroker(t)
	k := newPong(t, b)
	k.rounds(20)
	b.Kill()
	k.rounds(2000)
	k.lacksBroker()
	b.Restart()
	k.rounds(20)
	// What needs a broker works again, without a word from the application.
	topic, err := k.c.Topic(k.ctx, "new")
	require.NoError(t, err)
	require.NoError(t, topic.Close())
	k.rounds(20)
	k.p.Done()
	testkit.AuditKept(t, b)
}

func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// Everything that living processes map is still there under a new broker: names,
// topics with their messages and numbers, queues and claims, leases, and what is
// held; a second and a third time, too.
func TestNewBrokerTakesOverWhatItsClientsHave(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect(client.WithName("staying"))
	// Each kind of thing has a message of a session that has ended.
	for _, cfg := range []sendConfig{
		{channel: channel{Topic: "news", Depth: 4}, From: "dead", Count: 3, Words: 256},
		{channel: channel{Queue: "work", Depth: 8, Redeliver: true}, From: "dead", Count: 3, Words: 256},
	} {
		s := ready(b, cfg)
		s.Tell("go")
		s.Next(new(int))
		s.Ended()
		testkit.Gone(t, b, s.PID())
	}
	_, err := publish(ctx, c, "weights", 1)
	require.NoError(t, err)
	_, err = publish(ctx, c, "weights", 2)
	require.NoError(t, err)
	topic, err := c.Topic(ctx, "news")
	require.NoError(t, err)
	late, err := topic.Reader(ctx, client.StartAll)
	require.NoError(t, err)
	info := topic.Info()
	// A reader that has taken one message of the dead has its memory mapped, so that the
	// others survive too.
	first, err := late.Receive(ctx)
	require.NoError(t, err)
	work, err := c.Queue(ctx, "work")
	require.NoError(t, err)
	taker := take(b, takeConfig{channel: channel{Queue: "work"}, Ask: true})
	taker.Next(new(taken))
	held, err := work.Get(ctx)
	require.NoError(t, err)
	w, err := c.Get(ctx, "weights")
	require.NoError(t, err)
	x, err := filled(ctx, c, 64, 1)
	require.NoError(t, err)
	h, err := x.Handle(ctx, client.LeaseFor(time.Hour))
	require.NoError(t, err)
	x.Release()

	for round := range 3 {
		b.Kill()
		b.Restart()
		require.NoError(t, verifyBundle(w, 2))
		_, err = verifyMessage(held)
		require.NoError(t, err)
		same, err := c.Topic(ctx, "news", client.Depth(4))
		require.NoError(t, err)
		require.Equal(t, info.ID, same.Info().ID)
		require.NoError(t, same.Close())
		again, err := c.Get(ctx, "weights")
		require.NoError(t, err)
		require.EqualValues(t, 2, again.Revision)
		require.NoError(t, verifyBundle(again, 2))
		again.Release()
		y, err := c.Open(ctx, h)
		require.NoError(t, err)
		words, err := client.Slice[uint64](y)
		require.NoError(t, err)
		require.NoError(t, verify(words, 1))
		y.Release()
		d, err := b.TryConnect() // newcomers are served as before
		require.NoError(t, err)
		again, err = d.Get(ctx, "weights")
		require.NoError(t, err, "round %d", round)
		require.NoError(t, verifyBundle(again, 2))
		again.Release()
		require.NoError(t, d.Close())
		testkit.Audit(t, b)
	}
	// Messages of the dead sender, kept through three brokers.
	_, err = verifyMessage(first)
	require.NoError(t, err)
	first.Release()
	for id := 1; id < 3; id++ {
		m, err := late.Receive(ctx)
		require.NoError(t, err)
		got, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, note{"dead", id, seedOf("dead", id)}, got)
		m.Release()
	}
	rev, err := publish(ctx, c, "weights", 3)
	require.NoError(t, err)
	require.EqualValues(t, 3, rev, "revisions count on")
	// The item that the other taker has is its own until it dies.
	m, err := work.TryGet(ctx)
	require.NoError(t, err)
	require.NotNil(t, m)
	m.Release()
	m, err = work.TryGet(ctx)
	require.NoError(t, err)
	require.Nil(t, m)
	taker.Kill()
	m, err = work.Get(ctx)
	require.NoError(t, err)
	_, err = verifyMessage(m)
	require.NoError(t, err)
	m.Release()
	held.Release()
	w.Release()
	require.NoError(t, c.ReleaseHandle(ctx, h))
	require.NoError(t, c.Delete(ctx, "weights"))
	require.NoError(t, late.Close())
	require.NoError(t, topic.Close())
	require.NoError(t, work.Close())
	testkit.AuditKept(t, b)
}

// Sessions that end while there is no broker are ended by the next one.
func TestSessionsOfProcessesThatDieBesideTheirBrokerEnd(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	k := channel{Queue: "work", Depth: 4, Redeliver: true}
	q, err := k.openQueue(ctx, c)
	require.NoError(t, err)
	taker := take(b, takeConfig{channel: k, Ask: true})
	s := ready(b, sendConfig{channel: k, From: "s", Count: 3, Words: 256, Stay: true})
	s.Tell("go")
	s.Next(new(int))
	taker.Next(new(taken))
	setter := b.Start("publish", publishConfig{Name: "w", Revisions: 2})
	setter.Next(new(uint64))
	ephemeral := b.Start("publish", publishConfig{Name: "e", Revisions: 1, Ephemeral: true})
	ephemeral.Next(new(uint64))
	unread := b.Start("publish", publishConfig{Name: "unread", Revisions: 1})
	unread.Next(new(uint64))
	got, err := c.Get(ctx, "w") // mapped here, so it survives
	require.NoError(t, err)
	b.Kill()
	for _, p := range []*testkit.Process{taker, s, setter, ephemeral, unread} {
		p.Kill()
	}
	b.Restart()
	testkit.Gone(t, b, taker.PID(), s.PID(), setter.PID(), ephemeral.PID(), unread.PID())
	testkit.Audit(t, b)
	got.Release()
	got, err = c.Get(ctx, "w")
	require.NoError(t, err)
	require.NoError(t, verifyBundle(got, 2))
	got.Release()
	_, err = c.Get(context.Background(), "e")
	require.ErrorIs(t, err, protocol.ErrNotFound)
	_, err = c.Get(context.Background(), "unread")
	require.ErrorIs(t, err, protocol.ErrNotFound)
	testkit.Until(t, "the log names the name that is lost", func() (bool, string) {
		return strings.Contains(b.Process().Log(), `"a name is lost: no process that lives has the memory of its tensors" event=memory name=unread `), b.Process().Log()
	})
	// Items whose memory no living process had mapped are gone with it; the queue is
	// usable, and no taker waits for what cannot come.
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 64, newNote("me", 0)))
	for {
		m, err := q.Get(ctx)
		require.NoError(t, err)
		k, err := verifyMessage(m)
		require.NoError(t, err)
		m.Release()
		if k.From == "me" {
			break
		}
	}
	require.NoError(t, c.Delete(ctx, "w"))
	require.NoError(t, q.Close())
	testkit.AuditKept(t, b)
}

// Memory that a process kept empty holds nothing, and is no loss.
func TestEmptyMemoryThatNoClientHandsOverIsNoLoss(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	setter := b.Start("publish", publishConfig{Name: "w", Revisions: 1, Warm: true})
	setter.Next(new(uint64))
	got, err := c.Get(ctx, "w") // mapped here, so it survives
	require.NoError(t, err)
	b.Kill()
	setter.Kill()
	b.Restart()
	testkit.Gone(t, b, setter.PID())
	require.NoError(t, verifyBundle(got, 1))
	got.Release()
	require.NoError(t, c.Delete(ctx, "w"))
	testkit.AuditEmpty(t, b, c)
	require.NotContains(t, b.Process().Log(), "its tensors are gone")
}

// A process that is stopped while brokers change keeps what it holds, and joins
// the new one when it goes on.
func TestStoppedClientKeepsWhatItHoldsAcrossBrokers(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	k := channel{Topic: "t", Depth: 2}
	topic, err := k.openTopic(ctx, c)
	require.NoError(t, err)
	p := b.Start("hold", k)
	p.Next(new(string))
	require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 256, newNote("me", 0)))
	p.Next(new(string))
	p.Stop()
	b.Kill()
	b.Restart()
	// The broker waits some seconds for sessions that are alive; then it goes on.
	for id := 1; id <= 500; id++ {
		require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 256, newNote("me", id)))
	}
	testkit.Until(t, "the broker serves", func() (bool, string) {
		_, err := c.Topic(shortly(t), "other")
		return err == nil, fmt.Sprint(err)
	})
	testkit.Audit(t, b)
	p.Cont()
	testkit.Until(t, "it is known what it holds", func() (bool, string) { // it alone has its refcounts
		h := testkit.Look(t, b)
		held := 0
		for _, s := range h.Storages {
			for _, holder := range s.Holders {
				if holder.PID == p.PID() {
					held++
				}
			}
		}
		return held == 1, h.String()
	})
	p.Tell("look")
	var got received
	p.Next(&got)
	require.GreaterOrEqual(t, got.ID, 499)
	p.Done()
	require.NoError(t, topic.Close())
	testkit.AuditKept(t, b)
}

// Without a living client there is nothing to take over: a new instance begins.
func TestBrokerWithoutSurvivorsBeginsAnew(t *testing.T) {
	b := testkit.StartBroker(t)
	p := b.Start("publish", publishConfig{Name: "w", Revisions: 1})
	p.Next(new(uint64))
	b.Kill()
	p.Kill()
	b.Restart()
	c := b.Connect()
	_, err := c.Get(context.Background(), "w")
	require.ErrorIs(t, err, protocol.ErrNotFound)
	testkit.AuditEmpty(t, b, c)
}

// With files in a directory names outlive every process.
func TestNamesInAMemoryDirectoryOutliveTheirBroker(t *testing.T) {
	for _, how := range []string{"ended", "killed"} {
		t.Run(how, func(t *testing.T) {
			memory := t.TempDir()
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = memory })
			p := b.Start("publish", publishConfig{Name: "weights/actor", Revisions: 3})
			p.Next(new(uint64))
			if how == "ended" {
				p.Done()
				b.End()
			} else {
				b.Kill()
				p.Kill()
			}
			b.Restart()
			c := b.Connect()
			ctx := testkit.Context(t)
			w, err := c.Get(ctx, "weights/actor")
			require.NoError(t, err)
			require.EqualValues(t, 3, w.Revision)
			require.NoError(t, verifyBundle(w, 3))
			testkit.Audit(t, b)
			w.Release()
			require.NoError(t, c.Delete(ctx, "weights/actor"))
			testkit.AuditEmpty(t, b, c)
		})
	}
}

// TestBrokerKilledUnderLoad kills the broker again and again while processes work:
// they go on, a new broker takes over, at rest every count is what is named, and
// no job is lost.
func TestBrokerKilledUnderLoad(t *testing.T) {
	b := testkit.StartBroker(t)
	k := newCampaign(t, b)
	k.everybodyMoves()
	for i := range max(5, kills(t, 100)/10) {
		for range k.random.Intn(200) {
			k.listenAll()
		}
		b.Kill()
		b.Restart()
		k.everybodyMoves()
		testkit.Audit(t, b)
		if i%5 == 4 {
			k.rest()
		}
	}
	k.finish()
}

// TestBrokerKilledTogetherWithAClient kills a client while there is no broker. Of
// what the dead client had sent, that may be lost whose memory no living process had
// mapped; nothing else, and all others go on.
func TestBrokerKilledTogetherWithAClient(t *testing.T) {
	b := testkit.StartBroker(t)
	k := newCampaign(t, b)
	k.everybodyMoves()
	for i := range max(5, kills(t, 100)/10) {
		for range k.random.Intn(200) {
			k.listenAll()
		}
		b.Kill()
		at := k.random.Intn(len(k.members))
		role := k.members[at].role
		k.killNow(at)
		b.Restart()
		k.everybodyMoves()
		testkit.Audit(t, b)
		k.add(role)
		k.everybodyMoves()
		if i%5 == 4 {
			k.rest()
		}
	}
	k.mayLose = k.killed["worker"]*results.Depth + k.killed["loader"]*jobs.Depth
	k.finish()
}

// The op that a dying broker may or may not have carried out is asked again.
func TestCallInFlightWhenTheBrokerDiesIsAnsweredByTheNext(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	for i := range 10 {
		b.Process().Stop()
		got := make(chan error, 4)
		go func() { _, err := c.Topic(ctx, fmt.Sprint("t", i)); got <- err }()
		go func() { _, err := publish(ctx, c, fmt.Sprint("n", i), 1); got <- err }()
		go func() {
			q, err := c.Queue(ctx, fmt.Sprint("q", i))
			if err == nil {
				err = sendNoted(ctx, c, queueSender{q}, 1<<18, newNote("me", i))
			}
			got <- err
		}()
		go func() {
			x, err := filled(ctx, c, 16, 1)
			if err == nil {
				_, err = x.Handle(ctx)
				x.Release()
			}
			got <- err
		}()
		b.Kill()
		b.Restart()
		for range 4 {
			require.NoError(t, <-got)
		}
	}
	names := testkit.List[broker.NameRow](t, b, protocol.ListNames)
	require.Len(t, names, 10)
	testkit.AuditKept(t, b)
}

// What is given back while no broker is there is told to the next one, also when that
// comes later than a Close waits.
func TestWhatIsLeftWithoutABrokerIsLeftForTheNext(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	sends, leaves := b.Connect(), b.Connect()
	at := func(c *client.Client, name string, opts ...client.TopicOption) *client.Topic {
		topic, err := c.Topic(ctx, name, opts...)
		require.NoError(t, err)
		return topic
	}
	send := func(topic *client.Topic, c *client.Client) {
		x, err := filled(ctx, c, 1<<17, 1)
		require.NoError(t, err)
		require.NoError(t, topic.Send(ctx, x))
		x.Release()
	}
	all := at(sends, "all", client.Overwrite(false), client.Depth(1))
	reader, err := at(leaves, "all").Reader(ctx)
	require.NoError(t, err)
	send(all, sends)
	m, err := reader.Receive(ctx)
	require.NoError(t, err)
	m.Release()
	mine := at(leaves, "mine", client.Linger(0))
	send(mine, leaves)

	b.Kill()
	closed := make(chan error, 2)
	go func() { closed <- reader.Close() }()
	go func() { closed <- mine.Close() }()
	for range 2 {
		require.ErrorIs(t, <-closed, protocol.ErrBrokerLost)
	}
	b.Restart()

	for range 3 {
		send(all, sends) // for no reader is left
	}
	mine = at(leaves, "mine")
	send(mine, leaves)
	require.NoError(t, mine.Close())
	require.NoError(t, all.Close())
	testkit.AuditKept(t, b)
}

// Readers that come and go while brokers die are gone at the end: one that a dying
// broker made and could not acknowledge is not left in its group, where senders would wait
// for it.
func TestReadersComeAndGoWhileBrokersDie(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "all", client.Overwrite(false), client.Depth(2))
	require.NoError(t, err)
	ended, come := make(chan struct{}), make(chan error)
	var joined atomic.Int64
	for range 4 {
		go func() {
			for {
				select {
				case <-ended:
					come <- nil
					return
				default:
				}
				r, err := topic.Reader(ctx, client.Group("g"))
				if err == nil {
					joined.Add(1)
					var m *client.Message
					if m, err = r.TryReceive(ctx); m != nil {
						m.Release()
					}
					if e := r.Close(); err == nil {
						err = e
					}
				}
				if err != nil {
					come <- err
					return
				}
			}
		}()
	}
	for range 20 {
		x, err := filled(ctx, c, 64, 1)
		require.NoError(t, err)
		if err := topic.Send(shortly(t), x); err != nil {
			require.ErrorIs(t, err, protocol.ErrFull)
		}
		x.Release()
		before := joined.Load()
		testkit.Until(t, "readers come", func() (bool, string) { return joined.Load() > before+10, "" })
		b.Kill()
		b.Restart()
	}
	close(ended)
	for range 4 {
		require.NoError(t, <-come)
	}
	for range 4 {
		x, err := filled(ctx, c, 64, 1)
		require.NoError(t, err)
		require.NoError(t, topic.Send(ctx, x)) // for no reader is left
		x.Release()
	}
	testkit.AuditKept(t, b)
}
