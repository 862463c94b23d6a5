package broker_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// answered is what came with an answer.
type answered struct {
	FDs   int
	OK    json.RawMessage
	Error *protocol.Error
}

func init() {
	// observer asks for a session, then looks, and tells what came each time.
	parts["observer"] = func(c *played) {
		p := &peer{t: c, w: dial(c, c.socket)}
		for _, op := range []string{protocol.OpHello, protocol.OpStatus} {
			var fields any = struct{}{}
			if op == protocol.OpHello {
				fields = helloOf("observer")
			}
			p.send(op, fields)
			e, fds := p.read()
			c.tell(answered{len(fds), e.OK, e.Error})
		}
	}
}

// One that may look alone has no session, and nothing of the shared memory in which tensors and what others wait for lie.
func TestAnObserverGetsNoSessionAndNoDescriptor(t *testing.T) {
	testkit.Need(t, "root") // to become another user
	const otherUID = 65534
	dir, err := os.MkdirTemp("/tmp", "baton") // that of a user may be closed to others
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	b := serve(t, func(c *broker.Config) {
		c.Socket, c.SocketMode, c.Access.ObserveUIDs = filepath.Join(dir, "sock"), 0o666, []uint32{otherUID}
	})
	c := start(t, b.socket, "observer", testkit.AsUser(t, otherUID), func(cmd *exec.Cmd) {
		cmd.Args, cmd.Dir = append(cmd.Args, "-test.run=^TestPart$", "-test.v=false"), dir
	})
	var hello, status answered
	c.hear(&hello)
	c.hear(&status)
	c.wait()
	require.NotNil(t, hello.Error, "%s", hello.OK)
	require.Equal(t, protocol.CodePermission, hello.Error.Code)
	require.Contains(t, hello.Error.Message, "user 65534 may only look at this broker")
	require.Zero(t, hello.FDs)
	require.Nil(t, status.Error, "it may look on")
	require.Contains(t, string(status.OK), b.Status().Instance)
	require.Zero(t, status.FDs)
	require.Zero(t, b.Status().Counts.Sessions)
}
