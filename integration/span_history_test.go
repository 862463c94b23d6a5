package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// history is what sets returned and readers saw, of one name.
type history struct {
	mu      sync.Mutex
	winners map[uint64]int64 // values by revisions, of sets that returned
	unknown map[int64]bool   // values of sets that returned without saying whether they are set
	lost    map[int64]bool   // values of sets that did not win
	seen    map[uint64]int64 // values by revisions, of all readers
	wrong   []string
}

func (h *history) set(value int64, revision uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		if other, is := h.winners[revision]; is {
			h.wrong = append(h.wrong, fmt.Sprintf("revision %d was won by %d and by %d", revision, other, value))
		}
		h.winners[revision] = value
	case protocol.CodeOf(err) == protocol.CodeConflict:
		h.lost[value] = true
	case protocol.CodeOf(err) == protocol.CodeUnreachable:
		h.unknown[value] = true
	default:
		h.wrong = append(h.wrong, fmt.Sprintf("set %d: %v", value, err))
	}
}

// read notes what a reader has seen, and returns its revision.
func (h *history) read(who string, last, revision uint64, value int64) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if revision < last {
		h.wrong = append(h.wrong, fmt.Sprintf("%s saw revision %d after %d", who, revision, last))
	}
	if other, is := h.seen[revision]; is && other != value {
		h.wrong = append(h.wrong, fmt.Sprintf("%s saw %d as revision %d, others saw %d", who, value, revision, other))
	}
	h.seen[revision] = value
	return revision
}

// check compares what was seen with what was set.
func (h *history) check(t *testing.T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for revision, value := range h.seen {
		if won, is := h.winners[revision]; is && won != value {
			h.wrong = append(h.wrong, fmt.Sprintf("revision %d was returned for %d and read as %d", revision, won, value))
		}
		if h.lost[value] {
			h.wrong = append(h.wrong, fmt.Sprintf("%d lost, and was read as revision %d", value, revision))
		}
	}
	require.Empty(t, h.wrong)
	t.Logf("%d sets won, %d lost, %d not known; %d revisions were read", len(h.winners), len(h.lost), len(h.unknown), len(h.seen))
}

// Two hosts set one name and read it, some at the same time, and the server is killed and comes back.
func TestNoRevisionHasTwoWinnersAndNoReaderGoesBack(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	hist := &history{winners: map[uint64]int64{}, unknown: map[int64]bool{}, lost: map[int64]bool{}, seen: map[uint64]int64{}}
	const sets, setters = 60, 2
	readers, stop := context.WithCancel(h.ctx)
	var reading, setting sync.WaitGroup
	for i, c := range []*client.Client{a, b} {
		w, err := c.Watch(h.ctx, "x")
		require.NoError(t, err)
		defer w.Close()
		reading.Go(func() {
			last := uint64(0)
			for readers.Err() == nil {
				x, err := w.Next(readers)
				if err != nil {
					continue
				}
				last = hist.read(fmt.Sprintf("the watch of host %d", i), last, x.Revision, numberOf(t, x))
			}
		})
		reading.Go(func() {
			last := uint64(0)
			for readers.Err() == nil {
				x, err := c.Get(readers, "x")
				if err != nil {
					continue
				}
				last = hist.read(fmt.Sprintf("the reader of host %d", i), last, x.Revision, numberOf(t, x))
			}
		})
		for k := range setters {
			setting.Go(func() {
				for n := range int64(sets) {
					value := int64(i+1)*1_000_000 + int64(k)*10_000 + n
					revision, err := numbered(t, h.ctx, c, "x", value)
					hist.set(value, revision, err)
					if i == 0 && k == 0 && n == sets/3 {
						h.server.Kill()
						h.server = h.nats.start(h.a)
					}
				}
			})
		}
	}
	setting.Wait()
	last, err := numbered(t, h.ctx, a, "x", 5)
	require.NoError(t, err, "nothing is under way any more")
	for _, c := range []*client.Client{a, b} {
		for {
			x, err := c.Get(h.ctx, "x")
			require.NoError(t, err)
			revision := x.Revision
			value := numberOf(t, x)
			if revision == last {
				require.EqualValues(t, 5, value)
				break
			}
		}
	}
	stop()
	reading.Wait()
	hist.check(t)
}
