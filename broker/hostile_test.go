package broker_test

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func frame(length uint32, fds, zero uint16, body string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, length)
	b = binary.LittleEndian.AppendUint16(b, fds)
	b = binary.LittleEndian.AppendUint16(b, zero)
	return append(b, body...)
}

// endsWith reads until the connection ends and returns the last error that the
// broker sent.
func endsWith(t *testing.T, w *wire.Conn) *protocol.Error {
	t.Helper()
	w.SetReadDeadline(time.Now().Add(patience))
	var last *protocol.Error
	for {
		data, fds, err := w.Read()
		wire.CloseAll(fds)
		if err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the broker keeps the connection")
			return last
		}
		var e protocol.Envelope
		require.NoError(t, json.Unmarshal(data, &e))
		last = e.Error
	}
}

func TestMalformedFramesEndTheConnectionAlone(t *testing.T) {
	b := serve(t, nil)
	good := connect(t, b.socket, "good")
	for name, bytes := range map[string][]byte{
		"gigabyte length":      frame(1<<30, 0, 0, "{}"),
		"largest length":       frame(1<<32-1, 0, 0, ""),
		"too many fds":         frame(2, 65, 0, "{}"),
		"fds that do not come": frame(2, 1, 0, "{}"),
		"reserved field":       frame(2, 0, 1, "{}"),
		"no JSON":              frame(4, 0, 0, "nope"),
		"empty":                frame(0, 0, 0, ""),
		"not an object":        frame(2, 0, 0, "[]"),
		"deep":                 frame(200000, 0, 0, strings.Repeat("[", 200000)),
	} {
		t.Run(name, func(t *testing.T) {
			w := dial(t, b.socket)
			_, err := w.UnixConn.Write(bytes)
			require.NoError(t, err)
			e := endsWith(t, w)
			require.NotNil(t, e)
			require.Equal(t, protocol.CodeProtocol, e.Code)
			require.NotEmpty(t, e.Remedy)
		})
	}
	good.must(protocol.OpStatus, struct{}{}, nil)
}

func TestDescriptorsThatNoFrameAnnouncesAreClosed(t *testing.T) {
	b := serve(t, nil)
	before := openFiles(t)
	for _, body := range []string{`{"id":1,"op":"status"}`, "nope", ""} {
		w := dial(t, b.socket)
		var surplus []*sys.FD
		for range 5 {
			fd, err := sys.CreateMemfd("baton-surplus", 1)
			require.NoError(t, err)
			surplus = append(surplus, fd)
		}
		require.NoError(t, w.WriteFrame(frame(uint32(len(body)), 0, 0, body), surplus))
		wire.CloseAll(surplus)
		endsWith(t, w)
		w.Close()
	}
	eventually(t, "all descriptors are closed", func() bool { return openFiles(t) <= before })
}

func TestHalfAFrameAndRandomBytesHarmNobody(t *testing.T) {
	b := serve(t, nil)
	good := connect(t, b.socket, "good")
	half := dial(t, b.socket)
	_, err := half.UnixConn.Write(frame(1000, 0, 0, `{"id":1,"op":"hel`))
	require.NoError(t, err)
	half.Close()
	for range 50 {
		w := dial(t, b.socket)
		random := make([]byte, 4096)
		rand.Read(random)
		w.UnixConn.Write(random)
		w.CloseWrite()
		endsWith(t, w)
	}
	good.must(protocol.OpStatus, struct{}{}, nil)
	require.Equal(t, 1, b.Status().Counts.Sessions)
}

// leftOut is a log that notes whether it was told how many lines were left out.
type leftOut struct{ atomic.Bool }

func (l *leftOut) Write(line []byte) (int, error) {
	if strings.Contains(string(line), `msg="malformed frame"`) && strings.Contains(string(line), "left_out=") {
		l.Store(true)
	}
	return len(line), nil
}

func TestGarbageDoesNotFillTheLog(t *testing.T) {
	var log leftOut
	b := serve(t, func(c *broker.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for late := time.Now().Add(patience); !log.Load(); {
		require.True(t, time.Now().Before(late), "every line was written")
		w := dial(t, b.socket)
		w.UnixConn.Write([]byte(strings.Repeat("x", 100)))
		w.CloseWrite()
		endsWith(t, w)
		w.Close()
	}
}

func TestRequestBeforeHelloIsRefused(t *testing.T) {
	b := serve(t, nil)
	w := dial(t, b.socket)
	require.NoError(t, w.Write(map[string]any{"id": 1, "op": "grant", "bytes": 1, "chunks": 1}))
	require.Equal(t, protocol.CodeProtocol, endsWith(t, w).Code)
	p := connect(t, b.socket, "a")
	p.refused(protocol.CodeProtocol, protocol.OpHello, helloOf("again"))
}

func TestUnknownOpAndBadFieldsLeaveTheSessionUsable(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	p.refused(protocol.CodeUnsupported, "nonsense", struct{}{})
	p.refused(protocol.CodeInvalid, protocol.OpGrant, map[string]any{"bytes": -1})
	p.refused(protocol.CodeInvalid, protocol.OpGrant, map[string]any{"bytes": "many"})
	p.refused(protocol.CodeInvalid, protocol.OpAttach, map[string]any{"chunks": []any{map[string]any{"chunk": 1 << 40}}})
	p.refused(protocol.CodeInvalid, protocol.OpAttach, map[string]any{"chunk": 1, "serial": 1})
	p.refused(protocol.CodeInvalid, protocol.OpAttach, protocol.Attach{Chunks: make([]protocol.AttachChunk, protocol.MaxPeers+1)})
	p.cannotAttach(protocol.CodeExpired, 4000000000, 1)
	p.lacks(protocol.CodeExpired, 1023, 99)
	p.refused(protocol.CodeExpired, protocol.OpSegment, protocol.Segment{Segment: 1 << 31, Serial: 1})
	p.refused(protocol.CodeInvalid, protocol.OpList, map[string]any{"what": "secrets"})
	p.refused(protocol.CodeInvalid, protocol.OpList, map[string]any{"what": "names", "cursor": "x"})
	p.refused(protocol.CodeInvalid, protocol.OpRestore, protocol.Restore{Items: []protocol.RestoreItem{{Role: "segment", Serial: 1}}})
	p.must(protocol.OpRestore, protocol.Restore{}, nil)
	p.refused(protocol.CodeProtocol, protocol.OpRestored, protocol.Restored{})
}

func TestDescriptorsThatNobodyAskedForAreClosed(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	fd := sys.NewFD(int(w.Fd()))
	_, err = p.call(protocol.OpStatus, struct{}{}, nil, fd, fd, fd)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	// The broker's copies were the last writers: the pipe ends.
	r.SetReadDeadline(time.Now().Add(patience))
	_, err = r.Read(make([]byte, 1))
	require.ErrorContains(t, err, "EOF")
}

func TestOtherVersionIsRefusedNamingBoth(t *testing.T) {
	b := serve(t, nil)
	for _, change := range []func(*protocol.Hello){
		func(h *protocol.Hello) { h.Protocol = 99 },
		func(h *protocol.Hello) { h.Layout = 99 },
	} {
		h := helloOf("a")
		change(&h)
		p := &peer{t: t, w: dial(t, b.socket)}
		e := p.refused(protocol.CodeVersion, protocol.OpHello, h)
		require.Contains(t, e.Message, "99")
		require.Contains(t, e.Message, fmt.Sprint(protocol.Version))
		require.Contains(t, e.Remedy, "the broker is the older")
	}
}

func TestClientThatDoesNotReadHoldsUpNobody(t *testing.T) {
	b := serve(t, nil)
	deaf, good := connect(t, b.socket, "deaf"), connect(t, b.socket, "good")
	const requests = 100000
	sentAll := make(chan error, 1)
	go func() {
		for i := range requests {
			if err := deaf.w.Write(map[string]any{"id": i + 2, "op": "lease.claim", "lease": 1}); err != nil {
				sentAll <- err
				return
			}
		}
		sentAll <- nil
	}()
	for range 100 {
		s := good.alloc(4096)
		good.refcounts.Drop(s.Index)
		good.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	}
	select {
	case err := <-sentAll:
		t.Fatalf("the broker took %d requests without a reply being read (%v)", requests, err)
	default:
	}
	// Once it reads, it gets every reply, in order.
	for i := range requests {
		e, _ := deaf.read()
		require.EqualValues(t, i+2, e.ID)
	}
	require.NoError(t, <-sentAll)
}

func TestDeafClientThatGoesAwayIsForgotten(t *testing.T) {
	b := serve(t, nil)
	deaf := connect(t, b.socket, "deaf")
	deaf.w.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)) // until the socket is full
	for {
		if deaf.w.Write(map[string]any{"id": 1, "op": "list", "what": "sessions"}) != nil {
			break
		}
	}
	deaf.w.Close()
	eventually(t, "it is disconnected", func() bool { return b.Status().Counts.Disconnected == 1 })
}

func init() {
	// stranger connects as another user and tells what it hears.
	parts["stranger"] = func(c *played) {
		p := &peer{t: c, w: dial(c, c.socket)}
		p.w.Write(helloOf("stranger"))
		data, _, err := p.w.Read()
		require.NoError(c, err)
		var e protocol.Envelope
		require.NoError(c, json.Unmarshal(data, &e))
		c.tell(e.Error)
	}
}

func TestOtherUsersAreRefusedUnlessAllowed(t *testing.T) {
	testkit.Need(t, "root") // to become another user
	const otherUID = 65534
	// A directory that others can enter; the runtime directory itself is private.
	dir, err := os.MkdirTemp("/tmp", "baton") // that of a user may be closed to others
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	exe := filepath.Join(dir, "test")
	data, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(exe, data, 0o755))
	require.NoError(t, os.Chmod(exe, 0o755)) // whatever the umask
	for _, allowed := range []bool{false, true} {
		b := serve(t, func(c *broker.Config) {
			c.Socket, c.SocketMode = filepath.Join(dir, fmt.Sprintf("sock-%v", allowed)), 0o666
			if allowed {
				c.Access.UIDs = []uint32{otherUID}
			}
		})
		c := start(t, b.socket, "stranger", func(cmd *exec.Cmd) {
			cmd.Path, cmd.Dir = exe, dir
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
		})
		var e *protocol.Error
		c.hear(&e)
		c.wait()
		if allowed {
			require.Equal(t, protocol.CodeProtocol, e.Code, "it is let in, and said no op") // its hello names none
		} else {
			require.Equal(t, protocol.CodePermission, e.Code)
			require.Contains(t, e.Message, "65534")
		}
	}
}

func TestManyConnectionsAtOnce(t *testing.T) {
	b := serve(t, nil)
	var conns []net.Conn
	for range 300 {
		c, err := net.Dial("unix", b.socket)
		require.NoError(t, err)
		conns = append(conns, c)
	}
	p := connect(t, b.socket, "a")
	p.must(protocol.OpStatus, struct{}{}, nil)
	for _, c := range conns {
		c.Close()
	}
}
