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
	end    func() // kills it, where that may be wanted
}

// start runs a job in a process of its own, on some CPUs alone. It is killed
// when ctx ends.
func start(ctx context.Context, j job, cpus []int, memory *sys.FD) (*process, error) {
	program, arguments, _ := strings.Cut(j.programs[min(j.Side, right)], "\n")
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
	args := []string{roleArgument}
	if arguments != "" {
		args = []string{arguments, roleArgument}
	}
	p := &process{cmd: exec.CommandContext(ctx, program, args...), ended: make(chan struct{})}
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

// outcome is what the processes of a job did.
type outcome struct {
	series [seriesCount][]uint64
	values []map[string][]float64 // of each side
}

// gaps subtracts one series from another, leaving out the first numbers.
func (o *outcome) gaps(to, from, skip int) []int64 {
	return o.gapsOf(to, from, skip, len(o.series[to]))
}

// gapsOf does so for the rounds from first to end.
func (o *outcome) gapsOf(to, from, first, end int) []int64 {
	d := make([]int64, end-first)
	for i := range d {
		d[i] = int64(o.series[to][first+i] - o.series[from][first+i])
	}
	return d
}

// couple is two processes at work on one job, or more where it has more readers, on
// one CPU each.
type couple struct {
	job    job
	page   *page
	sides  []*process
	cancel context.CancelFunc // ends them
}

func startCouple(ctx context.Context, cpus []int, j job) (*couple, error) {
	memory, pg, err := newPage(j.N)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	ctx, cancel := context.WithCancel(ctx)
	j.Page = j.N
	c := &couple{job: j, page: pg, cancel: cancel}
	for side := range 1 + max(1, j.Readers) {
		j.Side = side
		var on []int // any
		if len(cpus) > 0 {
			on = cpus[side : side+1]
		}
		p, err := start(ctx, j, on, memory)
		if err != nil {
			cancel()
			c.finish()
			return nil, err
		}
		c.sides = append(c.sides, p)
	}
	return c, nil
}

// finish waits until all have ended. When one fails the others are killed.
func (c *couple) finish() (*outcome, error) {
	defer c.page.close()
	defer c.cancel()
	o := &outcome{values: make([]map[string][]float64, len(c.sides))}
	errs := make([]error, len(c.sides))
	var group sync.WaitGroup
	for side, p := range c.sides {
		group.Go(func() {
			if o.values[side], errs[side] = p.wait(); errs[side] != nil {
				c.cancel()
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for k := range o.series {
		o.series[k] = slices.Clone(c.page.series(k))
	}
	return o, nil
}

// runPair runs one job in two processes and waits for both.
func runPair(ctx context.Context, cpus []int, j job) (*outcome, error) {
	c, err := startCouple(ctx, cpus, j)
	if err != nil {
		return nil, err
	}
	return c.finish()
}
