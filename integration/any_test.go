package integration

import (
	"context"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

// anyTaken is what one wait for several gave.
type anyTaken struct {
	at  int // of which object
	got note
	err error
}

// takeAny waits in another goroutine for a topic's reader and a queue until it has so many
// messages, and takes them.
func takeAny(ctx context.Context, r *client.Reader, q *client.Queue, n int) <-chan anyTaken {
	found := make(chan anyTaken, n)
	go func() {
		for n > 0 {
			ready, err := client.WaitAny(ctx, r, q)
			if err != nil {
				found <- anyTaken{err: err}
				return
			}
			for _, i := range ready {
				take := r.TryReceive
				if i == 1 {
					take = q.TryGet
				}
				m, err := take(ctx)
				if err != nil {
					found <- anyTaken{err: err}
					return
				}
				k, err := verifyMessage(m)
				m.Release()
				found <- anyTaken{i, k, err}
				n--
			}
		}
	}()
	return found
}

// Senders in other processes, of which one is killed, and the broker's end do not keep a wait
// for several from what comes.
func TestWaitForSeveralOverDeaths(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "several")
	require.NoError(t, err)
	r, err := topic.Reader(ctx)
	require.NoError(t, err)
	q, err := c.Queue(ctx, "work")
	require.NoError(t, err)
	start := func(k channel, from string, stay bool) *testkit.Process {
		p := b.Start("send", sendConfig{channel: k, From: from, Count: 3, Words: 64, Stay: stay})
		p.Next(new(string))
		return p
	}
	expect := func(found <-chan anyTaken, at int, from string) {
		for id := range 3 {
			got := <-found
			require.NoError(t, got.err)
			require.Equal(t, anyTaken{at: at, got: newNote(from, id)}, got)
		}
	}
	for round := range 3 {
		sends, puts := start(channel{Topic: "several"}, "sender", true), start(channel{Queue: "work"}, "putter", false)
		found := takeAny(ctx, r, q, 6)
		puts.Tell("go")
		expect(found, 1, "putter")
		puts.Next(new(int))
		puts.Done()
		sends.Tell("go")
		sends.Next(new(int))
		sends.Kill()
		expect(found, 0, "sender")
		found = takeAny(ctx, r, q, 3)
		switch round {
		case 0:
			b.Kill()
			b.Restart()
		case 1:
			b.Replace()
		}
		late := start(channel{Queue: "work"}, "late", false)
		late.Tell("go")
		expect(found, 1, "late")
		late.Next(new(int))
		late.Done()
	}
	require.NoError(t, c.Close())
	testkit.Audit(t, b)
}
