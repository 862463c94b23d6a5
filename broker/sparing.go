package broker

import (
	"log/slog"
	"sync"
	"time"
)

// sparing bounds the log lines that any program can cause: a few per second for each message
// and program, or per minute for a user that may not connect, so that the lines of one program do not hide another's. The next line after
// some that were left out has their number.
type sparing struct {
	log  *slog.Logger
	mu   sync.Mutex
	done map[line]*spared
}

// line is what is counted: a message about a program.
type line struct {
	causer causer
	msg    string
}

// causer is the program that causes a line. All processes of a user that may not connect are
// one, pid 0: such a user starts as many as it likes.
type causer struct {
	uid uint32
	pid int
}

// window is how long a few lines are all that a program gets. A user that may not connect is
// refused the same thing each time.
func (c causer) window() time.Duration {
	if c.pid == 0 {
		return time.Minute
	}
	return time.Second
}

type spared struct {
	since            time.Time
	written, leftOut int
}

const (
	linesPerSecond = 5 // per minute for a user that may not connect
	// mostSpared is how many programs have a count of their own at once. Further programs share
	// one count.
	mostSpared = 256
)

func newSparing(log *slog.Logger) *sparing { return &sparing{log: log, done: map[line]*spared{}} }

// Warn is as that of a Logger. Messages are few: what differs stands in args.
func (s *sparing) Warn(by causer, msg string, args ...any) {
	s.mu.Lock()
	d := s.of(line{by, msg})
	if now := time.Now(); now.Sub(d.since) >= by.window() {
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

// forget drops programs without a line for a second: their next lines begin anew.
func (s *sparing) forget() {
	for l, d := range s.done {
		if time.Since(d.since) >= l.causer.window() {
			delete(s.done, l)
		}
	}
}
