package main_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

type why struct {
	Kind   string
	Holds  []because
	HeldBy []because `json:"held_by"`
}

type because struct {
	Why, What, Holder, Ends, Free string
	Storages                      int
	Bytes, Counts                 uint64
	Awaits                        []string
}

func TestWhyTellsWhatEachCountIsFor(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "batches", client.Depth(4))
	require.NoError(t, err)
	queue, err := c.Queue(p.ctx(), "work", client.Redeliver(true))
	require.NoError(t, err)
	x := p.tensor(c, 1024)
	for range 2 {
		require.NoError(t, topic.Send(p.ctx(), x))
	}
	require.NoError(t, queue.Put(p.ctx(), x))
	_, err = c.Set(p.ctx(), "weights/a", x)
	require.NoError(t, err)
	h, err := x.Handle(p.ctx(), client.LeaseFor(1000*time.Second))
	require.NoError(t, err)
	taker := p.client(client.WithName("taker"))
	taken, err := taker.Queue(p.ctx(), "work")
	require.NoError(t, err)
	item, err := taken.Get(p.ctx())
	require.NoError(t, err)
	defer item.Release()

	storage := fmt.Sprint(h.Index)
	var all []why
	p.json(&all, "why", "storage", storage)
	require.Len(t, all, 1)
	got := map[string]uint64{}
	for _, r := range all[0].HeldBy {
		got[r.Holder+" "+r.Why+" "+r.What] += r.Counts
		assert.Equal(t, 1, r.Storages)
		assert.Equal(t, uint64(4096), r.Bytes)
		switch r.Why {
		case "name":
			assert.Equal(t, "baton delete weights/a", r.Free)
		case "lease":
			assert.Regexp(t, `^baton revoke \d+$`, r.Free)
			assert.Contains(t, r.Ends, "in ")
		case "message":
			if r.What == "topic batches" {
				assert.Equal(t, "baton purge batches", r.Free)
			} else {
				assert.Regexp(t, `^baton evict \d+ --kill$`, r.Free, "a purge does not take what a taker has")
				assert.Equal(t, []string{fmt.Sprintf("a taker: claimed by taker (pid %d)", os.Getpid())}, r.Awaits)
			}
		}
	}
	lease := fmt.Sprintf("broker lease lease %d of tester (pid %d)", *h.Lease, os.Getpid())
	assert.Equal(t, map[string]uint64{"tester message topic batches": 2, "tester message queue work": 1, "tester held the program": 1,
		"broker name name weights/a": 1, lease: 1, "taker held the program": 1}, got)

	p.json(&all, "why", "session", "tester")
	require.Len(t, all[0].Holds, 3)
	require.Len(t, all[0].HeldBy, 3)
	p.json(&all, "why", "weights/a")
	require.Equal(t, "name", all[0].Kind)
	require.Len(t, all[0].HeldBy, 6)

	text := p.must("why", storage)
	assert.Regexp(t, `(?m)^storage `+storage+`: 4\.0 KiB, .* old, made by tester \(pid \d+\)\nheld by:\n  BYTES  STORAGES  COUNTS  HOLDER .* FOR .* ENDS .* OR$`, text)
	assert.Regexp(t, `(?m)^4\.0 KiB +1 +2  tester \(pid \d+\)  topic batches .* when 4 newer ones are there .* baton purge batches$`, text)

	text = p.must("why", "session", "tester")
	assert.Regexp(t, fmt.Sprintf(`(?m)^session \d+: tester \(pid %d\), live; granted \d+\.\d MiB, holds 4\.0 KiB, has 152 KiB in lanes$`, os.Getpid()), text)
	text = p.must("why", "weights/a")
	assert.Regexp(t, fmt.Sprintf(`(?m)^name weights/a: revision \d+, 4\.0 KiB, set by tester \(pid %d\) .* ago$`, os.Getpid()), text)
	text = p.must("why", "queue", "work")
	assert.Regexp(t, `(?m)^queue work: \w+, .*, depth \d+ for each sender$`, text)

	p.baton("why", "storage", "123456").fails(t, 3, "nothing", "")
	p.baton("why", "segment", "x").fails(t, 2, "segment", "")
	p.baton("why", "topic", "x").fails(t, 3, "no topic, queue or function", "")
}

// The runbook asks what waits in a queue, and which taker has claimed what.
func TestWhyTellsWhatWaitsInAQueue(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	queue, err := c.Queue(p.ctx(), "work", client.Redeliver(true))
	require.NoError(t, err)
	x := p.tensor(c, 1024)
	for range 3 {
		require.NoError(t, queue.Put(p.ctx(), x))
	}
	text := p.must("why", "work")
	assert.Regexp(t, `^queue work: open, redelivers, depth 64 for each sender\nsenders:\n *SESSION +NAME +PID +SENT\n *\d+ +tester +\d+ +3\ntakers: none: no session takes its items\nmessages that are kept:\n`, text)
	assert.Regexp(t, `(?m)^takers +none: no session takes its items$`, p.must("show", "queue", "work"))

	taker := p.client(client.WithName("taker"))
	theirs, err := taker.Queue(p.ctx(), "work")
	require.NoError(t, err)
	item, err := theirs.Get(p.ctx())
	require.NoError(t, err)
	defer item.Release()
	var all []struct {
		Kind            string
		Senders, Takers []struct {
			Name        string
			Sent, Taken uint64
		}
		Messages []struct {
			Messages           int
			Sender, Ends, Free string
			Claimed            bool
			Awaits             []string
		}
		HeldBy []because `json:"held_by"`
	}
	p.json(&all, "why", "queue", "work")
	require.Len(t, all, 1)
	got := all[0]
	assert.Equal(t, "queue", got.Kind)
	require.Len(t, got.Senders, 1)
	assert.Equal(t, []any{"tester", uint64(3)}, []any{got.Senders[0].Name, got.Senders[0].Sent})
	require.Len(t, got.Takers, 1)
	assert.Equal(t, []any{"taker", uint64(1)}, []any{got.Takers[0].Name, got.Takers[0].Taken})
	require.Len(t, got.Messages, 2)
	waits, claimed := got.Messages[0], got.Messages[1]
	assert.Equal(t, []any{2, "tester", "when it was taken", "baton purge work", false}, []any{waits.Messages, waits.Sender, waits.Ends, waits.Free, waits.Claimed})
	assert.Equal(t, []any{1, "when its taker is finished with it, or ends", true}, []any{claimed.Messages, claimed.Ends, claimed.Claimed})
	assert.Regexp(t, `^baton evict \d+ --kill$`, claimed.Free)
	assert.Equal(t, []string{fmt.Sprintf("a taker: claimed by taker (pid %d)", os.Getpid())}, claimed.Awaits)
	assert.NotEmpty(t, got.HeldBy)
	assert.Regexp(t, `(?m)^TAKER +PID +TAKEN\ntaker +\d+ +1$`, p.must("show", "queue", "work"))
}

// A sender may wait though nothing does in its queue: for the oldest item, which its taker does not release.
func TestWhyTellsThatSendersWaitForAnItem(t *testing.T) {
	p := newPlace(t)
	broker := p.serve("--http", "127.0.0.1:0")
	c := p.client()
	queue, err := c.Queue(p.ctx(), "work", client.Redeliver(true), client.Depth(2))
	require.NoError(t, err)
	x := p.tensor(c, 1024)
	require.NoError(t, queue.Put(p.ctx(), x))
	require.NoError(t, queue.Put(p.ctx(), x))
	first, err := queue.Get(p.ctx())
	require.NoError(t, err)
	second, err := queue.Get(p.ctx())
	require.NoError(t, err)
	second.Release()
	soon, cancel := context.WithTimeout(p.ctx(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, queue.Put(soon, x), protocol.ErrFull)
	text := p.must("why", "queue", "work")
	assert.Contains(t, text, "\nheld up: no room for 1 sender until one item is done with")
	assert.Contains(t, text, "it is released: the sender lets go of it with its next messages, behind older ones")
	held := func() string {
		_, metrics := fetch(t, "http://127.0.0.1:"+broker.port(1)+"/metrics", "")
		return regexp.MustCompile(`(?m)^baton_queue_held_up_seconds (.*)$`).FindStringSubmatch(metrics)[1]
	}
	assert.NotEqual(t, "0", held())
	first.Release()
	require.NoError(t, queue.Put(p.ctx(), x))
	assert.NotContains(t, p.must("why", "queue", "work"), "held up")
	assert.Equal(t, "0", held())
}

// What a reader has lost stands beside what it has taken, in each place that shows readers.
func TestReadersOfATopicAreShownWithWhatTheyLost(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "steps", client.Depth(2))
	require.NoError(t, err)
	reader, err := topic.Reader(p.ctx())
	require.NoError(t, err)
	for i := range 5 {
		require.NoError(t, topic.Send(p.ctx(), i))
	}
	m, err := reader.Receive(p.ctx())
	require.NoError(t, err)
	require.EqualValues(t, 3, m.Lost)
	m.Release()
	assert.Regexp(t, `(?m)^SESSION +NAME +PID +TAKEN +LOST\n +\d+ +tester +\d+ +1 +3$`, p.must("why", "topic", "steps"))
	assert.Regexp(t, `(?m)^READER +PID +TAKEN +LOST\ntester +\d+ +1 +3$`, p.must("show", "topic", "steps"))
	var shown []struct{ Readers []struct{ Lost int } }
	p.json(&shown, "show", "topic", "steps")
	assert.Equal(t, 3, shown[0].Readers[0].Lost)
}

// A lossless topic keeps messages that no later reader gets; they are shown, also without a tensor.
func TestWhyTellsThatNoReaderAwaitsWhatALosslessTopicKeeps(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "ranks", client.Overwrite(false), client.Depth(4))
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, topic.Send(p.ctx(), i))
	}
	text := p.must("why", "topic", "ranks")
	assert.Regexp(t, `(?m)^ +3 +\S+ m?s +tester \(pid \d+\) +no reader +when 4 newer ones are there +baton purge ranks$`, text)
	late, err := topic.Reader(p.ctx(), client.StartAll)
	require.NoError(t, err)
	m, err := late.TryReceive(p.ctx())
	require.NoError(t, err)
	require.Nil(t, m, "it has what is sent from now on")
	require.NoError(t, topic.Send(p.ctx(), 3))
	assert.Regexp(t, `(?m)^ +1 .* reader tester .* newer ones are there, and these have taken it `, p.must("why", "topic", "ranks"))
	m, err = late.Receive(p.ctx())
	require.NoError(t, err)
	assert.EqualValues(t, 4, m.Sequence)
	m.Release()
}

// What is kept of a deep queue is more than a control message has room for.
func TestWhyTellsOfAllThatADeepQueueKeeps(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	const deep = 60000
	queue, err := c.Queue(p.ctx(), "deep", client.Depth(1<<16))
	require.NoError(t, err)
	x := p.tensor(c, 1)
	for i := range deep {
		if i%2 == 0 {
			require.NoError(t, queue.Put(p.ctx(), i))
		} else {
			require.NoError(t, queue.Put(p.ctx(), x))
		}
	}
	text := p.must("why", "queue", "deep")
	assert.Regexp(t, fmt.Sprintf(`(?m)^ +%d +\S+ m?s +tester `, deep), text)
	assert.Regexp(t, fmt.Sprintf(`(?m)^ +\S+ B +1 +%d +tester .* queue deep`, deep/2), text)
}

// What others hold of a session may be thousands of names: few rows stand for all, and a line says how many more there are.
func TestWhySumsUpWhatManyNamesHold(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	for i := range 50 {
		_, err := c.Set(p.ctx(), fmt.Sprintf("n/%02d", i), p.tensor(c, 1024))
		require.NoError(t, err)
	}
	text := p.must("why", "session", "tester")
	assert.Regexp(t, `(?m)^120 KiB +30 +30  broker +30 more, each a name +when it is set anew or deleted$`, text)
	assert.Contains(t, text, "\n30 more are summed up: --json has each, with the command that ends it\n")
	assert.Equal(t, 20, strings.Count(text, "baton delete n/"))
	var all []struct {
		HeldBy []struct{ Free string } `json:"held_by"`
	}
	p.json(&all, "why", "session", "tester")
	assert.Len(t, all[0].HeldBy, 50)
}

func TestWhyTellsWhatOfASessionIsGrantedAndNotHeld(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	x, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{1 << 20})
	require.NoError(t, err)
	var all []struct {
		Granted []struct {
			Segment, Bytes, Storages int
			Held                     int `json:"held_bytes"`
		}
	}
	p.json(&all, "why", "session", "tester")
	require.Len(t, all, 1)
	require.Len(t, all[0].Granted, 1)
	assert.Equal(t, []int{1, 1 << 20}, []int{all[0].Granted[0].Storages, all[0].Granted[0].Held})
	granted := all[0].Granted[0].Bytes
	said := p.must("why", "session", "tester")
	assert.Contains(t, said, "segments that stay while a storage in them is held")
	assert.NotContains(t, said, "baton collect")
	x.Release()
	said = p.must("why", "session", "tester")
	assert.Contains(t, said, fmt.Sprintf("granted, and nothing in it is held: %d.0 MiB in 1 segment, which the program keeps for its next tensors; baton collect gives it back", granted>>20))
	assert.NotContains(t, said, "segments that stay")
}

func TestWhyTellsThatAnEphemeralNameEndsWithItsSetter(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	for name, opts := range map[string][]client.SetOption{"stays": nil, "goes": {client.Ephemeral()}} {
		_, err := c.Set(p.ctx(), name, p.tensor(c, 1024), opts...)
		require.NoError(t, err)
	}
	assert.Contains(t, p.must("why", "goes"), "when it is set anew or deleted, or when the session ends that has set it")
	stays := p.must("why", "stays")
	assert.Contains(t, stays, "when it is set anew or deleted")
	assert.NotContains(t, stays, "session ends")
}
