package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/parttest"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// smallFileSystem mounts a tmpfs of its own for the test.
func smallFileSystem(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	testkit.MountSmall(t, dir, size)
	return dir
}

// A memory directory that is full takes from no session what it has: what needs more of it
// is refused, and a broker that is killed meanwhile has a successor.
func TestFullMemoryDirectory(t *testing.T) {
	dir := smallFileSystem(t, "32m")
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = filepath.Join(dir, "memory") })
	ctx := testkit.Context(t)
	c := b.Connect(client.WithName("first"))
	_, err := c.Alloc(ctx, dlpack.Uint8, []int64{64 << 20})
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	require.Contains(t, err.Error(), dir, "it says what is full")
	_, err = publish(ctx, c, "weights/kept", 7)
	require.NoError(t, err)
	news, err := c.Topic(ctx, "news")
	require.NoError(t, err)
	reader, err := news.Reader(ctx)
	require.NoError(t, err)
	require.NoError(t, sendNoted(ctx, c, topicSender{news}, 16, newNote("first", 0)))
	kept, err := c.Get(ctx, "weights/kept")
	require.NoError(t, err)
	defer kept.Release()
	unsent, err := c.Topic(ctx, "unsent")
	require.NoError(t, err)
	small, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	defer small.Release()

	empty := testkit.Stuff(t, dir)
	refused := func(what string, try func(i int) error) {
		t.Helper()
		for i := range 10000 {
			if err := try(i); err != nil {
				require.ErrorIs(t, err, protocol.ErrOutOfMemory, "%s %d", what, i)
				return
			}
		}
		t.Errorf("%s: never refused", what)
	}
	look := func() {
		t.Helper()
		w, err := c.Get(ctx, "weights/kept")
		require.NoError(t, err)
		require.NoError(t, verifyBundle(w, 7))
		w.Release()
		require.NoError(t, verifyBundle(kept, 7))
	}
	fill := func() {
		t.Helper()
		refused("sessions", func(i int) error {
			_, err := b.TryConnect()
			if err != nil {
				require.ErrorContains(t, err, "make room in the file system of "+dir)
			}
			return err
		})
		refused("topics", func(i int) error { _, err := c.Topic(ctx, fmt.Sprint("more", i)); return err })
		refused("leases", func(i int) error { _, err := kept.Tensors()[0].Handle(ctx, client.LeaseSession()); return err })
		refused("lanes", func(i int) error { return unsent.Send(ctx, small) })
		refused("tensors", func(i int) error {
			x, err := c.Alloc(ctx, dlpack.Uint8, []int64{100000})
			if err == nil {
				t.Cleanup(x.Release)
			}
			return err
		})
		look()
	}
	fill()
	for id := range 5 {
		b.Kill()
		b.Restart()
		look()
		require.NoError(t, sendNoted(ctx, c, topicSender{news}, 16, newNote("first", 1+id)))
	}
	fill()
	for id := range 6 {
		m, err := reader.Receive(ctx)
		require.NoError(t, err)
		k, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, id, k.ID)
		m.Release()
	}

	empty()
	testkit.Until(t, "there is room again", func() (bool, string) {
		x, err := c.Alloc(context.Background(), dlpack.Uint8, []int64{1 << 20})
		if errors.Is(err, protocol.ErrOutOfMemory) {
			return false, err.Error()
		}
		require.NoError(t, err)
		x.Release()
		return true, ""
	})
	_, err = b.TryConnect()
	require.NoError(t, err)
}

// A reader of a lane, and an owner that looks at refcounts, meet no hole: the broker reserves
// what a session has not, and refuses it where there is no room.
func TestLanesAndRefcountsWithoutPagesAreReservedOrRefused(t *testing.T) {
	dir := smallFileSystem(t, "32m")
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = filepath.Join(dir, "memory") })
	ctx := testkit.Context(t)
	c := b.Connect()
	r := b.Raw()
	blocks := func() int64 { return parttest.Blocks(t, r.SessionFD) }
	at := uint64(protocol.SessionLanes)
	opened := func(name string) (write func() error, bytes uint64) {
		var info protocol.TopicInfo
		_, err := r.Call(protocol.OpTopicOpen, protocol.TopicOpenRequest{Name: name, Kind: "topic", Create: true}, &info)
		require.NoError(t, err)
		bytes = protocol.LaneBytes(info.Slots, info.Stride)
		request := protocol.TopicWrite{TopicRef: protocol.TopicRef{Topic: info.Topic, ID: info.ID}, Offset: at}
		at += bytes
		return func() error {
			_, err := r.Call(protocol.OpTopicWrite, request, nil)
			return err
		}, bytes
	}
	allocated := func() (attach func() error) {
		x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
		require.NoError(t, err)
		t.Cleanup(x.Release)
		h, err := x.Handle(ctx)
		require.NoError(t, err)
		return func() error {
			chunk := h.Index / protocol.ChunkIndices
			var ok protocol.AttachReply
			_, err := r.Call(protocol.OpAttach, protocol.Attach{Chunks: []protocol.AttachChunk{{Chunk: chunk, Serial: h.Serial}}}, &ok)
			if err == nil && ok.Chunks[0].Error != nil {
				err = ok.Chunks[0].Error
			}
			return err
		}
	}
	write, bytes := opened("with-room")
	before := blocks()
	require.NoError(t, write())
	require.GreaterOrEqual(t, blocks()-before, int64(bytes/512))

	write, _ = opened("without")
	attach := allocated()
	empty := testkit.Stuff(t, dir)
	require.ErrorIs(t, write(), protocol.ErrOutOfMemory)
	require.ErrorIs(t, attach(), protocol.ErrOutOfMemory)
	empty()
	require.NoError(t, write())
	before = blocks()
	require.NoError(t, attach())
	require.Greater(t, blocks(), before)
}

// A broker whose runtime directory is on a full file system says so and what to do, and
// begins once there is room.
func TestFullRuntimeDirectory(t *testing.T) {
	for name, used := range map[string]bool{"new": false, "of a previous broker": true} {
		t.Run(name, func(t *testing.T) {
			dir := smallFileSystem(t, "1m")
			serve := func() (code int, said string) {
				var stderr strings.Builder
				cmd := exec.Command(testkit.Binary(t), "serve", "--no-nats", "--idle-exit", "1ms", "--address", "unix:"+filepath.Join(dir, "b.sock"))
				cmd.Stderr = &stderr
				cmd.Run()
				return cmd.ProcessState.ExitCode(), stderr.String()
			}
			if used {
				code, said := serve()
				require.Zero(t, code, said)
			}
			empty := testkit.Stuff(t, dir)
			code, said := serve()
			require.Equal(t, 1, code, said)
			require.Contains(t, said, "baton: the runtime directory "+dir+" has no room")
			require.Contains(t, said, "what to do: make room")
			empty()
			code, said = serve()
			require.Zero(t, code, said)
		})
	}
}

// A broker that a program starts cannot write why it ends to its log, which lies there too: the program says it.
func TestProgramSaysThatTheRuntimeDirectoryIsFull(t *testing.T) {
	home := smallFileSystem(t, "1m")
	dir := filepath.Join(home, "baton")
	require.NoError(t, os.Mkdir(dir, 0o700))
	testkit.Stuff(t, home)
	t.Setenv("XDG_RUNTIME_DIR", home)
	t.Setenv("BATON_BINARY", testkit.Binary(t))
	_, err := client.Connect(testkit.Context(t))
	require.ErrorIs(t, err, protocol.ErrNoBroker)
	require.ErrorContains(t, err, "the runtime directory "+dir+" has no room")
	require.ErrorContains(t, err, "make room in its file system")
	out, err := exec.Command(testkit.Binary(t), "doctor").CombinedOutput()
	require.Error(t, err)
	require.Regexp(t, "(?m)^fail +runtime directory +the file system of "+dir+" is full", string(out))
}

// The doctor says what a full memory directory keeps programs from.
func TestDoctorSaysThatTheMemoryDirectoryIsFull(t *testing.T) {
	dir := filepath.Join(smallFileSystem(t, "32m"), "memory")
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = dir })
	empty := testkit.Stuff(t, filepath.Dir(dir))
	out, err := exec.Command(testkit.Binary(t), "doctor", "--address", b.Socket).CombinedOutput()
	require.Error(t, err)
	require.Regexp(t, "(?m)^fail +memory directory +the file system of "+dir+".* is full", string(out))
	require.Contains(t, string(out), "no session can be opened")
	empty()
	out, _ = exec.Command(testkit.Binary(t), "doctor", "--address", b.Socket).CombinedOutput()
	require.Regexp(t, "(?m)^ok +memory directory +"+dir, string(out))
}

// A broker whose runtime directory is full says so once, and not at each session that opens and
// closes, and writes its state file when there is room.
func TestFullRuntimeDirectoryIsLoggedOnce(t *testing.T) {
	dir := smallFileSystem(t, "1m")
	var log strings.Builder
	socket := filepath.Join(dir, "b.sock")
	cmd := exec.Command(testkit.Binary(t), "serve", "--no-nats", "--address", "unix:"+socket)
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	open := func() *client.Client {
		c, err := client.Connect(testkit.Context(t), client.WithAddress(socket), client.WithStart(false))
		require.NoError(t, err)
		return c
	}
	require.NoError(t, open().Close())
	empty := testkit.Stuff(t, dir)
	for range 100 { // the page that the state file has takes some of them
		require.NoError(t, open().Close())
	}
	empty()
	kept := open()
	defer kept.Close()
	st, err := statefile.Read(dir)
	require.NoError(t, err)
	require.Len(t, st.Sessions, 1, "it is written again")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
	require.Equal(t, 1, strings.Count(log.String(), "cannot write the state file"), log.String())
}
