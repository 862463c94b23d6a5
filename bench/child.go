package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

func load(w *uint64) uint64 { return atomic.LoadUint64(w) }

// envJob carries a job to a process that this package starts.
const envJob = "BATON_BENCH_JOB"

// roleArgument is what such a process gets as its argument, so that lists of processes show
// what it is for.
const roleArgument = "bench-role"

// Sides of a pair.
const (
	left = iota
	right
)

// job is what one process is to do.
type job struct {
	Role string `json:"role"`
	Side int    `json:"side"` // left, right, then further readers
	Page int    `json:"page"` // length of a series; 0: no page
	N    int    `json:"n"`    // rounds, those to warm up included

	Bytes int64         `json:"bytes,omitempty"` // of a tensor or a message
	Count int           `json:"count,omitempty"` // messages under way at most
	Every time.Duration `json:"every,omitempty"` // pace; 0: as fast as it goes
	Slice int           `json:"slice,omitempty"` // rounds until another pair has its turn; 0: all

	Socket    string `json:"socket,omitempty"`    // of the broker
	Directory string `json:"directory,omitempty"` // the broker's runtime directory
	Path      string `json:"path,omitempty"`      // prefix of topics, or a socket of one's own

	Readers int `json:"readers,omitempty"` // that all have what left sends, and answer; 0: right alone

	Storages int  `json:"storages,omitempty"` // that live beside those handed over
	Topics   int  `json:"topics,omitempty"`
	Sessions int  `json:"sessions,omitempty"`
	Orderly  bool `json:"orderly,omitempty"` // they are closed at the end

	programs [2]string // of each side, with an argument on a line of its own; "": this one
}

// seat is a process at work on its job.
type seat struct {
	job
	*page
	values map[string][]float64 // what it reports
}

// report notes a figure for the parent.
func (s *seat) report(name string, values ...float64) {
	s.values[name] = append(s.values[name], values...)
}

// meet waits for the other side.
func (s *seat) meet() { s.page.meet(s.Side) }

var roles = map[string]func(context.Context, *seat) error{}

// Child does the job of a process that Run has started, and ends it; in any
// other process it returns at once. A program that calls Run calls Child first.
func Child() {
	raw := os.Getenv(envJob)
	if raw == "" {
		return
	}
	os.Unsetenv(envJob)
	if err := work(raw); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func work(raw string) error {
	s := &seat{values: map[string][]float64{}}
	if err := json.Unmarshal([]byte(raw), &s.job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	role := roles[s.Role]
	if role == nil {
		return fmt.Errorf("no role %q: parent and child are of different versions", s.Role)
	}
	if s.Page > 0 {
		fd := sys.NewFD(3)
		defer fd.Close()
		var err error
		if s.page, err = openPage(fd, s.Page); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := role(ctx, s); err != nil {
		return fmt.Errorf("%s, side %d: %w", s.Role, s.Side, err)
	}
	return json.NewEncoder(os.Stdout).Encode(s.values)
}
