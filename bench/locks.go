package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

func init() { roles["broker"] = lockedBroker }

// Of each time that the mutex was held there is what the holder ran, and of the longest how
// long it had it: with more threads than CPUs it may wait there for its turn.
const (
	ranPrefix  = "ran "
	tookPrefix = "took "
)

// unserved are the functions that hold the mutex while no request is served: where a broker begins,
// takes over, admits sessions that return, or ends.
var unserved = []string{"(*Broker).findFiles", "(*Broker).await", "(*Broker).setUp", "(*Broker).restored", "(*Broker).waitTaking", "(*Broker).end"}

// lockedBroker is a broker that reports how long each request and function held its mutex.
func lockedBroker(_ context.Context, s *seat) error {
	// By TERM it leaves all to the next one, which reports as well.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var mu sync.Mutex
	observe := func(h broker.Hold) {
		mu.Lock()
		defer mu.Unlock()
		s.report(ranPrefix+h.By, float64(h.CPU))
		if took := s.values[tookPrefix+h.By]; took == nil || float64(h.Took) > took[0] {
			s.values[tookPrefix+h.By] = []float64{float64(h.Took)}
		}
	}
	b, err := broker.New(ctx, broker.Config{Dir: s.Directory, ObserveHold: observe})
	if err != nil {
		return err
	}
	err = b.Serve(ctx)
	mu.Lock() // what comes now is not reported
	return err
}

// locks measures how long the broker's mutex is held while many sessions join, receive from
// each other and leave, while others look, and while another broker takes over.
func (b *bencher) locks(ctx context.Context, group string) error {
	n := 500
	if b.opts.Quick {
		n = 16
	}
	dir, err := os.MkdirTemp(address.TempDir(), "baton-bench-")
	if err != nil {
		return fmt.Errorf("make a runtime directory: %w", err)
	}
	held := &served{dir: dir, held: true, binary: b.opts.Binary}
	if err := held.start(ctx); err != nil {
		return err
	}
	defer held.stop()
	j := job{Role: "members", Storages: 1, Orderly: true}
	j.at(held)
	fmt.Fprintf(b.opts.Log, "%s: %d sessions come\n", group, n)
	crowd, err := b.gather(ctx, n, j)
	if err != nil {
		return err
	}
	defer crowd.end()
	for k := range uint64(3) {
		if err := crowd.phase(1 + k); err != nil {
			return err
		}
		if err := lookAround(ctx, held); err != nil {
			return err
		}
	}
	if _, err := atRest(held.pid()); err != nil {
		return err
	}
	fmt.Fprintf(b.opts.Log, "%s: another broker takes over\n", group)
	values, err := held.report()
	if err == nil {
		err = held.start(ctx)
	}
	if err == nil {
		err = held.awaitBack(ctx, n)
	}
	if err == nil {
		err = lookAround(ctx, held)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(b.opts.Log, "%s: half of them are killed, the others leave\n", group)
	for i, p := range crowd.processes {
		if i%2 == 0 {
			p.cmd.Process.Kill()
			<-p.ended
		}
	}
	if _, err := atRest(held.pid()); err != nil {
		return err
	}
	for i, p := range crowd.processes {
		if i%2 != 0 {
			for line, v := range map[int]uint64{lineTurn: 4, lineStop: 1} { // after the last phase
				crowd.seats[i].store(line, v)
				sys.FutexWake(crowd.seats[i].word32(line))
			}
			<-p.ended
		}
	}
	if _, err := atRest(held.pid()); err != nil {
		return err
	}
	after, err := held.report()
	if err != nil {
		return err
	}
	for name, ns := range after {
		if before := values[name]; strings.HasPrefix(name, tookPrefix) && len(before) > 0 {
			values[name] = []float64{max(before[0], ns[0])}
		} else {
			values[name] = append(before, ns...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		by, is := strings.CutPrefix(name, ranPrefix)
		if !is {
			continue
		}
		ran := values[name]
		b.figure(group, fmt.Sprintf("%s, %d times", by, len(ran)), UnitTime).add(quantilesOf(slices.Clone(ran)))
		f := b.figure(group, by+", longest", UnitTime)
		if !slices.Contains(unserved, by) {
			f.Bar = atMost("p50", 1e6)
		}
		f.one(slices.Max(ran))
		b.figure(group, by+", longest with waits for a CPU", UnitTime).one(values[tookPrefix+by][0])
	}
	return nil
}

// lookAround reads all listings, and what metrics are made of.
func lookAround(ctx context.Context, b *served) error {
	c, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, what := range []string{protocol.ListSessions, protocol.ListTopics, protocol.ListNames, protocol.ListSegments, protocol.ListStorages, protocol.ListLeases} {
		if err := listAll(ctx, c, what); err != nil {
			return err
		}
	}
	for range 10 {
		if err := c.Broker(ctx, protocol.OpStatus, struct{}{}, &broker.Status{}); err != nil {
			return err
		}
	}
	return nil
}

func listAll(ctx context.Context, c *client.Client, what string) error {
	for cursor := ""; ; {
		var page struct {
			Cursor string `json:"cursor"`
		}
		if err := c.Broker(ctx, protocol.OpList, protocol.List{What: what, Cursor: cursor}, &page); err != nil {
			return err
		}
		if cursor = page.Cursor; cursor == "" {
			return nil
		}
	}
}

// report ends a broker that measures its mutex, leaving all to the next one, and returns what
// it has to say.
func (b *served) report() (map[string][]float64, error) {
	b.cmd.Process.Signal(syscall.SIGTERM)
	<-b.ended
	values := map[string][]float64{}
	if err := json.Unmarshal(b.out.Bytes(), &values); err != nil {
		return nil, fmt.Errorf("read what the broker reports: %w: %s", err, strings.TrimSpace(b.errOut.String()))
	}
	return values, nil
}
