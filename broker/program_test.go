package broker_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// connectAlive opens a session with the file that shows an exec.
func connectAlive(c *played, name string, resume *protocol.Resume) *peer {
	alive, err := sys.OpenAlive()
	require.NoError(c, err)
	h := helloOf(name)
	h.Alive, h.Resume = true, resume
	return connectAs(c, c.socket, h, alive)
}

func init() {
	// program holds a storage, and does what it is told to.
	parts["program"] = func(c *played) {
		p := connectAlive(c, "program", nil)
		s := p.alloc(4096)
		c.tell(s.ref())
		for {
			switch c.hear() {
			case "exec\n":
				replaceBySleep(c)
			case "exec in place\n": // the same again, as the same process
				require.NoError(c, sys.Exec(os.Args[0], os.Args, os.Environ()))
			case "close\n":
				p.w.Close()
				wire.CloseAll(p.fds)
				p.fds = nil
				c.tell("closed")
			case "return\n":
				again := connectAlive(c, "program", &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret})
				require.True(c, again.hello.Resumed)
				p.w = again.w
				c.tell("back")
			case "":
				return
			}
		}
	}
}

func init() {
	// clientprogram is program with the Go client, which connects again by itself.
	parts["clientprogram"] = func(c *played) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cl, err := client.Connect(ctx, client.WithAddress(c.socket), client.WithStart(false), client.WithName("program"))
		require.NoError(c, err)
		x, err := filled(ctx, cl, 7)
		require.NoError(c, err)
		c.tell("ready")
		switch c.hear() {
		case "exec\n":
			replaceBySleep(c)
		case "close sockets\n": // and the memory files: as a daemon does that closes what it does not know
			closeFiles(c, "socket:", "/memfd:")
			require.NoError(c, exec.Command("true").Run()) // a child that shares the memory until it execs
			require.NoError(c, again(ctx, func() error { _, err := cl.Topic(ctx, "t"); return err }))
			v, err := client.Slice[uint64](x)
			require.NoError(c, err)
			require.EqualValues(c, 7, v[0])
			c.tell("back")
			c.hear()
		}
	}
}

func replaceBySleep(c *played) {
	sleep, err := exec.LookPath("sleep")
	require.NoError(c, err)
	require.NoError(c, sys.Exec(sleep, []string{"sleep", "1000"}, os.Environ()))
}

// closeFiles closes the descriptors of files whose names begin so.
func closeFiles(c *played, prefixes ...string) {
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(c, err)
	for _, e := range open {
		name, _ := os.Readlink("/proc/self/fd/" + e.Name())
		for _, p := range prefixes {
			if strings.HasPrefix(name, p) {
				n, err := strconv.Atoi(e.Name())
				require.NoError(c, err)
				sys.NewFD(n).Close()
			}
		}
	}
}

func TestExecEndsTheSessionOfAGoClient(t *testing.T) { execEndsSession(t, "clientprogram") }

func TestExecEndsTheSessionOfTheFormerProgram(t *testing.T) { execEndsSession(t, "program") }

func execEndsSession(t *testing.T, part string) {
	b := serve(t, nil)
	c := start(t, b.socket, part)
	c.hear(new(any)) // it holds a storage
	require.NotZero(t, b.Status().Memory.Granted)
	c.tell("exec")
	eventually(t, "nothing of it is left", func() bool {
		st := b.Status()
		return st.Counts.Sessions == 0 && freed(st)
	})
	require.NoError(t, c.cmd.Process.Signal(syscall.Signal(0)), "the process goes on")
}

func TestGoClientWhoseDescriptorsAreClosedComesBack(t *testing.T) {
	b := serve(t, nil)
	c := start(t, b.socket, "clientprogram")
	var said string
	c.hear(&said)
	c.ask("close sockets")
	require.Equal(t, 1, b.Status().Counts.Sessions)
	require.NotZero(t, b.Status().Memory.Granted)
}

func TestExecInPlaceLeavesNothingBehind(t *testing.T) {
	b := serve(t, nil)
	c := start(t, b.socket, "program")
	for range 100 {
		var s protocol.StorageRef
		c.hear(&s)
		eventually(t, "the former program's session is over", func() bool {
			st := b.Status()
			return st.Counts.Sessions == 1 && st.Counts.Segments == 1
		})
		c.tell("exec in place")
	}
	var s protocol.StorageRef
	c.hear(&s)
}

func TestClosedDescriptorsAreNoExec(t *testing.T) {
	b := serve(t, nil)
	c, _ := holding(t, b.socket, "program")
	c.ask("close")
	eventually(t, "it is noticed", func() bool { return b.Status().Counts.Disconnected == 1 })
	collected(t, b) // the reaper looks at it too
	require.Equal(t, 1, b.Status().Counts.Disconnected)
	require.NotZero(t, b.Status().Memory.Granted)
	c.ask("return")
	require.Zero(t, b.Status().Counts.Disconnected)
	require.Equal(t, 1, b.Status().Counts.Sessions)
	c.tell("exec") // and the file that came with the second hello shows it
	eventually(t, "its session is over", func() bool { return b.Status().Counts.Sessions == 0 })
}

func TestStoppedProcessKeepsItsSession(t *testing.T) {
	b := serve(t, nil)
	c, _ := holding(t, b.socket, "program")
	c.ask("close")
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(t, "it is noticed", func() bool { return b.Status().Counts.Disconnected == 1 })
	collected(t, b)
	require.Equal(t, 1, b.Status().Counts.Disconnected)
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
	c.ask("return")
	require.Zero(t, b.Status().Counts.Disconnected)
}

func TestHelloThatLacksItsFileIsRefused(t *testing.T) {
	b := serve(t, nil)
	h := helloOf("liar")
	h.Alive = true
	p := &peer{t: t, w: dial(t, b.socket)}
	p.refused(protocol.CodeProtocol, protocol.OpHello, h)
}
