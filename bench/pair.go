package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/baton-ipc/baton/internal/sys"
)

// process is a child at work.
type process struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	errOut bytes.Buffer
	ended  chan struct{}
	err    error
}

// start runs a job in a process of its own, on some CPUs alone. It is killed
// when ctx ends.
func start(ctx context.Context, j job, cpus []int, memory *sys.FD) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	raw, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self, RoleCommand), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), envJob+"="+string(raw))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errOut
	if memory != nil {
		dup, err := memory.Dup()
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(dup.Int()), "page") // owns the descriptor from here on
		defer f.Close()
		p.cmd.ExtraFiles = []*os.File{f}
	}
	if err := startOn(p.cmd, cpus); err != nil {
		return nil, fmt.Errorf("start %s: %w", j.Role, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// startOn starts a command that may use some CPUs alone; nil: all of ours. A
// child inherits the CPUs of the thread that forks it.
func startOn(cmd *exec.Cmd, cpus []int) error {
	if len(cpus) == 0 {
		return cmd.Start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, err := sys.Affinity()
	if err != nil {
		return err
	}
	if err := sys.SetAffinity(cpus); err != nil {
		return err
	}
	defer sys.SetAffinity(all)
	return cmd.Start()
}

// wait returns what the process reports once it has ended.
func (p *process) wait() (map[string][]float64, error) {
	<-p.ended
	if p.err != nil {
		text := strings.TrimSpace(p.errOut.String())
		return nil, fmt.Errorf("%w: %s", p.err, text)
	}
	values := map[string][]float64{}
	if err := json.Unmarshal(p.out.Bytes(), &values); err != nil {
		return nil, fmt.Errorf("read what a process reports: %w", err)
	}
	return values, nil
}

// outcome is what a pair did.
type outcome struct {
	*page
	values [2]map[string][]float64
}

// runPair runs one job in two processes, on one CPU each, and waits for both.
// When one fails the other is killed.
func runPair(ctx context.Context, cpus [2]int, j job) (*outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	memory, pg, err := newPage(j.N)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	j.Page = j.N
	var sides [2]*process
	for side := range sides {
		j.Side = side
		if sides[side], err = start(ctx, j, cpus[side:side+1], memory); err != nil {
			return nil, err
		}
	}
	o := &outcome{page: pg}
	errs := make([]error, 2)
	done := make(chan struct{})
	for side, p := range sides {
		go func() {
			if o.values[side], errs[side] = p.wait(); errs[side] != nil {
				cancel()
			}
			done <- struct{}{}
		}()
	}
	<-done
	<-done
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return o, nil
}
