package demo

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/tail"
)

// tailBytes is how much of what a child writes is kept for the day that it fails.
const tailBytes = 4096

// child is a process that Run started: the broker or a role.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   *tail.Buffer  // of its standard error
	ended chan struct{} // closed once it has been waited for
	err   error         // how it ended, from then on
}

// event is what a child did: it reported, or it ended.
type event struct {
	from   *child
	report *report // nil: it has ended
}

// children starts processes that end with this one.
type children struct {
	env    []string
	events chan event
	all    []*child
}

// environment is what children see of ours: no setting of Baton but the private
// broker's address, so that nothing of it reaches the user's broker or NATS.
func environment(socket string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "BATON_") {
			env = append(env, e)
		}
	}
	return append(env, address.EnvAddress+"=unix:"+socket, address.EnvNamespace+"="+namespace)
}

// start runs a program with arguments. The caller's goroutine must stay on its
// thread as long as the child lives, because end is what the kernel sends the
// child when that thread ends. A child has a process group of its own: Ctrl-C
// reaches Run alone, which then ends all in good order.
//
// What it writes on standard error goes to log; nil: its end is kept for failure.
func (k *children) start(name string, log *os.File, end syscall.Signal, program string, args ...string) (*child, error) {
	c := &child{name: name, cmd: exec.Command(program, args...), log: tail.New(tailBytes), ended: make(chan struct{})}
	c.cmd.Env, c.cmd.Stderr = k.env, c.log
	if log != nil {
		c.cmd.Stderr = log
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.stdin, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	k.all = append(k.all, c)
	go k.read(c, out)
	return c, nil
}

// read passes a child's reports on, then its end.
func (k *children) read(c *child, out io.Reader) {
	lines := bufio.NewScanner(out)
	var wrong error
	for wrong == nil && lines.Scan() {
		var r report
		if wrong = json.Unmarshal(lines.Bytes(), &r); wrong == nil {
			k.events <- event{c, &r}
		}
	}
	if wrong == nil {
		wrong = lines.Err()
	}
	io.Copy(io.Discard, out) // so that it never waits for a reader
	c.err = c.cmd.Wait()
	if c.err == nil && wrong != nil {
		c.err = fmt.Errorf("malformed report: %w", wrong)
	}
	close(c.ended)
	k.events <- event{from: c}
}

// killed tells whether an ended child was ended by a signal.
func (c *child) killed(by syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(c.err, &exit) {
		return false
	}
	w, ok := exit.Sys().(syscall.WaitStatus)
	return ok && w.Signaled() && w.Signal() == by
}

// failure describes how a child ended that should not have ended, or not so.
func (c *child) failure() error {
	err := c.err
	if err == nil {
		err = errors.New("it ended too early")
	}
	if said := c.log.String(); said != "" {
		return fmt.Errorf("%s (pid %d): %w\n%s", c.name, c.cmd.Process.Pid, err, said)
	}
	return fmt.Errorf("%s (pid %d): %w", c.name, c.cmd.Process.Pid, err)
}

// stop ends a child: politely at first where polite is a signal, then by SIGKILL.
// It returns when the child has been waited for.
func (c *child) stop(polite syscall.Signal, patience time.Duration) {
	if polite != 0 && c.cmd.Process.Signal(polite) == nil {
		select {
		case <-c.ended:
			return
		case <-time.After(patience):
		}
	}
	c.cmd.Process.Kill()
	<-c.ended
}

// stopAll ends the children, the first one, which serves the others, last. Events
// are thrown away from here on.
func (k *children) stopAll() {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-k.events:
			case <-done:
				return
			}
		}
	}()
	for i := len(k.all) - 1; i >= 0; i-- {
		if i > 0 {
			k.all[i].stop(0, 0)
		} else {
			k.all[i].stop(syscall.SIGTERM, 10*time.Second)
		}
	}
	close(done)
}
