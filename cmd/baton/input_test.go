package main_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The first Ctrl-C ends the wait for input that does not come, and so does --timeout.
func TestWaitForInputEnds(t *testing.T) {
	p := newPlace(t)
	p.serve()
	fifo := pipe(t, p.file("fifo"))
	for _, args := range [][]string{{"set", "x", "-"}, {"set", "x", fifo}, {"call", "f", "@-"}, {"call", "f", "@" + fifo}} {
		silent, writer, err := os.Pipe()
		require.NoError(t, err)
		defer silent.Close()
		defer writer.Close()
		cmd := p.command(args...)
		cmd.Stdin = silent
		r := p.start(cmd)
		p.until("it waits", func() bool { return waitsIn(cmd.Process.Pid, "do_poll", "do_sys_poll", "poll_schedule_timeout") })
		r.signal(syscall.SIGINT)
		assert.Equal(t, 130, r.wait().code, "%s", args)

		p.batonWith(silent, append(args, "--timeout", "50ms")...).fails(t, 5, "nothing came from ", "--timeout")
	}
}

// waitsIn tells whether a thread of a process waits in one of some functions of the kernel.
func waitsIn(pid int, functions ...string) bool {
	places, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/wchan")
	return slices.ContainsFunc(places, func(path string) bool {
		at, _ := os.ReadFile(path)
		return slices.ContainsFunc(functions, func(f string) bool { return strings.HasPrefix(string(at), f) })
	})
}

// So it does with that for a reader of a pipe.
func TestWaitForAReaderEnds(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.must("set", "x", p.array("a.npy", "uint8", []int64{1 << 20}, make([]byte, 1<<20)))
	fifo := pipe(t, p.file("fifo"))
	r := p.start(p.command("get", "x", "-o", fifo))
	reader, err := os.Open(fifo) // it has the pipe open, and no more than a part of the array fits
	require.NoError(t, err)
	defer reader.Close()
	_, err = reader.Read(make([]byte, 1))
	require.NoError(t, err)
	r.signal(syscall.SIGINT)
	assert.Equal(t, 130, r.wait().code)

	r = p.start(p.command("get", "x", "-o", pipe(t, p.file("other"))))
	p.until("it has a session", func() bool { return strings.Contains(p.must("ls", "sessions"), "baton get") })
	r.signal(syscall.SIGINT)
	assert.Equal(t, 130, r.wait().code)
}

// A pipe that is written is read to its end.
func TestSetReadsAPipe(t *testing.T) {
	p := newPlace(t)
	p.serve()
	data, err := os.ReadFile(p.array("a.npy", "uint8", []int64{3}, []byte{7, 8, 9}))
	require.NoError(t, err)
	fifo := pipe(t, p.file("fifo"))
	r := p.start(p.command("set", "x", fifo, "--timeout", "1m"))
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	require.NoError(t, err)
	for _, part := range [][]byte{data[:4], data[4 : len(data)-1], data[len(data)-1:]} {
		_, err = w.Write(part)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.Zero(t, r.wait().code)
	p.must("get", "x", "-o", "o.npy")
	got, err := os.ReadFile(p.file("o.npy"))
	require.NoError(t, err)
	assert.Equal(t, data, got)
}
