package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// allocation is what became of an Alloc that waits for memory.
type allocation struct {
	tensor *client.Tensor
	err    error
}

// waiting begins an allocation of 40 MiB that waits for memory.
func waiting(t *testing.T, c *client.Client, opts ...client.AllocOption) chan allocation {
	done := make(chan allocation, 1)
	go func() {
		x, err := c.Alloc(testkit.Context(t), dlpack.Uint8, []int64{40 << 20}, opts...)
		done <- allocation{x, err}
	}()
	return done
}

// An allocation waits for memory until a client makes room: itself, another
// client by releasing, by closing, or by dying.
func TestAllocationWaitsForRoom(t *testing.T) {
	for _, how := range []string{"released here", "released elsewhere", "closed", "killed", "taken from a queue", "name deleted"} {
		t.Run(how, func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory = 64 << 20 })
			ctx := testkit.Context(t)
			c, d := b.Connect(), b.Connect()
			const words = 40 << 20 / 8
			var x *client.Tensor
			var err error
			var p *testkit.Process
			var q *client.Queue
			switch how {
			case "killed":
				p = b.Start("hoarder", words)
				p.Next(new(string))
			case "released here":
				x, err = c.Alloc(ctx, dlpack.Uint8, []int64{40 << 20})
			case "taken from a queue":
				q, err = c.Queue(ctx, "q")
				require.NoError(t, err)
				x, err = c.Alloc(ctx, dlpack.Uint8, []int64{40 << 20})
				require.NoError(t, err)
				require.NoError(t, q.Put(ctx, x))
				x.Release()
			case "name deleted":
				x, err = d.Alloc(ctx, dlpack.Uint8, []int64{40 << 20})
				require.NoError(t, err)
				_, err = d.Set(ctx, "n", x)
				x.Release()
			default:
				x, err = d.Alloc(ctx, dlpack.Uint8, []int64{40 << 20})
			}
			require.NoError(t, err)
			_, err = c.Alloc(ctx, dlpack.Uint8, []int64{40 << 20}, client.WaitForMemory(10*time.Millisecond))
			require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
			done := waiting(t, c, client.WaitForMemory(testkit.Patience))
			switch how {
			case "released here", "released elsewhere":
				x.Release()
			case "closed": // what it holds it keeps until that is released
				require.NoError(t, d.Close())
				x.Release()
			case "killed":
				p.Kill()
			case "taken from a queue":
				in, err := d.Queue(ctx, "q")
				require.NoError(t, err)
				m, err := in.Get(ctx)
				require.NoError(t, err)
				m.Release()
			case "name deleted":
				require.NoError(t, d.Delete(ctx, "n"))
			}
			got := <-done
			require.NoError(t, got.err)
			got.tensor.Release()
		})
	}
}

func init() {
	roles["hoarder"] = func(p *testkit.Child) error {
		var words int
		if err := p.Config(&words); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		x, err := c.Alloc(p.Context(), dlpack.Uint64, []int64{int64(words)})
		if err != nil {
			return err
		}
		if err := p.Say("full"); err != nil {
			return err
		}
		<-p.Context().Done()
		x.Release()
		return c.Close()
	}
}

// A session keeps what it has released for its next tensors, unless another needs it, or it itself for a lane.
func TestWhatASessionKeepsEmptyIsHadAtOnce(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory = 64 << 20 })
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	for range 3 {
		for _, each := range []*client.Client{c, d} {
			x, err := each.Alloc(ctx, dlpack.Uint8, []int64{48 << 20}, client.WaitForMemory(0))
			require.NoError(t, err)
			x.Release()
		}
	}
	x, err := d.Alloc(ctx, dlpack.Uint8, []int64{0})
	require.NoError(t, err)
	y, err := d.Alloc(ctx, dlpack.Uint8, []int64{60 << 20}, client.WaitForMemory(0))
	require.NoError(t, err)
	y.Release()
	q, err := d.Queue(ctx, "q", client.Depth(4096)) // a lane of more than 4 MiB
	require.NoError(t, err)
	require.NoError(t, q.Put(ctx, x))
	x.Release()
	m, err := q.Get(ctx)
	require.NoError(t, err)
	m.Release()
}

func TestWaitForMemoryEndsWithItsTimeItsContextAndItsClient(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory = 64 << 20 })
	ctx := testkit.Context(t)
	c, d := b.Connect(client.WithMemoryWait(testkit.Patience)), b.Connect()
	x, err := d.Alloc(ctx, dlpack.Uint8, []int64{40 << 20})
	require.NoError(t, err)
	_, err = c.Alloc(ctx, dlpack.Uint8, []int64{40 << 20}, client.WaitForMemory(time.Millisecond))
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	require.Contains(t, err.Error(), "largest")
	short, cancel := context.WithCancel(ctx)
	go cancel()
	_, err = c.Alloc(short, dlpack.Uint8, []int64{40 << 20})
	require.ErrorIs(t, err, context.Canceled)
	_, err = d.Alloc(ctx, dlpack.Uint8, []int64{80 << 20}, client.WaitForMemory(0))
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	done := waiting(t, c)
	require.NoError(t, c.Close())
	require.ErrorIs(t, (<-done).err, protocol.ErrClosed)
	x.Release()
}
