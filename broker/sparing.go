package broker

import (
	"log/slog"
	"sync"
	"time"
)

// sparing writes what a stranger may cause as often as it likes: few lines a second of a
// message. The next line after some that were left out has their number.
type sparing struct {
	log  *slog.Logger
	mu   sync.Mutex
	done map[string]*spared
}

type spared struct {
	since            time.Time
	written, leftOut int
}

const linesPerSecond = 5

func newSparing(log *slog.Logger) *sparing { return &sparing{log: log, done: map[string]*spared{}} }

// Warn is as that of a Logger. Messages are few: what differs stands in args.
func (s *sparing) Warn(msg string, args ...any) {
	s.mu.Lock()
	d := s.done[msg]
	if d == nil {
		d = &spared{}
		s.done[msg] = d
	}
	if now := time.Now(); now.Sub(d.since) >= time.Second {
		d.since, d.written = now, 0
	}
	if d.written == linesPerSecond {
		d.leftOut++
		s.mu.Unlock()
		return
	}
	d.written++
	if d.leftOut > 0 {
		args = append(args, "left_out", d.leftOut)
		d.leftOut = 0
	}
	s.mu.Unlock()
	s.log.Warn(msg, args...)
}
