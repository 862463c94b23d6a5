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
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/baton-ipc/baton/internal/sys"
)

// process is a child at work.
type process struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	errOut bytes.Buffer
	ended  chan struct{}
	err    error
	end    func() // kills it, where somebody may want that
}

// start runs a job in a process of its own, on some CPUs alone. It is killed
// when ctx ends.
func start(ctx context.Context, j job, cpus []int, memory *sys.FD) (*process, error) {
	program := j.programs[j.Side]
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		program = self
	}
	raw, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program, RoleCommand), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), envJob+"="+string(raw))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errOut
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
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
	series [seriesCount][]uint64
	values [2]map[string][]float64
}

// gaps subtracts one series from another, leaving out the first numbers.
func (o *outcome) gaps(to, from, skip int) []int64 {
	d := make([]int64, len(o.series[to])-skip)
	for i := range d {
		d[i] = int64(o.series[to][skip+i] - o.series[from][skip+i])
	}
	return d
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
	defer pg.close()
	defer memory.Close()
	j.Page = j.N
	var sides [2]*process
	for side := range sides {
		j.Side = side
		if sides[side], err = start(ctx, j, cpus[side:side+1], memory); err != nil {
			break
		}
	}
	o := &outcome{}
	errs := [3]error{err}
	var group sync.WaitGroup
	for side, p := range sides {
		if p == nil {
			cancel()
			continue
		}
		group.Go(func() {
			if o.values[side], errs[1+side] = p.wait(); errs[1+side] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for k := range o.series {
		o.series[k] = slices.Clone(pg.series(k))
	}
	return o, nil
}
