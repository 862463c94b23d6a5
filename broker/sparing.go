package broker

import (
	"log/slog"
	"sync"
	"time"
)

// sparing writes what a stranger may cause as often as it likes: few lines a second of a
// message and program, so that what one causes hides no other's. The next line after some that
// were left out has their number.
type sparing struct {
	log  *slog.Logger
	mu   sync.Mutex
	done map[line]*spared
}

// line is what is spared: a message about a program.
type line struct {
	causer causer
	msg    string
}

// causer is the program that causes a line. Processes of a user that may not connect are one, pid 0: such a
// user starts as many as it likes.
type causer struct {
	uid uint32
	pid int
}

type spared struct {
	since            time.Time
	written, leftOut int
}

const (
	linesPerSecond = 5
	// mostSpared is how many programs have a number of lines of their own at once. Those beyond,
	// of which few are honest, share one.
	mostSpared = 256
)

func newSparing(log *slog.Logger) *sparing { return &sparing{log: log, done: map[line]*spared{}} }

// Warn is as that of a Logger. Messages are few: what differs stands in args.
func (s *sparing) Warn(by causer, msg string, args ...any) {
	s.mu.Lock()
	d := s.of(line{by, msg})
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

// of finds what was written of a line, or begins to count it. The mutex is held.
func (s *sparing) of(l line) *spared {
	if d := s.done[l]; d != nil {
		return d
	}
	if len(s.done) >= mostSpared {
		s.forget()
	}
	if len(s.done) >= mostSpared {
		l.causer = causer{pid: -1}
		if d := s.done[l]; d != nil {
			return d
		}
	}
	d := &spared{}
	s.done[l] = d
	return d
}

// forget drops those of whom nothing was written for a second: their next lines begin anew.
func (s *sparing) forget() {
	for l, d := range s.done {
		if time.Since(d.since) >= time.Second {
			delete(s.done, l)
		}
	}
}
