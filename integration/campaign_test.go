package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// The load of the campaigns: loaders put jobs on a queue with redelivery, send
// news that overwrites and a lossless feed, and publish a name; workers turn jobs
// into results; readers follow news, feed and name. Each verifies every
// word. All say now and then how far they are, and rest when they are told to:
// then they hold nothing. Each message has one storage, so that counts can be
// compared with messages.
var (
	jobs    = channel{Queue: "jobs", Depth: 8, Redeliver: true, Linger: time.Millisecond}
	results = channel{Queue: "results", Depth: 16, Linger: time.Millisecond}
	news    = channel{Topic: "news", Depth: 4, Linger: time.Millisecond}
	feed    = channel{Topic: "feed", Depth: 4, Lossless: true, Linger: time.Millisecond}
)

const loadName = "weights/load"

// progress is what a child of the campaign says: how far it is, or that it rests.
type progress struct {
	N       int
	Resting bool
}

// order is what it is told: rest, go, or stop.
type order string

// shift runs a role's work between rests. work must return soon after its context
// ends, holding nothing; it is called again when the rest is over.
func shift(p *testkit.Child, c *client.Client, work func(ctx context.Context) error) error {
	for {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- work(ctx) }()
		var o order
		heard := make(chan error, 1)
		go func() { heard <- p.Hear(&o) }()
		var err error
		select {
		case err = <-heard:
			cancel()
			if e := <-done; e != nil && !errors.Is(e, context.Canceled) {
				return e
			}
		case err = <-done:
			cancel()
			return fmt.Errorf("the work ended: %w", err)
		}
		if err != nil { // the parent has gone
			return err
		}
		if o == "stop" {
			return c.Close()
		}
		c.Collect()
		if err := p.Say(progress{Resting: true}); err != nil {
			return err
		}
		if err := p.Hear(&o); err != nil {
			return err
		}
		if o == "stop" {
			return c.Close()
		}
	}
}

func init() {
	roles["loader"] = loader
	roles["worker"] = worker
	roles["follower"] = follower
}

// sizeOf varies the sizes of tensors, in words.
func sizeOf(id int) int { return 1 + id*37%1500 }

// tick says progress every few steps.
type tick struct {
	p     *testkit.Child
	n     atomic.Int64
	every int64
}

func (k *tick) step() error {
	if n := k.n.Add(1); n%k.every == 0 {
		return k.p.Say(progress{N: int(n)})
	}
	return nil
}

func loader(p *testkit.Child) error {
	var from string
	if err := p.Config(&from); err != nil {
		return err
	}
	c, err := p.Connect()
	if err != nil {
		return err
	}
	q, err := jobs.openQueue(p.Context(), c)
	if err != nil {
		return err
	}
	loud, err := news.openTopic(p.Context(), c)
	if err != nil {
		return err
	}
	sure, err := feed.openTopic(p.Context(), c)
	if err != nil {
		return err
	}
	said := tick{p: p, every: 4}
	job, heard, fed := 0, 0, 0
	return shift(p, c, func(ctx context.Context) error {
		for {
			if err := sendNoted(ctx, c, queueSender{q}, sizeOf(job), newNote(from, job)); err != nil {
				return err
			}
			job++
			if err := said.step(); err != nil { // so many jobs were put
				return err
			}
			for range 3 {
				if err := sendNoted(ctx, c, topicSender{loud}, sizeOf(heard), newNote(from, heard)); err != nil {
					return err
				}
				heard++
			}
			if job%4 == 0 {
				if err := sendNoted(ctx, c, topicSender{sure}, sizeOf(fed), newNote(from, fed)); err != nil {
					return err
				}
				fed++
			}
			if job%16 == 0 {
				if _, err := publish(ctx, c, loadName, 77); err != nil {
					return err
				}
			}
		}
	})
}

func worker(p *testkit.Child) error {
	c, err := p.Connect()
	if err != nil {
		return err
	}
	in, err := jobs.openQueue(p.Context(), c)
	if err != nil {
		return err
	}
	out, err := results.openQueue(p.Context(), c)
	if err != nil {
		return err
	}
	said := tick{p: p, every: 4}
	return shift(p, c, func(ctx context.Context) error {
		for {
			m, err := in.Get(ctx)
			if err != nil {
				return err
			}
			k, err := verifyMessage(m)
			if err != nil {
				return err
			}
			// The job is let go, and so acknowledged, once its result is out: every
			// job has a result at least.
			if err := sendNoted(p.Context(), c, queueSender{out}, 8, k); err != nil {
				return err
			}
			m.Release()
			if err := said.step(); err != nil {
				return err
			}
		}
	})
}

func follower(p *testkit.Child) error {
	c, err := p.Connect()
	if err != nil {
		return err
	}
	loud, err := news.openTopic(p.Context(), c)
	if err != nil {
		return err
	}
	sure, err := feed.openTopic(p.Context(), c)
	if err != nil {
		return err
	}
	newsReader, err := loud.Reader(p.Context())
	if err != nil {
		return err
	}
	feedReader, err := sure.Reader(p.Context())
	if err != nil {
		return err
	}
	watch, err := c.Watch(p.Context(), loadName)
	if err != nil {
		return err
	}
	said := tick{p: p, every: 16}
	fed := map[string]int{}
	return shift(p, c, func(ctx context.Context) error {
		return together(ctx,
			func(ctx context.Context) error { return followNews(ctx, newsReader, &said) },
			func(ctx context.Context) error { return followFeed(ctx, feedReader, fed, &said) },
			func(ctx context.Context) error {
				for {
					w, err := watch.Next(ctx)
					if err != nil {
						return err
					}
					err = verifyBundle(w, 77)
					w.Release()
					if err == nil {
						err = said.step()
					}
					if err != nil {
						return err
					}
				}
			})
	})
}

// together runs functions at once until one fails, which ends the others, and
// returns its error.
func together(ctx context.Context, fs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var first error
	var once sync.Once
	for _, f := range fs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(ctx); err != nil {
				once.Do(func() { first = err })
				cancel()
			}
		}()
	}
	wg.Wait()
	return first
}

// followNews holds the last messages for a while and verifies them again before
// it lets go: what is held must not have changed.
func followNews(ctx context.Context, r *client.Reader, said *tick) error {
	var held []*client.Message
	defer func() {
		for _, m := range held {
			m.Release()
		}
	}()
	for {
		m, err := r.Receive(ctx)
		if err != nil {
			return err
		}
		held = append(held, m)
		if _, err := verifyMessage(m); err != nil {
			return err
		}
		if len(held) == 8 {
			if _, err := verifyMessage(held[0]); err != nil {
				return fmt.Errorf("held for a while: %w", err)
			}
			held[0].Release()
			held = held[1:]
		}
		if err := said.step(); err != nil {
			return err
		}
	}
}

// followFeed expects every message of every sender, from the first that it sees.
func followFeed(ctx context.Context, r *client.Reader, next map[string]int, said *tick) error {
	for {
		m, err := r.Receive(ctx)
		if err != nil {
			return err
		}
		k, err := verifyMessage(m)
		lost := m.Lost
		m.Release()
		if err != nil {
			return err
		}
		if due, seen := next[k.From]; seen && k.ID != due || lost != 0 {
			return fmt.Errorf("message %d of %s came where %d was due, %d are counted as lost", k.ID, k.From, due, lost)
		}
		next[k.From] = k.ID + 1
		if err := said.step(); err != nil {
			return err
		}
	}
}

// harvest is what the test process does beside the campaign: it takes results.
type harvest struct {
	mu   sync.Mutex
	got  map[string]map[int]int
	more int // results that came a second time
}

func (h *harvest) run(ctx context.Context, q *client.Queue) error {
	for {
		m, err := q.Get(ctx)
		if errors.Is(err, protocol.ErrClosed) || errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		k, err := verifyMessage(m)
		m.Release()
		if err != nil {
			return err
		}
		h.mu.Lock()
		if h.got[k.From] == nil {
			h.got[k.From] = map[int]int{}
		}
		if h.got[k.From][k.ID]++; h.got[k.From][k.ID] > 1 {
			h.more++
		}
		h.mu.Unlock()
	}
}
