package broker

import (
	"log/slog"
	"sync"
	"time"

	"github.com/baton-ipc/baton/broker/events"
)

// sparing bounds the log lines that any program can cause: a few per second for each message
// and program, or per minute for a user that may not connect, so that the lines of one program do not hide another's. The next line after
// some that were left out has their number; without a next one the last of them is written when its second or minute is over.
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
	last             []any // of the line that was left out last
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
		if d.leftOut == 0 {
			time.AfterFunc(time.Until(d.since.Add(by.window())), func() { s.writeLast(d, msg) })
		}
		d.leftOut++
		d.last = args
		s.mu.Unlock()
		return
	}
	args = d.write(args)
	s.mu.Unlock()
	s.log.Warn(msg, args...)
}

// writeLast writes the line that was left out last, if no other one has followed: its program may have ended.
func (s *sparing) writeLast(d *spared, msg string) {
	s.mu.Lock()
	if d.leftOut == 0 {
		s.mu.Unlock()
		return
	}
	d.leftOut--
	d.since, d.written = time.Now(), 0
	args := d.write(d.last)
	s.mu.Unlock()
	s.log.Warn(msg, args...)
}

// write counts a line, and gives it the number of those that were left out before it. The mutex is held.
func (d *spared) write(args []any) []any {
	d.written++
	if d.leftOut > 0 {
		args = append(args, events.LeftOut, d.leftOut)
	}
	d.leftOut, d.last = 0, nil
	return args
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
		if d.leftOut == 0 && time.Since(d.since) >= l.causer.window() {
			delete(s.done, l)
		}
	}
}
