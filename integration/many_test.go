package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

func init() { roles["crowd"] = playCrowd }

var (
	crowdJobs = channel{Queue: "crowd/jobs", Depth: 4, Redeliver: true, Linger: time.Millisecond}
	crowdNews = channel{Topic: "crowd/news", Depth: 2, Linger: time.Millisecond}
)

// crowdConfig says how many sessions a process of the crowd has.
type crowdConfig struct {
	Name     string
	Sessions int
}

// playCrowd is many sessions in one process, of which each puts, takes, sends or receives,
// and sets and gets names now and then. It says a number each time that all of them have
// got on by a few rounds, until it is told to stop.
func playCrowd(p *testkit.Child) error {
	var cfg crowdConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(p.Context())
	defer cancel()
	rounds := make([]atomic.Int64, cfg.Sessions)
	clients := make([]*client.Client, cfg.Sessions)
	errs := make(chan error, cfg.Sessions)
	moved := make(chan struct{}, 1)
	for k := range clients {
		var err error
		if clients[k], err = p.Connect(); err != nil {
			return fmt.Errorf("session %d: %w", k, err)
		}
	}
	var group sync.WaitGroup
	for k, c := range clients {
		group.Go(func() {
			err := crowdMember(ctx, c, fmt.Sprintf("%s-%d", cfg.Name, k), k, func() {
				rounds[k].Add(1)
				select {
				case moved <- struct{}{}:
				default:
				}
			})
			if err != nil && ctx.Err() == nil {
				errs <- fmt.Errorf("session %d: %w", k, err)
			}
		})
	}
	stop := make(chan error, 1)
	go func() {
		var line string
		stop <- p.Hear(&line)
	}()
	for said := int64(0); ; {
		select {
		case err := <-errs:
			return err
		case err := <-stop:
			if err != nil {
				return err
			}
			cancel()
			group.Wait()
			for _, c := range clients {
				if err := c.Close(); err != nil {
					return err
				}
			}
			return nil
		case <-moved:
			least := rounds[0].Load()
			for k := range rounds {
				least = min(least, rounds[k].Load())
			}
			if least > said {
				if said = least; p.Say(said) != nil {
					return errors.New("the test has gone")
				}
			}
		}
	}
}

// crowdMember is one session at work. Whatever it receives is verified twice.
func crowdMember(ctx context.Context, c *client.Client, name string, k int, moved func()) error {
	jobs, err := crowdJobs.openQueue(ctx, c)
	if err != nil {
		return err
	}
	news, err := crowdNews.openTopic(ctx, c)
	if err != nil {
		return err
	}
	reader, err := news.Reader(ctx)
	if err != nil {
		return err
	}
	receive := func(m *client.Message, err error) error {
		if err != nil {
			return err
		}
		defer m.Release()
		for range 2 {
			if _, err := verifyMessage(m); err != nil {
				return err
			}
		}
		return nil
	}
	own := fmt.Sprintf("crowd/%d", k%4)
	for i := 0; ctx.Err() == nil; i++ {
		switch k % 4 {
		case 0:
			err = sendNoted(ctx, c, queueSender{jobs}, 16, newNote(name, i))
		case 1:
			err = receive(jobs.Get(ctx))
		case 2:
			err = sendNoted(ctx, c, topicSender{news}, 16, newNote(name, i))
		case 3:
			err = receive(reader.Receive(ctx))
		}
		if err == nil && i%8 == 0 {
			err = crowdName(ctx, c, own)
		}
		if err != nil {
			return err
		}
		moved()
	}
	return nil
}

// crowdName sets a name that others set to the same, and reads it.
func crowdName(ctx context.Context, c *client.Client, name string) error {
	seed := seedOf(name, 0)
	x, err := filled(ctx, c, 16, seed)
	if err != nil {
		return err
	}
	defer x.Release()
	if _, err = c.Set(ctx, name, x); err != nil {
		return err
	}
	m, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	defer m.Release()
	words, err := client.Slice[uint64](m.Tensors()[0])
	if err != nil {
		return err
	}
	return verify(words, seed)
}

// TestManySessions has 200 sessions share a queue, a topic and names while some of their
// processes are killed. BATON_MANY_SESSIONS sets another number.
func TestManySessions(t *testing.T) {
	n := 200
	if s := os.Getenv("BATON_MANY_SESSIONS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err, "BATON_MANY_SESSIONS")
	}
	const each = 20
	b := testkit.StartBroker(t)
	born := 0
	start := func() *testkit.Process {
		born++
		return b.Start("crowd", crowdConfig{fmt.Sprintf("crowd-%d", born), each})
	}
	var all []*testkit.Process
	for range max(2, n/each) {
		all = append(all, start())
	}
	getsOn := func(of ...*testkit.Process) {
		t.Helper()
		for _, p := range of {
			var rounds int
			p.Next(&rounds)
		}
	}
	getsOn(all...)
	for k := range min(2, len(all)/2) {
		all[k].Kill()
		testkit.Gone(t, b, all[k].PID())
		all[k] = start()
		getsOn(all...)
	}
	for _, p := range all {
		p.Tell("stop")
	}
	for _, p := range all {
		p.Done()
	}
	c := b.Connect()
	for k := range 4 {
		require.NoError(t, c.Delete(t.Context(), fmt.Sprintf("crowd/%d", k)))
	}
	testkit.AuditEmpty(t, b)
}
