package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func TestConnectWithoutABrokerFailsAtItsDeadline(t *testing.T) {
	dir := shortdir.New(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := client.Connect(ctx, client.WithAddress("unix:"+filepath.Join(dir, "none.sock")))
	require.ErrorIs(t, err, protocol.ErrNoBroker)
	require.ErrorContains(t, err, "none.sock")
	t.Setenv("BATON_ADDRESS", "")
	t.Setenv("XDG_RUNTIME_DIR", dir)
	_, err = client.Connect(context.Background(), client.WithStart(false))
	require.ErrorIs(t, err, protocol.ErrNoBroker, "without a deadline it does not wait where none may be started")
}

func TestConnectWaitsForABrokerThatIsNamed(t *testing.T) {
	b := testkit.StartBroker(t)
	b.End()
	got := make(chan error)
	go func() {
		_, err := b.TryConnect()
		got <- err
	}()
	b.Restart()
	require.NoError(t, <-got)
}

func TestAddressThatCannotBeIsRefused(t *testing.T) {
	ctx := testkit.Context(t)
	long := "/tmp/" + strings.Repeat("x", 120)
	for _, address := range []string{long, "unix:" + long, "tcp://localhost", "relative/path", "unix:relative"} {
		_, err := client.Connect(ctx, client.WithAddress(address))
		require.ErrorIs(t, err, protocol.ErrInvalid, address)
	}
	t.Setenv("BATON_ADDRESS", "")
	t.Setenv("XDG_RUNTIME_DIR", long)
	_, err := client.Connect(ctx)
	require.ErrorIs(t, err, protocol.ErrInvalid)
}

func TestRuntimeDirectoryThatOthersCanWriteIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "baton"), 0o700))
	require.NoError(t, os.Chmod(filepath.Join(dir, "baton"), 0o777))
	t.Setenv("BATON_ADDRESS", "")
	t.Setenv("XDG_RUNTIME_DIR", dir)
	_, err := client.Connect(testkit.Context(t))
	require.ErrorIs(t, err, protocol.ErrPermissionDenied)
	require.ErrorContains(t, err, "written by others")
}

func TestSecondBrokerAtOneAddressIsRefused(t *testing.T) {
	b := testkit.StartBroker(t)
	second := b.Second()
	log := second.Fails()
	require.Contains(t, log, fmt.Sprint(b.Process().PID()), "the running broker's process is named")
	c := b.Connect() // the first one goes on
	_, err := c.Topic(testkit.Context(t), "t")
	require.NoError(t, err)
}

// answering listens at a socket and answers every frame with one reply.
func answering(t *testing.T, reply any) string {
	path := filepath.Join(shortdir.New(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			u, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c := wire.New(u)
			for {
				data, fds, err := c.Read()
				wire.CloseAll(fds)
				if err != nil {
					break
				}
				var head struct {
					ID uint64 `json:"id"`
				}
				if json.Unmarshal(data, &head) != nil {
					break
				}
				text, _ := json.Marshal(reply)
				var fields map[string]json.RawMessage
				json.Unmarshal(text, &fields)
				fields["id"], _ = json.Marshal(head.ID)
				c.Write(fields)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return path
}

func TestBrokerOfAnotherVersionIsATypedError(t *testing.T) {
	ctx := testkit.Context(t)
	hello := func(p, l int) any {
		return map[string]any{"ok": protocol.HelloReply{Protocol: p, Layout: l, Instance: "00", Slot: 1, Serial: 1}}
	}
	for what, c := range map[string]struct {
		reply  any
		remedy string
	}{
		"it says so":       {map[string]any{"error": protocol.Errorf(protocol.CodeVersion, "update", "client speaks protocol 1, broker 9")}, "update"},
		"another protocol": {hello(protocol.Version+1, protocol.Layout), "the client is the older"},
		"a newer layout":   {hello(protocol.Version, protocol.Layout+1), "the client is the older"},
		"an older layout":  {hello(protocol.Version, protocol.Layout-1), "the broker is the older"},
	} {
		_, err := client.Connect(ctx, client.WithAddress(answering(t, c.reply)))
		require.ErrorIs(t, err, protocol.ErrVersion, what)
		require.ErrorContains(t, err, c.remedy, what)
	}
	_, err := client.Connect(ctx, client.WithAddress(answering(t, hello(protocol.Version, protocol.Layout))))
	require.ErrorIs(t, err, protocol.ErrProtocol, "a hello without descriptors")
	_, err = client.Connect(ctx, client.WithAddress(answering(t, map[string]any{"ok": "nonsense"})))
	require.ErrorIs(t, err, protocol.ErrProtocol)
}

func TestClientOfAnotherVersionIsRefused(t *testing.T) {
	b := testkit.StartBroker(t)
	for remedy, h := range map[string]protocol.Hello{
		"the broker is the older": {Protocol: protocol.Version, Layout: protocol.Layout + 1},
		"which the program has":   {Protocol: protocol.Version + 1, Layout: protocol.Layout - 1},
		"the client is the older": {Protocol: protocol.Version, Layout: protocol.Layout - 1},
		"of the two: update it":   {},
	} {
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.Socket, Net: "unix"})
		require.NoError(t, err)
		r := &testkit.Raw{Conn: wire.New(u)}
		_, err = r.Call(protocol.OpHello, h, nil)
		require.ErrorIs(t, err, protocol.ErrVersion)
		require.ErrorContains(t, err, remedy)
		require.ErrorContains(t, err, fmt.Sprintf("protocol %d with layout %d, this broker", h.Protocol, h.Layout))
		require.ErrorContains(t, err, fmt.Sprintf("protocol %d with layout %d", protocol.Version, protocol.Layout))
		r.Drop()
	}
}

func TestSocketOfAnotherUsersBrokerIsNoBroker(t *testing.T) {
	testkit.Need(t, "root")
	b := testkit.StartBroker(t)
	ask := func() string {
		p := b.Start("stranger", nil, testkit.AsUser(t, 65534))
		var got string
		p.Next(&got)
		p.Done()
		return got
	}
	require.Contains(t, ask(), "PermissionDenied", "the directory keeps strangers out")
	require.NoError(t, os.Chmod(b.Dir, 0o711))
	require.Contains(t, ask(), "PermissionDenied", "the socket keeps strangers out")
	require.NoError(t, os.Chmod(b.Socket, 0o666))
	require.Contains(t, ask(), "user 65534", "the broker keeps strangers out")
}

func init() {
	roles["stranger"] = func(p *testkit.Child) error {
		c, err := p.Connect()
		if err == nil {
			c.Close()
			return p.Say("connected")
		}
		var e *protocol.Error
		if !asProtocol(err, &e) {
			return err
		}
		return p.Say(string(e.Code) + ": " + e.Message)
	}
}

func asProtocol(err error, to **protocol.Error) bool {
	e, ok := err.(*protocol.Error)
	*to = e
	return ok
}
