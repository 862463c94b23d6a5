package broker_test

import (
	"context"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// spill writes a spill of refs into a storage.
func (s storage) spill(t *testing.T, refs []protocol.Ref) {
	t.Helper()
	data, err := protocol.AppendSpill(nil, refs, nil)
	require.NoError(t, err)
	copy(s.region.Bytes(0, uint64(len(data))), data)
}

// honest is a client beside the liar, with the time that its calls have.
func honest(t *testing.T, b *served) (context.Context, *client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	c, err := client.Connect(ctx, client.WithAddress(b.socket))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return ctx, c
}

func adopted(p *peer) int {
	n := 0
	for _, r := range list[broker.TopicRow](p, protocol.ListTopics, "") {
		n += r.Adopted
	}
	return n
}

func TestTakingOverALiarsLaneTakesBoundedTime(t *testing.T) {
	b := serve(t, nil)
	staying, liar := connect(t, b.socket, "staying"), connect(t, b.socket, "liar")
	many := topicOf("many")
	many.Depth = ptr(uint32(255))
	staying.open(many)
	w := liar.writer(liar.open(topicOf("many")))
	s := liar.alloc(4 << 20)
	refs := make([]protocol.Ref, protocol.MaxRefs)
	for i := range refs {
		refs[i] = s.Ref
	}
	refs[len(refs)-1].Generation++ // the last cannot be held
	s.spill(t, refs)
	for range 200 {
		w.post("", protocol.SlotSpilled, []protocol.Ref{s.Ref})
	}
	w.post("", 0, []protocol.Ref{s.Ref})
	liar.must(protocol.OpBye, struct{}{}, nil)
	require.Zero(t, adopted(staying), "it has named enough")
}

func TestStampsToComeOfADeadLiarDoNotKeepItsMessages(t *testing.T) {
	b := serve(t, nil)
	liar, honest := connect(t, b.socket, "liar"), connect(t, b.socket, "honest")
	info := honest.open(topicOf("shared"))
	w := liar.writer(liar.open(topicOf("shared")))
	s, x := liar.alloc(4096), honest.alloc(4096)
	for range info.Depth {
		i := w.post("", 0, []protocol.Ref{s.Ref})
		w.lane.SetStamp(i, math.MaxUint64)
	}
	liar.must(protocol.OpBye, struct{}{}, nil)
	require.EqualValues(t, info.Depth, adopted(honest))
	writes := honest.writer(info)
	for range info.Depth {
		writes.post("", 0, []protocol.Ref{x.Ref})
	}
	eventually(t, "newer messages take their place", func() bool { return adopted(honest) == 0 })
}

// The broker reads a spill where its owner has taken the pages away.
func TestSpillInAFileThatWasCutDoesNotEndTheBroker(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.MemoryDir = t.TempDir() })
	staying, liar := connect(t, b.socket, "staying"), connect(t, b.socket, "liar")
	staying.open(topicOf("shared"))
	w := liar.writer(liar.open(topicOf("shared")))
	s := liar.alloc(4096)
	s.spill(t, []protocol.Ref{s.Ref})
	w.post("", protocol.SlotSpilled, []protocol.Ref{s.Ref})
	fds, err := liar.call(protocol.OpSegment, protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial, Write: true}, nil)
	require.NoError(t, err)
	defer fds[0].Close()
	require.NoError(t, os.Truncate("/proc/self/fd/"+strconv.Itoa(fds[0].Int()), 0))
	liar.must(protocol.OpBye, struct{}{}, nil)
	require.Zero(t, adopted(staying))
}

func TestStreamsThatWaitForALiarAreReleasedByItsEnd(t *testing.T) {
	b := serve(t, nil)
	for _, word := range []uint64{0, 7, protocol.StreamPoison - 1, protocol.StreamPoison, 1 << 63, 3 << 62, math.MaxUint64} {
		liar := connect(t, b.socket, "liar")
		at := uint64(protocol.SessionStreams)
		liar.file.Store64(at, word)
		liar.must(protocol.OpBye, struct{}{}, nil)
		got := liar.file.Load64(at)
		require.NotZero(t, got&protocol.StreamPoison, "%#x", word)
		// A stream waits until this is so, for a value below the poison.
		require.GreaterOrEqual(t, int64(got-(protocol.StreamPoison-1)), int64(0), "%#x became %#x", word, got)
	}
}

func TestReceiveEndsInTimeBesideWhatCannotBeRead(t *testing.T) {
	b := serve(t, nil)
	ctx, c := honest(t, b)
	const depth = 1<<16 - 1
	topic, err := c.Topic(ctx, "shared", client.Depth(depth), client.Description(64))
	require.NoError(t, err)
	liar := connect(t, b.socket, "liar")
	w := liar.writer(liar.open(topicOf("shared")))
	r, err := topic.Reader(ctx)
	require.NoError(t, err)
	defer r.Close()
	for i := uint64(1); i < depth; i++ {
		w.lane.Write(i, &shm.SlotHead{Stamp: sys.Monotonic(), Body: math.MaxUint32}, nil)
		w.lane.Publish(i)
	}
	over, cancel := context.WithTimeout(ctx, time.Nanosecond)
	defer cancel()
	<-over.Done()
	_, err = r.Receive(over)
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.Less(t, r.Lost(), uint64(depth-1), "it did not pass over all of them")
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	defer x.Release()
	require.NoError(t, topic.Send(ctx, x))
	m, err := r.Receive(ctx)
	require.NoError(t, err, "what follows is received")
	m.Release()
}

// liedHeads are what a writer may say of its last message without having sent it.
var liedHeads = []uint64{1 << 52, 1 << 63, math.MaxUint64}

func TestQueueIsCountedAndEmptiedBesideALaneWhoseHeadLies(t *testing.T) {
	b := serve(t, nil)
	ctx, c := honest(t, b)
	q, err := c.Queue(ctx, "work")
	require.NoError(t, err)
	liar := connect(t, b.socket, "liar")
	lane := liar.writer(liar.open(queueOf("work")))
	for _, head := range liedHeads {
		liar.file.Store64(lane.at+protocol.LaneHead, head)
		x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
		require.NoError(t, err)
		require.NoError(t, q.Put(ctx, x))
		x.Release()
		n, err := q.Len(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		m, err := q.Get(ctx)
		require.NoError(t, err)
		m.Release()
	}
}

func TestReadersStartBesideALaneWhoseHeadLies(t *testing.T) {
	b := serve(t, nil)
	ctx, c := honest(t, b)
	topic, err := c.Topic(ctx, "shared")
	require.NoError(t, err)
	liar := connect(t, b.socket, "liar")
	lane := liar.writer(liar.open(topicOf("shared")))
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	defer x.Release()
	require.NoError(t, topic.Send(ctx, x))
	for _, head := range liedHeads {
		liar.file.Store64(lane.at+protocol.LaneHead, head)
		for _, start := range []client.Start{client.StartAll, client.StartLast} {
			r, err := topic.Reader(ctx, start)
			require.NoError(t, err)
			m, err := r.Receive(ctx)
			require.NoError(t, err)
			m.Release()
			r.Close()
		}
	}
}
