package client_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chaos is a client of which several goroutines use everything while others close
// it. Each of the calls runs to an error, which must be that the client is closed.
type chaos struct {
	*testing.T
	c, other *client.Client
	topic    *client.Topic
	queue    *client.Queue
}

// calls are what the goroutines do, over and over. One that gives no error has
// released all that it got.
var calls = map[string]func(*chaos, context.Context) error{
	"alloc and release": func(t *chaos, ctx context.Context) error {
		x, err := t.c.Alloc(ctx, dlpack.Int64, []int64{1 + rand.Int64N(1<<rand.IntN(19))})
		if err != nil {
			return err
		}
		defer x.Release()
		v, err := client.Slice[int64](x)
		if err == nil {
			v[0], v[len(v)-1] = 1, 1
		}
		return err
	},
	"send": func(t *chaos, ctx context.Context) error {
		x, err := t.c.Zeros(ctx, dlpack.Int64, []int64{rand.Int64N(1000)})
		if err != nil {
			return err
		}
		defer x.Release()
		return t.topic.Send(ctx, map[string]any{"x": x, "n": make([]byte, rand.IntN(3000))})
	},
	"receive": func(t *chaos, ctx context.Context) error {
		r, err := t.topic.Reader(ctx, client.StartAll)
		if err != nil {
			return err
		}
		defer r.Close()
		for range 8 {
			m, err := r.Receive(ctx)
			if err != nil {
				return err
			}
			if _, err := m.Value(); err != nil {
				m.Release()
				return err
			}
			m.Release()
		}
		return nil
	},
	"put": func(t *chaos, ctx context.Context) error {
		x, err := t.c.Alloc(ctx, dlpack.Int64, []int64{8})
		if err != nil {
			return err
		}
		defer x.Release()
		return t.queue.Put(ctx, x)
	},
	"get": func(t *chaos, ctx context.Context) error {
		m, err := t.queue.Get(ctx)
		if err != nil {
			return err
		}
		defer m.Release()
		b, err := m.Bundle()
		if err == nil {
			_, err = b.Tensors()[0].Bytes()
		}
		return err
	},
	"open and close a topic": func(t *chaos, ctx context.Context) error {
		p, err := t.c.Topic(ctx, "", client.Overwrite(false))
		if err != nil {
			return err
		}
		defer p.Close()
		r, err := p.Reader(ctx)
		if err != nil {
			return err
		}
		defer r.Close()
		return p.Send(ctx, map[string]any{})
	},
	"names": func(t *chaos, ctx context.Context) error {
		x, err := t.c.Alloc(ctx, dlpack.Int64, []int64{8})
		if err != nil {
			return err
		}
		defer x.Release()
		if _, err := t.c.Set(ctx, "name", x); err != nil {
			return err
		}
		b, err := t.c.Get(ctx, "name")
		if err != nil {
			return err
		}
		b.Release()
		return nil
	},
	"handles": func(t *chaos, ctx context.Context) error {
		y, err := t.openOf(ctx, t.c)
		if err != nil {
			return err
		}
		y.Release()
		return nil
	},
	"open another's": func(t *chaos, ctx context.Context) error {
		y, err := t.openOf(ctx, t.other)
		if err != nil {
			return err
		}
		defer y.Release()
		p, err := y.ToDLPack()
		if err != nil {
			return err
		}
		return dlpack.Release(p)
	},
	"look": func(t *chaos, ctx context.Context) error {
		t.c.Stats()
		t.c.Collect()
		t.c.Session()
		if _, err := t.queue.Len(ctx); err != nil {
			return err
		}
		return t.c.Broker(ctx, protocol.OpStatus, nil, &struct{}{})
	},
}

// openOf opens the handle of a tensor that a client has just made.
func (t *chaos) openOf(ctx context.Context, maker *client.Client) (*client.Tensor, error) {
	x, err := maker.Alloc(ctx, dlpack.Int64, []int64{8})
	if err != nil {
		return nil, err
	}
	defer x.Release()
	h, err := x.Handle(ctx)
	if err != nil {
		return nil, err
	}
	return t.c.Open(ctx, h)
}

func TestCloseInTheMidstOfEverything(t *testing.T) {
	// Clients of other tests, closed while they held, may wait for their brokers.
	before := testkit.SharedFDs(os.Getpid())
	t.Cleanup(func() { // runs after the end of the broker and of every client
		runtime.GC()
		require.Eventually(t, func() bool { return testkit.SharedFDs(os.Getpid()) <= before }, 90*time.Second, time.Millisecond,
			"descriptors are left open") // a closed client that holds notices the broker's end beside
	})
	address := newBroker(t)
	other := connect(t, address)
	for range 30 {
		chaosOnce(t, address, other)
	}
}

func chaosOnce(t *testing.T, address string, other *client.Client) {
	c, err := client.Connect(t.Context(), client.WithAddress(address))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	x := &chaos{T: t, c: c, other: other}
	x.topic, err = c.Topic(ctx, "t")
	require.NoError(t, err)
	x.queue, err = c.Queue(ctx, "q")
	require.NoError(t, err)
	elsewhere, err := other.Topic(ctx, "t")
	require.NoError(t, err)
	defer elsewhere.Close()
	first := make(chan struct{}, 1024)
	var users sync.WaitGroup
	for name, call := range calls {
		for range 2 {
			users.Go(func() {
				for {
					err := call(x, ctx)
					if err == nil {
						select {
						case first <- struct{}{}:
						default:
						}
						continue
					}
					if !errors.Is(err, protocol.ErrClosed) {
						t.Errorf("%s: %v", name, err)
					}
					return
				}
			})
		}
	}
	for range rand.IntN(400) {
		<-first
	}
	var closers sync.WaitGroup
	for range 2 {
		closers.Go(func() { assert.NoError(t, c.Close()) })
	}
	closers.Wait()
	users.Wait()
	for name, call := range calls { // what is closed stays so
		require.ErrorIs(t, call(x, ctx), protocol.ErrClosed, name)
	}
}
