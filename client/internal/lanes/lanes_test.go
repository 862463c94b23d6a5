package lanes_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/parttest"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// session is the parts that lanes stand on, and the lanes.
type session struct {
	*parttest.Session
	memory *memory.Memory
	topics *lanes.Topics
}

func newSession(w *parttest.World, slot uint32) *session {
	s := &session{Session: w.Session(slot)}
	s.memory = memory.New(s, s.Files, s.Life, s.Waits, s, protocol.Limits{}, false)
	s.topics = lanes.New(s, s.Files, s.Life, s.Waits, s.memory)
	s.memory.With(s.topics, nil)
	return s
}

func (s *session) open(t *testing.T) *lanes.Topic {
	t.Helper()
	topic, err := s.topics.Join(t.Context(), protocol.OpTopicOpen, func(opening uint64) any {
		return &protocol.TopicOpenRequest{Name: "t", Kind: protocol.KindTopic, Opening: opening}
	})
	require.NoError(t, err)
	return topic
}

// send publishes bytes, and a storage that they describe.
func send(t *testing.T, topic *lanes.Topic, body string, held *memory.Holding) {
	t.Helper()
	require.NoError(t, topic.Begin(t.Context(), false))
	defer topic.End()
	wait, err := topic.ReserveSlot(t.Context(), topic.Info.Depth)
	require.NoError(t, err)
	require.Nil(t, wait, "it overwrites")
	head := shm.SlotHead{Body: uint32(len(body))}
	var words []uint64
	var counted []uint32
	if held != nil {
		ref := held.Storages[0].Ref
		head.Nref, words, counted = 1, shm.AppendRef(words, ref), []uint32{ref.Index}
	}
	sent, err := topic.Publish(&head, shm.AppendBytes(words, []byte(body)), counted)
	require.NoError(t, err)
	require.True(t, sent)
}

func poll(t *testing.T, s *session, r *lanes.Reader) (string, lanes.Received, *memory.Taken) {
	t.Helper()
	m := &memory.Taken{}
	m.Renew(s.memory)
	from, ok, err := r.Poll(t.Context(), m)
	require.NoError(t, err)
	if !ok {
		return "", from, m
	}
	return string(m.Body), from, m
}

func TestMessageIsHandedOverWithItsReferences(t *testing.T) {
	w := parttest.New(t)
	a, b := newSession(w, 1), newSession(w, 2)
	out, in := a.open(t), b.open(t)
	x := memory.NewHolding(a.memory)
	require.NoError(t, a.memory.Fill(t.Context(), a.memory.PoolOf(0), x, 64, 0))
	r, err := in.Read(t.Context(), lanes.StartNew, nil)
	require.NoError(t, err)
	send(t, out, "first", x)
	index := x.Storages[0].Ref.Index
	require.EqualValues(t, 2, a.Files.Refcounts.Count(index), "the holding, and the slot")
	b.Asked()
	body, from, m := poll(t, b, r)
	require.Equal(t, "first", body)
	require.EqualValues(t, 1, from.Number)
	require.Equal(t, []string{protocol.OpPeer, protocol.OpAttach}, b.Asked())
	require.EqualValues(t, 1, b.Files.Refcounts.Count(index))
	m.Held.Release()
	require.Zero(t, b.Files.Refcounts.Count(index))
	for range parttest.Depth { // as many as are kept
		send(t, out, "later", nil)
	}
	require.EqualValues(t, 1, a.Files.Refcounts.Count(index), "its slot is un-named")
}

// A session without GPUs may be sent what claims to be ordered by a stream.
func TestMessageThatIsOrderedByAStreamIsLetGoWithoutGPUs(t *testing.T) {
	w := parttest.New(t)
	a, b := newSession(w, 1), newSession(w, 2)
	out, in := a.open(t), b.open(t)
	r, err := in.Read(t.Context(), lanes.StartNew, nil)
	require.NoError(t, err)
	require.NoError(t, out.Begin(t.Context(), false))
	head := shm.SlotHead{Flags: protocol.SlotOrdered, Body: 1}
	_, err = out.Publish(&head, shm.AppendBytes(shm.AppendOrder(nil, 1, 1), []byte("x")), nil)
	out.End()
	require.NoError(t, err)
	body, _, m := poll(t, b, r)
	require.Equal(t, "x", body)
	m.Held.Release()
}

// What is known of the members of a topic serves while no broker is there.
func TestHandOverGoesOnWhileTheBrokerIsAway(t *testing.T) {
	w := parttest.New(t)
	a, b := newSession(w, 1), newSession(w, 2)
	out, in := a.open(t), b.open(t)
	r, err := in.Read(t.Context(), lanes.StartNew, nil)
	require.NoError(t, err)
	send(t, out, "first", nil)
	body, _, _ := poll(t, b, r)
	require.Equal(t, "first", body)
	a.GoAway()
	b.GoAway()
	a.Asked()
	b.Asked()
	send(t, out, "second", nil)
	body, _, _ = poll(t, b, r)
	require.Equal(t, "second", body)
	body, _, _ = poll(t, b, r)
	require.Empty(t, body)
	require.Empty(t, a.Asked())
	require.Empty(t, b.Asked())
}

func TestReaderTellsWhatWentByUnseen(t *testing.T) {
	w := parttest.New(t)
	a, b := newSession(w, 1), newSession(w, 2)
	out, in := a.open(t), b.open(t)
	send(t, out, "known", nil)
	r, err := in.Read(t.Context(), lanes.StartNew, nil)
	require.NoError(t, err)
	for range 3 * parttest.Slots {
		send(t, out, "x", nil)
	}
	_, from, _ := poll(t, b, r)
	require.NotZero(t, from.Lost)
	require.Equal(t, from.Number, from.Lost+2)
}

func TestMembersAreLanesAsTheBrokerListsThem(t *testing.T) {
	w := parttest.New(t)
	a, b := newSession(w, 1), newSession(w, 2)
	out, in := a.open(t), b.open(t)
	all, err := in.Members(t.Context())
	require.NoError(t, err)
	require.Empty(t, all.Senders)
	send(t, out, "x", nil)
	all, err = in.Members(t.Context())
	require.NoError(t, err)
	require.Len(t, all.Senders, 1)
	require.Equal(t, a.Files.Serial, all.Senders[0].Peer.Serial)
}

func TestNothingIsSentBehindTheEndOfASession(t *testing.T) {
	w := parttest.New(t)
	a := newSession(w, 1)
	out := a.open(t)
	x := memory.NewHolding(a.memory)
	require.NoError(t, a.memory.Fill(t.Context(), a.memory.PoolOf(0), x, 64, 0))
	send(t, out, "first", x)
	named := <-a.topics.Quiesce()
	require.Equal(t, map[uint32]uint64{x.Storages[0].Ref.Index: 1}, named)
	require.ErrorIs(t, out.Begin(context.Background(), false), protocol.ErrClosed)
}
