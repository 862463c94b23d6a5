package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/shm"
)

// A message is received before those that it has caused, also where the one that the reader had
// found first is overwritten meanwhile, and in a topic of so many writers that a look at all
// takes a while.
func TestCauseIsReceivedFirstWhereMessagesAreOverwritten(t *testing.T) {
	const writers, rounds = 150, 6000
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	reader := b.Connect()
	theirs, err := reader.Topic(ctx, "t", client.Depth(1))
	require.NoError(t, err)
	r, err := theirs.Reader(ctx)
	require.NoError(t, err)
	var sends [writers]func() error
	for n := range writers {
		c := b.Connect(client.WithName(fmt.Sprintf("w%d", n)))
		topic, err := c.Topic(ctx, "t", client.Depth(1))
		require.NoError(t, err)
		x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
		require.NoError(t, err)
		defer x.Release()
		sends[n] = func() error { return topic.Send(ctx, x) }
		require.NoError(t, sends[n]())
	}
	// In the order in which a reader looks at the lanes: it finds the other's message, looks at
	// that of the cause once more, and when it comes to the effect the other's is gone.
	const cause, effect, other = 0, writers - 2, writers - 1
	pass := func(ns uint64) {
		for until := sys.Monotonic() + ns; sys.Monotonic() < until; {
			shm.Pause()
		}
	}
	all := func(some ...int) error {
		for _, n := range some {
			if err := sends[n](); err != nil {
				return err
			}
		}
		return nil
	}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for i := range uint64(rounds) {
				if err := all(other); err != nil {
					return err
				}
				pass(i % 23 * 1000) // so that the looks fall differently
				if err := all(cause, effect, other); err != nil {
					return err
				}
				pass(100_000)
				for n := 1; n < effect && i%16 == 0; n++ { // they stay active
					if err := all(n); err != nil {
						return err
					}
				}
			}
			return nil
		}()
	}()
	effects := uint64(0)
	for sent := false; !sent; {
		select {
		case err := <-done:
			require.NoError(t, err)
			sent = true
		default:
		}
		m, err := r.TryReceive(ctx)
		require.NoError(t, err)
		if m == nil {
			continue
		}
		sender, number := m.Sender, m.Sequence
		m.Release()
		switch sender {
		case fmt.Sprintf("w%d", cause):
			require.Less(t, effects, number, "message %d was received after the one that it has caused", number)
		case fmt.Sprintf("w%d", effect):
			effects = number
		}
	}
}
