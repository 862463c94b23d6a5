package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

func init() { roles["waiting"] = waiting }

// waiting is a client that waits for a message that does not come.
func waiting(ctx context.Context, s *seat) error {
	c, err := connect(ctx, s.Socket, "bench-waiting")
	if err != nil {
		return err
	}
	defer c.Close()
	t, err := c.Topic(ctx, s.Path)
	if err != nil {
		return err
	}
	r, err := t.Reader(ctx)
	if err != nil {
		return err
	}
	s.store(lineCount, c.Session())
	sys.FutexWake(s.word32(lineCount))
	r.Receive(ctx) // until the parent ends this process
	return nil
}

// usage is what a process has taken so far.
type usage struct {
	cpu      time.Duration // of all threads that live
	switches uint64        // how often they went to sleep by themselves
	resident int64
}

// usageOf reads a process's figures from /proc.
func usageOf(pid int) (usage, error) {
	var u usage
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		return u, fmt.Errorf("process %d has no threads", pid)
	}
	for _, t := range tasks {
		// A thread may end while we look.
		if data, err := os.ReadFile(filepath.Join(t, "schedstat")); err == nil {
			if f := bytes.Fields(data); len(f) > 0 {
				ns, _ := strconv.ParseInt(string(f[0]), 10, 64)
				u.cpu += time.Duration(ns)
			}
		}
		if n, ok := statusNumber(filepath.Join(t, "status"), "voluntary_ctxt_switches:"); ok {
			u.switches += uint64(n)
		}
	}
	kib, ok := statusNumber(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
	if !ok {
		return u, fmt.Errorf("process %d does not tell its resident memory", pid)
	}
	u.resident = kib << 10
	if u.cpu == 0 { // a kernel without schedstat: the clock ticks of all threads
		if u.cpu, err = ticksOf(pid); err != nil {
			return u, err
		}
	}
	return u, nil
}

func statusNumber(path, key string) (int64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for _, line := range strings.Split(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, key); ok {
			f := strings.Fields(rest)
			if len(f) == 0 {
				return 0, false
			}
			n, err := strconv.ParseInt(f[0], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// ticksOf adds utime and stime. A tick is a hundredth of a second in what the
// kernel shows to programs.
func ticksOf(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	var sum int64
	for _, field := range f[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		sum += n
	}
	return time.Duration(sum) * 10 * time.Millisecond, nil
}

// restTime is how long to let a process come to rest before a window.
func restTime(window time.Duration) time.Duration { return window / 5 }

// watch lets a process come to rest, then tells what it takes in a time.
func watch(ctx context.Context, pid int, d time.Duration) (usage, error) {
	select {
	case <-time.After(restTime(d)):
	case <-ctx.Done():
		return usage{}, ctx.Err()
	}
	before, err := usageOf(pid)
	if err != nil {
		return before, err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return before, ctx.Err()
	}
	after, err := usageOf(pid)
	after.cpu -= before.cpu
	after.switches -= before.switches
	return after, err
}
