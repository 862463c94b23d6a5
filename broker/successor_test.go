package broker_test

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

const memoryVariable = "BATON_TEST_MEMORY"

func init() {
	// broker serves until it is killed.
	parts["broker"] = func(c *played) {
		b, err := broker.New(context.Background(), broker.Config{Dir: filepath.Dir(c.socket), Memory: 1 << 30, Version: "first", MemoryDir: os.Getenv(memoryVariable)})
		require.NoError(c, err)
		go b.Serve(context.Background())
		c.tell(b.ID())
		c.hear()
	}
	// stopped maps what another session sent, tells so, and stays.
	parts["stopped"] = func(c *played) {
		p := connect(c, c.socket, "stopped")
		s := p.alloc(4096)
		c.tell(s.ref())
		c.hear()
		again := p.returns(c.socket)
		again.resumed()
		c.tell(again.refcounts.Count(s.Index))
		c.hear()
	}
}

// handedOver are the descriptors that a peer has mapped besides those of hello.
type handedOver struct {
	role   string
	serial uint64
	fd     *sys.FD
}

// returns reconnects a peer to a new broker as far as `restored`, whose reply
// comes when the broker serves.
func (p *peer) returns(socket string, more ...handedOver) *peer {
	p.t.Helper()
	return p.returnsWithout(socket, nil, more...)
}

// returnsWithout returns and says which requests to read were not answered.
func (p *peer) returnsWithout(socket string, unanswered []protocol.Reading, more ...handedOver) *peer {
	p.t.Helper()
	h := helloOf("returning")
	h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret}
	again := &peer{t: p.t, w: dial(p.t, socket), broker: p.broker, file: p.file, bellFile: p.bellFile, bells: p.bells, brokerFile: p.brokerFile,
		fds: p.fds, chunks: p.chunks, refcounts: p.refcounts, entries: p.entries, nextLane: p.nextLane}
	fds, err := again.call(protocol.OpHello, h, &again.hello)
	require.NoError(p.t, err)
	require.Empty(p.t, fds)
	require.True(p.t, again.hello.Restore)
	own := p.broker.Load64(protocol.BrokerSessions + protocol.SessionSerial)
	items := append([]handedOver{
		{"broker", 0, p.fds[0]}, {"bell", 0, p.fds[2]}, {"session", p.hello.Serial, p.fds[1]},
		{"session", own, p.fds[3]}}, more...)
	var r protocol.Restore
	var out []*sys.FD
	for _, i := range items {
		r.Items = append(r.Items, protocol.RestoreItem{Role: i.role, Serial: i.serial})
		out = append(out, i.fd)
	}
	_, err = again.call(protocol.OpRestore, r, nil, out...)
	require.NoError(p.t, err)
	again.send(protocol.OpRestored, protocol.Restored{Unanswered: unanswered})
	return again
}

// resumed reads the reply to restored.
func (p *peer) resumed() {
	p.t.Helper()
	e, fds := p.read()
	require.Nil(p.t, e.Error)
	require.Empty(p.t, fds)
	require.Contains(p.t, string(e.OK), `"resumed":true`)
}

// first starts a broker in a child process.
func first(t *testing.T, memory string) (c *child, socket, instance string) {
	socket = filepath.Join(shortdir.New(t), "run", "broker.sock")
	c = start(t, socket, "broker", func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, memoryVariable+"="+memory) })
	c.hear(&instance)
	return c, socket, instance
}

// listens waits until a broker answers at a socket.
func listens(t *testing.T, socket string) {
	t.Helper()
	eventually(t, "the socket is there", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// next begins to serve in the place of a dead broker; the result comes when the
// takeover is over.
func next(t *testing.T, socket string, change func(*broker.Config)) func() *broker.Broker {
	t.Helper()
	cfg := broker.Config{Dir: filepath.Dir(socket), Memory: 1 << 30, Version: "second", RecoverWait: patience}
	if change != nil {
		change(&cfg)
	}
	type result struct {
		b   *broker.Broker
		err error
	}
	made := make(chan result, 1)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		b, err := broker.New(context.Background(), cfg)
		made <- result{b, err}
		if err == nil {
			err = b.Serve(ctx)
		}
		ended <- err
	}()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	listens(t, socket)
	return func() *broker.Broker {
		select {
		case r := <-made:
			require.NoError(t, r.err)
			return r.b
		case <-time.After(patience):
			t.Fatal("the takeover does not end")
			return nil
		}
	}
}

// takenOver starts the next broker, to which p returns with files, and waits until it
// serves.
func takenOver(t *testing.T, socket string, change func(*broker.Config), p *peer, files ...handedOver) (*peer, *broker.Broker) {
	t.Helper()
	made := next(t, socket, change)
	again := p.returns(socket, files...)
	again.resumed()
	return again, made()
}

// kindsOfMemory are where a broker has its shared files.
var kindsOfMemory = []string{"memfds", "files"}

// memoryOf returns the memory directory of a kind of memory, none for memfds.
func memoryOf(t *testing.T, kind string) string {
	if kind == "files" {
		return t.TempDir()
	}
	return ""
}

// changeRecord writes a word of the broker file in a memory directory without a broker.
func changeRecord(t *testing.T, memory string, at int64, word uint64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(memory, "*", "broker-*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	f, err := os.OpenFile(files[0], os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, word), at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
