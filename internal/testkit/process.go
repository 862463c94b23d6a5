package testkit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ipc/baton/internal/tail"
)

// logBytes is how much of a child's standard error is kept.
const logBytes = 256 << 10

// Process is a child of the test: a role, or a broker.
type Process struct {
	Name string
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	log  *tail.Buffer // of its standard error

	mu    sync.Mutex // guards what follows
	lines [][]byte   // said and not yet taken
	more  chan struct{}
	ended chan struct{} // closed when it was waited for
	err   error         // how it ended
	over  bool          // its end was looked at
}

// startProcess starts a program whose lines of standard output can be taken.
func startProcess(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Name: name, t: t, cmd: cmd, log: tail.New(logBytes), more: make(chan struct{}, 1), ended: make(chan struct{})}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	cmd.Stderr = p.log
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p.in = in
	go p.read(out)
	return p
}

func (p *Process) read(out io.Reader) {
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			p.mu.Lock()
			p.lines = append(p.lines, line)
			p.mu.Unlock()
			p.nudge()
		}
		if err != nil {
			break
		}
	}
	err := p.cmd.Wait()
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	close(p.ended)
	p.nudge()
}

func (p *Process) nudge() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// PID returns the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns the end of what the process wrote to its standard error.
func (p *Process) Log() string { return p.log.String() }

// Next waits for the process's next line and decodes it. The test fails when the
// process ends without one.
func (p *Process) Next(v any) {
	p.t.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	for {
		if p.Poll(v) {
			return
		}
		select {
		case <-p.more:
		case <-p.ended:
			if p.Poll(v) {
				return
			}
			p.t.Fatalf("%s ended (%v) where it should have said something\n%s", p.Name, p.result(), p.Log())
		case <-late.C:
			p.t.Fatalf("%s says nothing\n%s", p.Name, p.stacks())
		}
	}
}

// Poll is Next for when there may be nothing: then it returns false.
func (p *Process) Poll(v any) bool {
	p.t.Helper()
	p.mu.Lock()
	if len(p.lines) == 0 {
		p.mu.Unlock()
		return false
	}
	line := p.lines[0]
	p.lines = p.lines[1:]
	p.mu.Unlock()
	if err := json.Unmarshal(line, v); err != nil {
		p.t.Fatalf("%s said %q: %v", p.Name, line, err)
	}
	return true
}

// Tell sends the process a value, as one line of JSON. One that has ended gets
// nothing.
func (p *Process) Tell(v any) {
	p.t.Helper()
	line, err := json.Marshal(v)
	if err != nil {
		p.t.Fatalf("tell %s: %v", p.Name, err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, os.ErrClosed) {
		p.t.Fatalf("tell %s: %v", p.Name, err)
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.await()
	p.markOver()
}

// Killed waits until the process has ended by SIGKILL, of its own or another's
// doing, and fails the test if it ends otherwise.
func (p *Process) Killed() {
	p.t.Helper()
	p.await()
	if !p.bySignal(syscall.SIGKILL) {
		p.t.Fatalf("%s was to be killed, and ended with: %v\n%s", p.Name, p.result(), p.Log())
	}
	p.markOver()
}

// Stop stops the process with SIGSTOP and waits until all of it is suspended.
func (p *Process) Stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	Until(p.t, p.Name+" is suspended", func() (bool, string) {
		s := threadStates(p.PID())
		return s != "" && strings.Trim(s, "T") == "", s
	})
}

// threadStates returns the state letter of every thread of a process.
func threadStates(pid int) string {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	tasks, _ := os.ReadDir(dir)
	states := ""
	for _, task := range tasks {
		data, err := os.ReadFile(dir + "/" + task.Name() + "/stat")
		if i := bytes.LastIndexByte(data, ')'); err == nil && i >= 0 && i+2 < len(data) {
			states += string(data[i+2])
		}
	}
	return states
}

// Cont lets a suspended process go on.
func (p *Process) Cont() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
}

// Done lets a child end by itself, by the end of its standard input, and fails
// the test unless it ends well.
func (p *Process) Done() {
	p.t.Helper()
	p.in.Close()
	p.Ended()
}

// Ended waits for the process to end by itself, and well.
func (p *Process) Ended() {
	p.t.Helper()
	p.await()
	p.markOver()
	if err := p.result(); err != nil {
		p.t.Fatalf("%s failed: %v\n%s", p.Name, err, p.Log())
	}
}

// Wait waits for the process to end in whatever way; Result and WasKilled tell how.
func (p *Process) Wait() {
	p.t.Helper()
	p.await()
	p.markOver()
}

// Result tells how an ended process ended: nil is well.
func (p *Process) Result() error { return p.result() }

// WasKilled tells whether an ended process ended by SIGKILL.
func (p *Process) WasKilled() bool { return p.bySignal(syscall.SIGKILL) }

// Fails waits for the process to end by itself with a failure, and returns what
// it wrote to its standard error.
func (p *Process) Fails() string {
	p.t.Helper()
	p.await()
	p.markOver()
	if p.result() == nil {
		p.t.Fatalf("%s was to fail and ended well", p.Name)
	}
	return p.Log()
}

// Alive tells whether the process has not ended.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *Process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatalf("signal %v to %s: %v", s, p.Name, err)
	}
}

func (p *Process) await() {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(Patience):
		p.t.Fatalf("%s does not end\n%s", p.Name, p.stacks())
	}
}

// stacks ends a process that hangs with SIGQUIT, which makes it tell what its
// goroutines do, and returns that.
func (p *Process) stacks() string {
	p.cmd.Process.Signal(syscall.SIGCONT)
	p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
	}
	return p.Log()
}

func (p *Process) result() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *Process) bySignal(s syscall.Signal) bool {
	var e *exec.ExitError
	if !errors.As(p.result(), &e) {
		return false
	}
	w, ok := e.Sys().(syscall.WaitStatus)
	return ok && w.Signaled() && w.Signal() == s
}

func (p *Process) markOver() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.in.Close()
}

// cleanUp is called after the test: a process that still runs, or whose end
// was not looked at, is a failure.
func (p *Process) cleanUp() {
	p.mu.Lock()
	over := p.over
	p.mu.Unlock()
	if over {
		return
	}
	if p.Alive() {
		if !p.t.Failed() {
			p.t.Errorf("%s (process %d) still runs after the test\n%s", p.Name, p.PID(), p.Log())
		} else {
			p.t.Logf("%s, when the test failed:\n%s", p.Name, p.stacks())
		}
		p.cmd.Process.Signal(syscall.SIGKILL)
		p.cmd.Process.Signal(syscall.SIGCONT)
		<-p.ended
		return
	}
	if err := p.result(); err != nil {
		p.t.Errorf("%s failed unseen: %v\n%s", p.Name, err, p.Log())
	}
}
