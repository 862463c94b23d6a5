package broker_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// operator is a connection that has said no hello.
func operator(t testing.TB, socket string) *peer { return &peer{t: t, w: dial(t, socket)} }

func TestPurgeDropsWhatWaitsInAQueueAndLeavesWhatIsTaken(t *testing.T) {
	b := serve(t, nil)
	p, taker, op := connect(t, b.socket, "putter"), connect(t, b.socket, "taker"), operator(t, b.socket)
	r := queueOf("work")
	r.Redeliver, r.Depth = ptr(true), ptr(uint32(4))
	info := p.open(r)
	w := p.writer(info)
	s := p.alloc(4096)
	for range 3 {
		w.post("x", 0, []protocol.Ref{s.Ref})
	}
	taker.open(r)
	var read protocol.TopicReadReply
	fds, err := taker.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("")}, &read)
	require.NoError(t, err)
	defer wire.CloseAll(fds)
	claims, err := shm.NewGroupLane(taker.mapRegion(fds[0], int(protocol.GroupBytes(info.Slots)), true), w.num, info.Slots)
	require.NoError(t, err)
	i, hint, ok := claims.Next(w.lane.Head())
	require.True(t, ok)
	require.NoError(t, taker.refcounts.Take(s.Index))
	require.True(t, claims.Take(i, hint, read.Member, true))

	rung := p.rung()
	var reply protocol.PurgeReply
	op.must(protocol.OpPurge, protocol.TopicByName{Name: "work", Kind: protocol.KindQueue}, &reply)
	require.Equal(t, protocol.PurgeReply{Kind: protocol.KindQueue, Messages: 2, Openers: 2}, reply)
	require.False(t, claims.Done(1), "the taker has it, and has not acknowledged")
	require.True(t, claims.Done(2) && claims.Done(3))
	require.True(t, claims.Acknowledge(1, read.Member))
	require.NotEqual(t, rung, p.rung(), "a putter that waits for room looks")
	require.Equal(t, protocol.EventCollect, nextOf(p, protocol.EventCollect), "and gives back what it pays for")
	require.EqualValues(t, 5, p.refcounts.Count(s.Index)+taker.refcounts.Count(s.Index), "no count was changed")
	op.must(protocol.OpPurge, protocol.TopicByName{Name: "work"}, &reply)
	require.Zero(t, reply.Messages)
	op.refused(protocol.CodeNotFound, protocol.OpPurge, protocol.TopicByName{Name: "work", Kind: protocol.KindTopic})
	op.refused(protocol.CodeNotFound, protocol.OpPurge, protocol.TopicByName{Name: "work", Namespace: "other"})
}

// nextOf reads until an event comes.
func nextOf(p *peer, event string) string {
	p.t.Helper()
	for {
		for _, raw := range p.events {
			var e protocol.Envelope
			require.NoError(p.t, json.Unmarshal(raw, &e))
			if e.Event == event {
				return e.Event
			}
		}
		p.read()
	}
}

func TestPurgeDropsWhatATopicKeepsOfTheLivingAndTheDead(t *testing.T) {
	b := serve(t, nil)
	p, gone, op := connect(t, b.socket, "lives"), connect(t, b.socket, "gone"), operator(t, b.socket)
	info := p.open(topicOf("t"))
	gone.open(topicOf("t"))
	w, old := p.writer(info), gone.writer(info)
	s, theirs := p.alloc(4096), gone.alloc(4096)
	old.post("old", 0, []protocol.Ref{theirs.Ref})
	gone.refcounts.Drop(theirs.Index)
	gone.bye()
	old.drop()
	for range 2 {
		w.post("x", 0, []protocol.Ref{s.Ref})
	}
	rows := list[broker.TopicRow](op, protocol.ListTopics, "t")
	require.Len(t, rows, 1)
	require.Equal(t, 3, rows[0].Kept)

	var reply protocol.PurgeReply
	op.must(protocol.OpPurge, protocol.TopicByName{Name: "t"}, &reply)
	require.EqualValues(t, 3, reply.Messages)
	rows = list[broker.TopicRow](op, protocol.ListTopics, "t")
	require.Zero(t, rows[0].Kept)
	require.EqualValues(t, 3, p.refcounts.Count(s.Index), "the sender goes on paying until it looks")
	eventually(t, "what only the dead had sent is free", func() bool {
		return len(list[broker.SegmentRow](op, protocol.ListSegments, "gone")) == 0
	})
	require.Equal(t, uint64(3), w.post("later", 0, nil), "the lane goes on")
	require.True(t, w.lane.Has(3))
}

func TestDeletedTopicIsClosedAndItsNameIsFree(t *testing.T) {
	b := serve(t, nil)
	p, op := connect(t, b.socket, "p"), operator(t, b.socket)
	info := p.open(queueOf("work"))
	w := p.writer(info)
	s := p.alloc(4096)
	w.post("x", 0, []protocol.Ref{s.Ref})
	var reply protocol.PurgeReply
	op.must(protocol.OpTopicDelete, protocol.TopicByName{Name: "work"}, &reply)
	require.Equal(t, protocol.PurgeReply{Kind: protocol.KindQueue, Messages: 1, Openers: 1}, reply)
	require.EqualValues(t, protocol.TopicClosed, p.broker.Load32(protocol.BrokerTopics+uint64(info.Topic)*protocol.TopicRecordSize+protocol.TopicState))
	rows := list[broker.TopicRow](op, protocol.ListTopics, "work")
	require.Len(t, rows, 1)
	require.Equal(t, []string{"", "work", "deleted"}, []string{rows[0].Name, rows[0].Former, rows[0].State})
	require.EqualValues(t, 2, p.refcounts.Count(s.Index))
	q := connect(t, b.socket, "q")
	again := q.open(queueOf("work"))
	require.NotEqual(t, info.ID, again.ID)
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: protocol.RoleNameWrite, Offset: w.at}, nil)
	w.drop()
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: info.Opening}, nil)
	require.Equal(t, 1, b.Status().Counts.Queues, "it went with its last user")
	// One that no session has open goes at once.
	q.must(protocol.OpTopicLeave, protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: again.Opening}, nil)
	require.Equal(t, 1, b.Status().Counts.Queues, "it lingers")
	op.must(protocol.OpTopicDelete, protocol.TopicByName{Name: "work", Kind: protocol.KindQueue}, &reply)
	require.Zero(t, b.Status().Counts.Queues)
	op.refused(protocol.CodeNotFound, protocol.OpTopicDelete, protocol.TopicByName{Name: "work"})
}

// The next broker finds a deleted topic as it was: without a name, with the sessions that have it open.
func TestDeletedTopicStaysDeletedAtTheNextBroker(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "memory")
	old := serve(t, func(c *broker.Config) { c.MemoryDir = memory })
	p, op := connect(t, old.socket, "p"), operator(t, old.socket)
	p.open(topicOf("t"))
	op.must(protocol.OpTopicDelete, protocol.TopicByName{Name: "t"}, nil)
	require.NoError(t, old.stop())
	b := serve(t, func(c *broker.Config) {
		c.Dir, c.MemoryDir, c.RecoverWait = filepath.Dir(old.socket), memory, time.Millisecond
	})
	op = operator(t, b.socket)
	rows := list[broker.TopicRow](op, protocol.ListTopics, "*")
	require.Len(t, rows, 1)
	require.Equal(t, []string{"", "t", "deleted"}, []string{rows[0].Name, rows[0].Former, rows[0].State})
	require.Zero(t, rows[0].Linger)
	connect(t, b.socket, "q").open(topicOf("t"))
}

func TestRevokedLeaseIsOverWhoeverMadeIt(t *testing.T) {
	b := serve(t, nil)
	p, op := connect(t, b.socket, "maker"), operator(t, b.socket)
	s := p.alloc(4096)
	var l protocol.LeaseReply
	p.must(protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}, Seconds: ptr(3600.0)}, &l)
	var reply protocol.RevokeReply
	op.must(protocol.OpLeaseRevoke, protocol.LeaseRef{Lease: l.Lease}, &reply)
	require.Equal(t, protocol.RevokeReply{Maker: "maker", Storages: 1}, reply)
	require.Zero(t, b.Status().Counts.Leases)
	p.refused(protocol.CodeExpired, protocol.OpLeaseClaim, protocol.LeaseRef{Lease: l.Lease})
	op.refused(protocol.CodeNotFound, protocol.OpLeaseRevoke, protocol.LeaseRef{Lease: l.Lease})
	require.EqualValues(t, 1, p.refcounts.Count(s.Index), "its holder keeps it")
}

func TestLoweredLimitStopsNewGrantsAndTakesNothing(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Settings = []string{"--memory=1GiB", "--no-nats=true"} })
	p, op := connect(t, b.socket, "p"), operator(t, b.socket)
	s := p.alloc(1 << 20)
	copy(s.region.Bytes(0, 5), "bytes")
	var now protocol.LimitReply
	op.must(protocol.OpLimit, protocol.Limit{Memory: ptr(uint64(128 << 10))}, &now)
	require.EqualValues(t, 128<<10, now.Memory)
	require.EqualValues(t, 1<<20, now.Granted)
	e := p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 4096, Chunks: 1})
	require.Contains(t, e.Message, "131072")
	require.Equal(t, "bytes", string(s.region.Bytes(0, 5)))
	require.EqualValues(t, 128<<10, b.Status().Memory.Limit)
	st, err := statefile.Read(filepath.Dir(b.socket))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"--no-nats=true", "--memory=131072"}, st.Settings, "a broker that stands in for this one has it")

	// More room is told to those that were refused.
	p.events = nil
	op.must(protocol.OpLimit, protocol.Limit{Memory: ptr(uint64(4 << 20)), SessionMemory: ptr(uint64(2 << 20))}, &now)
	require.Equal(t, protocol.EventRoom, nextOf(p, protocol.EventRoom))
	p.must(protocol.OpGrant, protocol.Grant{Bytes: 4096, Chunks: 1}, nil)
	require.Contains(t, p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 2 << 20, Chunks: 1}).Message, "one session may have")
	op.refused(protocol.CodeInvalid, protocol.OpLimit, protocol.Limit{Memory: ptr(uint64(1 << 20))}) // below a session's
	op.refused(protocol.CodeInvalid, protocol.OpLimit, protocol.Limit{Memory: ptr(uint64(1))})
	op.must(protocol.OpLimit, protocol.Limit{}, &now)
	require.Equal(t, []uint64{4 << 20, 2 << 20}, []uint64{now.Memory, now.SessionMemory}, "what was refused changed nothing")
	op.must(protocol.OpLimit, protocol.Limit{Memory: ptr(uint64(0)), SessionMemory: ptr(uint64(0)), DeviceMemory: ptr(uint64(1 << 30))}, &now)
	require.Greater(t, now.Memory, uint64(4<<20), "the default")
	require.EqualValues(t, 1<<30, now.DeviceMemory)
}

func TestCollectAsksEverySession(t *testing.T) {
	b := serve(t, nil)
	p, op := connect(t, b.socket, "p"), operator(t, b.socket)
	p.alloc(4096)
	var reply protocol.CollectReply
	op.must(protocol.OpCollect, nil, &reply)
	require.Equal(t, protocol.CollectReply{Sessions: 1, Granted: 4096}, reply)
	require.Equal(t, protocol.EventCollect, nextOf(p, protocol.EventCollect))
}

func TestPingTellsThatABrokerTakesOver(t *testing.T) {
	old := serve(t, nil)
	op := operator(t, old.socket)
	var reply protocol.PingReply
	op.must(protocol.OpPing, nil, &reply)
	require.Equal(t, protocol.PingReply{Instance: old.ID(), Version: "test", PID: os.Getpid(), State: protocol.BrokerServes}, reply)

	before, socket, _ := first(t, "")
	c, _ := holding(t, socket, "stopped")
	before.kill()
	next := make(chan *broker.Broker, 1)
	early := make(chan *broker.Broker, 1)
	ctx, giveUp := context.WithCancel(context.Background())
	go func() { // it waits for the client, which does not come back by itself
		b, _ := broker.New(ctx, broker.Config{Dir: filepath.Dir(socket), Memory: 1 << 30, RecoverWait: patience,
			Early: func(b *broker.Broker) { early <- b }})
		next <- b
	}()
	require.True(t, (<-early).Status().Taking)
	op = operator(t, socket)
	op.must(protocol.OpPing, nil, &reply)
	require.Equal(t, protocol.BrokerTakingOver, reply.State)
	c.kill()
	giveUp()
	if b := <-next; b != nil {
		over, end := context.WithCancel(context.Background())
		end()
		b.Serve(over)
	}
}

// Of a session it is the same as of a connection without one. One that has only ended its sending gets its reply.
func TestRequestThatChangesSomethingIsNotCarriedOutForAPeerThatHasGone(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "p")
	s := p.alloc(4096)
	w := p.writer(p.open(topicOf("t")))
	w.post("x", 0, []protocol.Ref{s.Ref})
	kept := func() int { return list[broker.TopicRow](p, protocol.ListTopics, "t")[0].Kept }
	observed := func() (n int) {
		var reply protocol.EventsReply
		p.must(protocol.OpEvents, protocol.Events{}, &reply)
		for _, e := range reply.Events {
			if e.Kind == "steered" {
				n += max(e.Times, 1)
			}
		}
		return n
	}
	for i, op := range []*peer{operator(t, b.socket), connect(t, b.socket, "operator")} {
		op.call(protocol.OpPing, nil, nil) // the broker serves the connection
		b.Held(func() {
			op.send(protocol.OpPurge, protocol.TopicByName{Name: "t"})
			op.w.Close()
		})
		eventually(t, "the broker has come to it", func() bool { return observed() == i+1 })
		require.Equal(t, 1, kept())
	}
	op := operator(t, b.socket)
	op.call(protocol.OpPing, nil, nil)
	b.Held(func() {
		op.send(protocol.OpPurge, protocol.TopicByName{Name: "t"})
		require.NoError(t, op.w.CloseWrite())
	})
	e, _ := op.read()
	require.Nil(t, e.Error)
	require.Zero(t, kept())
}
