// Package logqueue keeps a log from waiting for its reader: lines go through a bounded queue, which
// one goroutine writes. What does not fit is dropped and counted.
//
// Ownership: a [Queue] copies what it is given. Concurrency: any goroutine may call; its lock is held
// over no write. Hostile peers: none, it looks into no line. Death: lines that stand in the queue are gone with
// the process, so each way out of it calls [Queue.Flush].
package logqueue

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// Most is how many bytes of lines wait, at most; one line may be longer where none else waits.
const Most = 1 << 20

// stallsAfter is how long a write may take until its reader counts as one that stalls.
const stallsAfter = time.Second

// Queue is a writer that never waits. Each Write is a line, and is written by itself, in the order
// of the calls.
type Queue struct {
	mu    sync.Mutex // over what follows
	to    *pen
	tell  func(to io.Writer, lines uint64) error
	lines [][]byte
	size  int // of the lines, and of the one that is written
	// gap is how many lines were dropped since the queue was full. They came after all that are in
	// it: no line enters it until that is empty, so that one line counts them all.
	gap uint64
	// untold is how many lines are lost before the first one in the queue, and were not told yet.
	untold uint64
	lost   uint64        // in all
	began  time.Time     // the write that is under way; zero: none is
	idle   chan struct{} // closed when the goroutine has written all; nil: none runs
}

// Status is how a log is.
type Status struct {
	// Lost is how many lines were dropped, since nothing read the log or it could not be written.
	Lost uint64 `json:"lost"`
	// Stalled is for how many seconds a write has waited for the log's reader; 0: none does, or for a moment only.
	Stalled float64 `json:"stalled,omitempty"`
}

// String says it in words.
func (s Status) String() string {
	text := fmt.Sprintf("%d lines lost since the broker started", s.Lost)
	if s.Stalled > 0 {
		text += fmt.Sprintf("; nothing has read it for %.0f s", s.Stalled)
	}
	return text
}

// New makes the queue of a log.
func New(to io.Writer) *Queue {
	return &Queue{to: &pen{to: to}, tell: func(to io.Writer, lines uint64) error {
		_, err := fmt.Fprintf(to, "%d lines of the log were lost\n", lines)
		return err
	}}
}

// Lead has the lines that are not written yet go to another writer. cut: what that one has ends within a line.
func (q *Queue) Lead(to io.Writer, cut bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.to = &pen{to: to, cut: cut}
}

// OnLoss sets what tells, in the log, how many lines were lost at that place.
func (q *Queue) OnLoss(tell func(to io.Writer, lines uint64) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tell = tell
}

// Write puts a line in the queue, or drops it. It never fails.
func (q *Queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gap > 0 || q.size > 0 && q.size+len(line) > Most {
		q.gap++
		q.lost++
		return len(line), nil
	}
	q.lines = append(q.lines, bytes.Clone(line))
	q.size += len(line)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.write()
	}
	return len(line), nil
}

// Flush waits until all lines are written, at most for the time given. It tells whether they are.
func (q *Queue) Flush(most time.Duration) bool {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return true
	}
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case <-idle:
		return true
	case <-late.C:
		return false
	}
}

// Status tells how the log is.
func (q *Queue) Status() Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Status{Lost: q.lost}
	if !q.began.IsZero() {
		if since := time.Since(q.began); since > stallsAfter {
			s.Stalled = since.Seconds()
		}
	}
	return s
}

// write writes until the queue is empty. What was lost is told before the line that follows it, and
// not where that fails as well: the next line tries again.
func (q *Queue) write() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		var line []byte
		if len(q.lines) > 0 {
			line, q.lines = q.lines[0], q.lines[1:]
		} else {
			q.lines = nil
			q.untold += q.gap
			q.gap = 0
		}
		told, tell, untold := true, q.tell, q.untold
		if untold > 0 {
			told = q.tried(func(to io.Writer) error { return tell(to, untold) })
		}
		if told {
			q.untold = 0
		}
		if line != nil {
			if !told || !q.tried(func(to io.Writer) error { _, err := to.Write(line); return err }) {
				q.untold++
				q.lost++
			}
			q.size -= len(line)
		} else if len(q.lines) == 0 {
			close(q.idle)
			q.idle = nil
			return
		}
	}
}

// pen writes whole lines, one with each Write. Where a write has ended within its line, as on a file system that became
// full, a newline comes before the next one. The goroutine that writes has it alone.
type pen struct {
	to  io.Writer
	cut bool // what was written ends within a line
}

func (p *pen) Write(line []byte) (int, error) {
	before := 0
	if p.cut {
		line = append([]byte{'\n'}, line...) // one write: another process may write to the same file
		before = 1
	}
	n, err := p.to.Write(line)
	if n > 0 {
		p.cut = err != nil && line[n-1] != '\n'
	}
	return max(n-before, 0), err
}

// tried writes, without the lock, and tells whether that was possible.
func (q *Queue) tried(write func(to io.Writer) error) bool {
	to := q.to
	q.began = time.Now()
	q.mu.Unlock()
	err := write(to)
	q.mu.Lock()
	q.began = time.Time{}
	return err == nil
}
