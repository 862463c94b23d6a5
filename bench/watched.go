package bench

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client"
)

// watchedTopics is how many topics have traffic while the broker is watched.
const watchedTopics = 100

// watchedPace is the time between two messages of one topic.
const watchedPace = 10 * time.Millisecond

// watched measures what the broker takes for `baton top` beside topics with traffic, against what it takes
// beside the same traffic alone.
func (b *bencher) watched(ctx context.Context, group string, _ int) error {
	window := 10 * time.Second
	if b.opts.Quick {
		window = time.Second
	}
	fmt.Fprintf(b.opts.Log, "%s: baton top with %d topics\n", group, watchedTopics)
	traffic, err := b.flow(ctx)
	if err != nil {
		return err
	}
	defer traffic.end()
	alone, err := watch(ctx, b.broker.pid(), window)
	if err != nil {
		return err
	}
	top := exec.CommandContext(ctx, b.broker.binary, "top", "--json", "--address", "unix:"+b.broker.socket())
	if err := top.Start(); err != nil {
		return fmt.Errorf("start baton top: %w", err)
	}
	seen, err := watch(ctx, b.broker.pid(), window)
	top.Process.Kill()
	top.Wait()
	if err != nil {
		return err
	}
	if err := traffic.failed(); err != nil {
		return err
	}
	b.figure(group, fmt.Sprintf("broker beside %d topics with traffic, CPU", watchedTopics), UnitShare).one(float64(alone.cpu) / float64(window))
	f := b.figure(group, "the same while baton top looks each second, on top, CPU", UnitShare)
	f.Bar = atMost("p50", 0.01)
	f.one(max(0, float64(seen.cpu-alone.cpu)) / float64(window))
	return nil
}

// flowing is traffic that goes on until its end.
type flowing struct {
	c    *client.Client
	stop context.CancelFunc
	wait sync.WaitGroup
	err  atomic.Pointer[error]
}

// flow has one session send and receive in watchedTopics topics.
func (b *bencher) flow(ctx context.Context) (*flowing, error) {
	c, err := b.broker.connect(ctx)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	f := &flowing{c: c, stop: stop}
	e := &ends{c: c}
	for k := range watchedTopics {
		t, err := c.Topic(ctx, fmt.Sprintf("watched/%d", k), client.Linger(0))
		if err != nil {
			f.end()
			return nil, err
		}
		r, err := t.Reader(ctx)
		if err != nil {
			f.end()
			return nil, err
		}
		f.wait.Go(func() {
			tick := time.NewTicker(watchedPace)
			defer tick.Stop()
			for running.Err() == nil {
				if err := e.send(running, t); err != nil {
					f.fail(running, err)
					return
				}
				m, err := r.Receive(running)
				if err != nil {
					f.fail(running, err)
					return
				}
				m.Release()
				select {
				case <-tick.C:
				case <-running.Done():
				}
			}
		})
	}
	return f, nil
}

// fail keeps the first error that is not the end of the traffic.
func (f *flowing) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		f.err.CompareAndSwap(nil, &err)
	}
}

// failed is that error.
func (f *flowing) failed() error {
	if err := f.err.Load(); err != nil {
		return fmt.Errorf("traffic of %d topics: %w", watchedTopics, *err)
	}
	return nil
}

func (f *flowing) end() {
	f.stop()
	f.wait.Wait()
	f.c.Close()
}
