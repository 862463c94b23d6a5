package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() { roles["starved"] = starved }

// openAll opens files until this process may have no more.
func openAll() (files []*os.File) {
	for {
		f, err := os.Open("/dev/null")
		if err != nil {
			return files
		}
		files = append(files, f)
	}
}

// starved opens files until it may have no more, and tries what needs one.
func starved(p *testkit.Child) error {
	ctx := p.Context()
	c, err := p.Connect()
	if err != nil {
		return err
	}
	q, err := c.Queue(ctx, "own")
	if err != nil {
		return err
	}
	turn := func(id int) error { // what is mapped already goes on
		if err := sendNoted(ctx, c, queueSender{q}, 16, newNote("starved", id)); err != nil {
			return err
		}
		m, err := q.Get(ctx)
		if err != nil {
			return err
		}
		defer m.Release()
		_, err = verifyMessage(m)
		return err
	}
	if err := turn(0); err != nil {
		return err
	}
	work, err := c.Queue(ctx, "work")
	if err != nil {
		return err
	}
	if m, err := work.TryGet(ctx); m != nil || err != nil {
		return fmt.Errorf("nothing was put yet: %v, %w", m, err)
	}
	if err := p.Say("ready"); err != nil {
		return err
	}
	if err := p.Hear(new(string)); err != nil {
		return err
	}
	files := openAll()
	refused := func(what string, err error) error {
		if !errors.Is(err, protocol.ErrTooMany) {
			return fmt.Errorf("%s without a free descriptor: %w", what, err)
		}
		return nil
	}
	large := []int64{32 << 20}
	for id := range 3 {
		_, err := c.Alloc(ctx, dlpack.Uint8, large)
		if err := refused("a grant", err); err != nil {
			return err
		}
		_, err = c.Get(ctx, "weights/other")
		if err := refused("another's name", err); err != nil {
			return err
		}
		_, err = work.Get(ctx)
		if err := refused("another's item", err); err != nil {
			return err
		}
		if err := turn(1 + id); err != nil {
			return err
		}
	}
	_, err = p.Connect()
	if err := refused("a connection", err); err != nil {
		return err
	}
	// Room for the socket, and not for all that comes through it.
	for range 3 {
		files[len(files)-1].Close()
		files = files[:len(files)-1]
	}
	_, err = p.Connect()
	if err := refused("a session", err); err != nil {
		return err
	}
	if err := p.Say("refused"); err != nil {
		return err
	}
	if err := p.Hear(new(string)); err != nil {
		return err
	}
	for _, f := range files {
		f.Close()
	}
	x, err := c.Alloc(ctx, dlpack.Uint8, large)
	if err != nil {
		return err
	}
	x.Release()
	w, err := c.Get(ctx, "weights/other")
	if err != nil {
		return err
	}
	err = verifyBundle(w, 3)
	w.Release()
	if err != nil {
		return err
	}
	m, err := work.Get(ctx)
	if err != nil {
		return err
	}
	_, err = verifyMessage(m)
	m.Release()
	if err != nil {
		return err
	}
	for _, q := range []*client.Queue{q, work} {
		if err := q.Close(); err != nil {
			return err
		}
	}
	return c.Close()
}

// A client that may open no more files is told so, loses neither its session nor
// what it has, and leaves nothing of what it could not be given.
func TestClientWithoutDescriptorsIsToldSo(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	_, err := publish(ctx, c, "weights/other", 3)
	require.NoError(t, err)
	work, err := c.Queue(ctx, "work")
	require.NoError(t, err)
	p := b.Start("starved", nil, testkit.OpenFiles(64))
	p.Next(new(string))
	require.NoError(t, sendNoted(ctx, c, queueSender{work}, 16, newNote("other", 0)))
	p.Tell("put")
	p.Next(new(string))
	testkit.Until(t, "nothing of the refused is left", func() (bool, string) {
		h := testkit.Look(t, b)
		sessions, segments := 0, 0
		for _, s := range h.Sessions {
			if s.PID == p.PID() {
				sessions++
			}
		}
		for _, s := range h.Segments {
			if s.PID == p.PID() {
				segments++
			}
		}
		return sessions == 1 && segments == 1, fmt.Sprintf("%d sessions, %d segments", sessions, segments)
	})
	p.Tell("go on")
	p.Ended()
	require.NoError(t, work.Close())
	require.NoError(t, c.Delete(ctx, "weights/other"))
	testkit.AuditEmpty(t, b, c)
}

// A broker of which one program has all the queues that it may have is replaced by one with
// the same limit.
func TestBrokerFullOfQueuesIsReplaced(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.OpenFiles = 320 })
	ctx, c := testkit.Context(t), b.Connect()
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	var queues []*client.Queue
	for {
		q, err := c.Queue(ctx, fmt.Sprintf("q/%d", len(queues)))
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrTooMany)
			break
		}
		queues = append(queues, q)
	}
	require.Greater(t, len(queues), 140)
	require.NoError(t, queues[0].Put(ctx, x))
	x.Release()
	b.Replace()
	m, err := queues[0].Get(ctx)
	require.NoError(t, err)
	m.Release()
	for _, q := range queues {
		require.NoError(t, q.Close())
	}
}

// A broker that comes near its limit of open files refuses sessions, keeps those it has,
// and takes new ones when one has gone. One that comes after it, with the same limit, takes
// over all of them.
func TestBrokerNearItsFileLimitRefusesSessions(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.OpenFiles = 320 })
	first := newPong(t, b)
	first.rounds(10)
	var more []*client.Client
	for {
		c, err := b.TryConnect()
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrTooMany)
			require.ErrorContains(t, err, "open files to")
			break
		}
		more = append(more, c)
	}
	require.NotEmpty(t, more)
	// What is left is kept for other programs: for one whose parent, and so all that it is
	// counted with, is gone.
	array := filepath.Join(t.TempDir(), "x.npy")
	header := "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }"
	header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
	require.NoError(t, os.WriteFile(array, []byte("\x93NUMPY\x01\x00"+string([]byte{byte(len(header)), 0})+header+"\x07"), 0o600))
	testkit.Until(t, "another program is served", func() (bool, string) {
		err := exec.Command("sh", "-c", `"$0" set limit/other "$1" --address "$2" --namespace "$3" >/dev/null 2>&1 &`, testkit.Binary(t), array, b.Socket, first.c.Namespace()).Run()
		require.NoError(t, err)
		x, err := first.c.Get(testkit.Context(t), "limit/other")
		if err != nil {
			return false, err.Error()
		}
		x.Release()
		return true, ""
	})
	for {
		x, err := first.c.Alloc(testkit.Context(t), dlpack.Uint8, []int64{32 << 20})
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrTooMany)
			break
		}
		defer x.Release()
	}
	for _, look := range [][]string{{"status"}, {"ls"}, {"ls", "sessions"}} {
		out, err := exec.Command(testkit.Binary(t), append(look, "--address", b.Socket)...).CombinedOutput()
		require.NoError(t, err, "an operator sees what it holds: %s", out)
	}
	for _, another := range []func(){func() { b.Kill(); b.Restart() }, func() { b.Term(); b.Restart() }, func() { b.Replace() }} {
		another()
		first.rounds(10)
		for _, c := range more {
			require.NoError(t, c.Broker(testkit.Context(t), protocol.OpStatus, nil, &struct{}{}))
		}
	}
	for _, c := range more[:2] {
		require.NoError(t, c.Close())
	}
	testkit.Until(t, "a new session is taken", func() (bool, string) {
		_, err := b.TryConnect()
		return err == nil, fmt.Sprint(err)
	})
	first.rounds(10)
	first.p.Done()
}

// Programs that connect while a broker waits for the clients of the previous one leave it the
// open files that it needs for those: all come back.
func TestProgramsThatConnectLeaveFilesForATakeover(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.OpenFiles = 320 })
	ctx := testkit.Context(t)
	var all []*client.Client
	for {
		c, err := b.TryConnect()
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrTooMany)
			break
		}
		all = append(all, c)
		x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrTooMany)
			break
		}
		defer x.Release()
	}
	require.Greater(t, len(all), 10)
	b.Kill()
	const newcomers = 500
	connected := make(chan error, newcomers)
	for range newcomers {
		go func() {
			c, err := b.TryConnect()
			if err == nil {
				err = c.Close()
			}
			connected <- err
		}()
	}
	require.Empty(t, b.TryRestart())
	for _, c := range all {
		require.NoError(t, c.Broker(ctx, protocol.OpStatus, nil, &struct{}{}))
	}
	for range newcomers {
		if err := <-connected; err != nil {
			require.ErrorIs(t, err, protocol.ErrTooMany)
		}
	}
}
