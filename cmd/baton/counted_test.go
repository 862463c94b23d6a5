package main_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/shortdir"
)

// counting listens in a broker's place, passes on what commands and the broker say, and counts the broker's bytes.
func (p *place) counting() func(args ...string) (text string, bytes int64) {
	p.t.Helper()
	socket := filepath.Join(shortdir.New(p.t), "c.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { l.Close() })
	var bytes atomic.Int64
	go func() {
		for {
			from, err := l.AcceptUnix()
			if err != nil {
				return
			}
			to, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.socket(), Net: "unix"})
			if err != nil {
				from.Close()
				return
			}
			go func() {
				io.Copy(to, from)
				to.CloseWrite()
			}()
			go func() {
				defer from.Close()
				defer to.Close()
				io.Copy(from, io.TeeReader(to, countingWriter{&bytes}))
			}()
		}
	}()
	return func(args ...string) (string, int64) {
		before, began := bytes.Load(), time.Now()
		text := p.must(append(args, "--address", "unix:"+socket)...)
		p.t.Logf("%s: %d bytes in %s", strings.Join(args, " "), bytes.Load()-before, time.Since(began))
		return text, bytes.Load() - before
	}
}

type countingWriter struct{ n *atomic.Int64 }

func (w countingWriter) Write(data []byte) (int, error) {
	w.n.Add(int64(len(data)))
	return len(data), nil
}

// What is asked for by its number costs the same, however many others there are.
func TestShowAsksForOneStorageOfMany(t *testing.T) {
	p := newPlace(t)
	p.serve("--no-nats")
	c := p.client()
	many := 2000
	if text := os.Getenv("BATON_STORAGES"); text != "" {
		var err error
		many, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for range many {
		x, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{1})
		require.NoError(t, err)
		t.Cleanup(x.Release)
	}
	mine := p.client(client.WithName("other"))
	x := p.tensor(mine, 16)
	h, err := x.Handle(p.ctx())
	require.NoError(t, err)
	answered := p.counting()
	for _, number := range []uint32{1, uint32(many - 1), h.Index} {
		text, bytes := answered("show", "storage", fmt.Sprint(number))
		assert.Regexp(t, fmt.Sprintf(`(?m)^storage +%d$`, number), text)
		assert.Less(t, bytes, int64(1024), "one row")
	}
	text, bytes := answered("show", "lease", fmt.Sprint(*h.Lease))
	assert.Regexp(t, fmt.Sprintf(`(?m)^lease +%d$`, *h.Lease), text)
	assert.Less(t, bytes, int64(1024), "one row")
	text, bytes = answered("show", "session", "other")
	assert.Regexp(t, fmt.Sprintf(`(?m)^ *%d +64 B .*other`, h.Index), text)
	assert.Less(t, bytes, int64(8<<10), "the storages of one session")
	_, bytes = answered("ls", "storages")
	assert.Greater(t, bytes, int64(100*many), "all are told here")
}
