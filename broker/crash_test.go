package broker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

const crashItems = 6

// again repeats what a broker's death interrupted.
func again(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, protocol.ErrBrokerLost) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func filled(ctx context.Context, c *client.Client, v uint64) (x *client.Tensor, err error) {
	err = again(ctx, func() error {
		x, err = c.Alloc(ctx, dlpack.Uint64, []int64{512})
		return err
	})
	if err != nil {
		return nil, err
	}
	s, err := client.Slice[uint64](x)
	if err != nil {
		return nil, err
	}
	s[0] = v
	return x, nil
}

func init() {
	// giver sends items, sets a name that ends with it, and waits to be killed.
	parts["giver"] = func(c *played) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var cl *client.Client
		var q *client.Queue
		require.NoError(c, again(ctx, func() (err error) {
			cl, err = client.Connect(ctx, client.WithAddress(c.socket), client.WithStart(false), client.WithName("giver"))
			return err
		}))
		require.NoError(c, again(ctx, func() (err error) { q, err = cl.Queue(ctx, "work"); return err }))
		for i := range uint64(crashItems) {
			x, err := filled(ctx, cl, i)
			require.NoError(c, err)
			require.NoError(c, again(ctx, func() error { return q.Put(ctx, x) }))
			if i == 0 {
				require.NoError(c, again(ctx, func() error { _, err := cl.Set(ctx, "passing", x, client.Ephemeral()); return err }))
			}
			x.Release()
		}
		c.tell("sent")
		c.hear()
	}
}

// takes plays the surviving client through everything that a broker does.
func takes(t *testing.T, ctx context.Context, socket string, afterFirst func()) {
	var c *client.Client
	var q *client.Queue
	var topic *client.Topic
	var r *client.Reader
	step := func(f func() error) { t.Helper(); require.NoError(t, again(ctx, f)) }
	step(func() (err error) {
		c, err = client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName("taker"))
		return err
	})
	step(func() (err error) { q, err = c.Queue(ctx, "work", client.Redeliver(true)); return err })
	step(func() (err error) {
		topic, err = c.Topic(ctx, "ranks", client.Overwrite(false), client.Depth(1), client.Linger(time.Millisecond))
		return err
	})
	step(func() (err error) { r, err = topic.Reader(ctx); return err })
	x, err := filled(ctx, c, 77)
	require.NoError(t, err)
	mates := make([]*client.Reader, 2)
	for i := range mates {
		step(func() (err error) { mates[i], err = topic.Reader(ctx, client.Group("mates")); return err })
	}
	for _, mate := range mates {
		require.NoError(t, mate.Close())
	}
	for range 3 { // for the one that still reads
		step(func() error { return topic.Send(ctx, x) })
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		m.Release()
	}
	for range 2 {
		step(func() error { _, err := c.Set(ctx, "kept", x); return err })
	}
	step(func() error {
		h, err := x.Handle(ctx, client.LeaseOnce())
		if err != nil {
			return err
		}
		o, err := c.Open(ctx, h)
		if err == nil {
			o.Release()
		}
		if errors.Is(err, protocol.ErrExpired) { // claimed, and the answer lost
			return nil
		}
		return err
	})
	x.Release()

	giver := start(t, socket, "giver")
	var said string
	giver.hear(&said)
	for i := range uint64(crashItems) {
		var m *client.Message
		step(func() (err error) { m, err = q.Get(ctx); return err })
		b, err := m.Tensor().Bytes()
		require.NoError(t, err)
		require.Equal(t, i, binary.NativeEndian.Uint64(b))
		m.Release()
		if i == 0 {
			giver.kill()
			afterFirst()
		}
	}
	calls(t, ctx, socket, c)
	step(func() error {
		ws, err := c.Get(ctx, "kept")
		if err == nil {
			ws.Release()
		}
		return err
	})
	step(func() error {
		if err := c.Delete(ctx, "kept"); err != nil && !errors.Is(err, protocol.ErrNotFound) {
			return err
		}
		return nil
	})
	closes(t, ctx, socket)
	// Until the broker has seen to what the giver left, its death may be due.
	eventually(t, "what the giver left is gone", func() bool {
		var st broker.Status
		err := c.Broker(ctx, protocol.OpStatus, nil, &st)
		return err == nil && st.Counts.Names == 0 && st.Counts.AdoptedLanes == 0 && st.Memory.Orphans == 0 && st.Counts.Sessions == 1
	})
	require.NoError(t, r.Close())
	require.NoError(t, topic.Close())
	require.NoError(t, q.Close())
	require.NoError(t, c.Close())
}

// closes plays a client that is closed while it holds a tensor, and an item that it has not acknowledged.
func closes(t *testing.T, ctx context.Context, socket string) {
	var c *client.Client
	require.NoError(t, again(ctx, func() (err error) {
		c, err = client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName("closer"))
		return err
	}))
	x, err := filled(ctx, c, 55)
	require.NoError(t, err)
	require.NoError(t, again(ctx, func() error { _, err := c.Set(ctx, "closing", x, client.Ephemeral()); return err }))
	var q *client.Queue
	require.NoError(t, again(ctx, func() (err error) {
		q, err = c.Queue(ctx, "closing", client.Redeliver(true), client.Linger(time.Millisecond))
		return err
	}))
	require.NoError(t, again(ctx, func() error { return q.Put(ctx, x) }))
	var item *client.Message
	require.NoError(t, again(ctx, func() (err error) { item, err = q.Get(ctx); return err }))
	require.NoError(t, c.Close())
	item.Release()
	v, err := client.Slice[uint64](x)
	require.NoError(t, err)
	require.EqualValues(t, 55, v[0])
	x.Release()

	// Another client's session stays for what is to come; it knows nothing of that here.
	require.NoError(t, again(ctx, func() (err error) {
		c, err = client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName("rests"))
		return err
	}))
	x, err = filled(ctx, c, 56)
	require.NoError(t, err)
	require.NoError(t, again(ctx, func() error { _, err := c.Set(ctx, "resting", x, client.Ephemeral()); return err }))
	require.NoError(t, again(ctx, func() error { return c.Broker(ctx, protocol.OpBye, protocol.Bye{Keep: true}, nil) }))
	x.Release()
	require.NoError(t, c.Close())
}

// successor serves as soon as the previous broker has died.
func successor(t *testing.T, ctx context.Context, socket, memory string, died <-chan struct{}) <-chan *broker.Broker {
	made := make(chan *broker.Broker, 1)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		select {
		case <-died:
		case <-ctx.Done():
			ended <- nil
			return
		}
		b, err := broker.New(context.Background(), broker.Config{Dir: filepath.Dir(socket), Memory: 1 << 30, Version: "successor", MemoryDir: memory})
		if err != nil {
			ended <- err
			return
		}
		made <- b
		ended <- b.Serve(ctx)
	}()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return made
}

func armed(program, point, memory string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.Path = program
		cmd.Env = append(cmd.Env, crashpoint.Env+"="+point, memoryVariable+"="+memory)
	}
}

func exited(c *child) <-chan struct{} {
	died := make(chan struct{})
	go func() {
		c.cmd.Wait()
		close(died)
	}()
	c.ended = true
	c.t.Cleanup(func() { c.cmd.Process.Kill(); <-died })
	return died
}

// crashProgram builds this test binary with its crash points.
func crashProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "crash.test")
	out, err := exec.Command("go", "test", "-c", "-tags", "crashpoint", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// TestBrokerKilledAtEveryStepIsReplaced kills a broker between any two steps. The
// next one goes on: everything sent is received once, and in the end nothing is
// held.
func TestBrokerKilledAtEveryStepIsReplaced(t *testing.T) {
	program := crashProgram(t)
	for _, point := range crashpoint.BrokerPoints {
		times := []string{""}
		if point.Name == "broker-group-listed" {
			times = append(times, ":2") // a queue's group, and one that a reader asks for
		}
		if point.Name == "broker-reader-listed" {
			times = append(times, ":3") // the first of its group, and the second
		}
		if strings.HasPrefix(point.Name, "broker-hello-") {
			times = []string{":2"} // the giver comes; before that no process has anything to hand over
		}
		if point.Name == "broker-state-noted" {
			times = []string{":3"} // the giver goes; before that the broker alone has the queue's claims
		}
		for _, n := range times {
			for _, kind := range kindsOfMemory {
				t.Run(point.Name+n+"/"+kind, func(t *testing.T) {
					t.Parallel()
					replaceAt(t, program, point.Name+n, memoryOf(t, kind))
				})
			}
		}
	}
}

func replaceAt(t *testing.T, program, point, memory string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	socket := filepath.Join(shortdir.New(t), "run", "broker.sock")
	var made <-chan *broker.Broker
	var died <-chan struct{}
	var id string
	if strings.HasPrefix(point, "broker-rebuild-") {
		// The first is killed anywhere; its successor at the point.
		old := start(t, socket, "broker", func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, memoryVariable+"="+memory) })
		old.hear(&id)
		takes(t, ctx, socket, func() {
			old.kill()
			second := start(t, socket, "broker", armed(program, point, memory))
			died = exited(second)
			made = successor(t, ctx, socket, memory, died)
		})
	} else {
		old := start(t, socket, "broker", armed(program, point, memory))
		old.hear(&id)
		died = exited(old)
		made = successor(t, ctx, socket, memory, died)
		takes(t, ctx, socket, func() {})
	}
	select {
	case <-died:
	case <-time.After(patience):
		t.Fatalf("no broker came to %s", point)
	}
	b := <-made
	require.Equal(t, id, b.ID(), "the instance was taken over")
	eventually(t, "nothing is left", func() bool {
		st := b.Status()
		return freed(st) && st.Counts.Storages == 0 && st.Counts.Sessions == 0 &&
			st.Counts.Leases == 0 && st.Counts.AdoptedLanes == 0 && st.Counts.Names == 0
	})
}

func TestEveryBrokerPointStandsInTheCodeOnce(t *testing.T) {
	at := regexp.MustCompile(`crashpoint\.At\("([^"]*)"\)`)
	places := map[string]int{}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	parts, err := filepath.Glob("*/*.go")
	require.NoError(t, err)
	for _, f := range append(files, parts...) {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range at.FindAllStringSubmatch(string(data), -1) {
			places[m[1]]++
		}
	}
	for _, p := range slices.Concat(crashpoint.BrokerPoints, crashpoint.HostPoints, crashpoint.HandOverPoints) {
		require.Equal(t, 1, places[p.Name], "%s must stand at one place", p.Name)
		delete(places, p.Name)
	}
	require.Empty(t, places, "not in the list")
}
