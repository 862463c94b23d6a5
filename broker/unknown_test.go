package broker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// A session whose process cannot be looked for keeps what it holds, and is shown.
func TestSessionOfAnUnknownProcessStays(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "memory")
	old, socket, _ := first(t, memory)
	c, _ := holding(t, socket, "stopped")
	old.kill()
	c.kill() // it has ended, and that cannot be found out
	// Its start time was never known, as that of a process in a hidden /proc.
	changeRecord(t, memory, protocol.BrokerSessions+1*protocol.SessionRecordSize+protocol.SessionStartTime, 0)

	b := serve(t, func(c *broker.Config) { c.Dir, c.MemoryDir = filepath.Dir(socket), memory })
	p := connect(t, b.socket, "operator")
	rows := list[broker.SessionRow](p, protocol.ListSessions, "stopped")
	require.Len(t, rows, 1)
	require.Equal(t, "unknown", rows[0].State)
	require.Equal(t, 1, b.Status().Counts.Unknown)
	p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 40, Chunks: 1})
	require.EqualValues(t, 4096, b.Status().Memory.Granted, "it keeps its memory")

	p.refused(protocol.CodeInvalid, protocol.OpEvict, protocol.Evict{Serial: p.hello.Serial})
	p.refused(protocol.CodeNotFound, protocol.OpEvict, protocol.Evict{Serial: 1 << 40})
	p.must(protocol.OpEvict, protocol.Evict{Serial: rows[0].Serial}, nil)
	eventually(t, "its memory goes with it", func() bool { return freed(b.Status()) })
	require.Zero(t, b.Status().Counts.Unknown)
}

// A process that a broker could not look for, and that has ended when it is looked for
// again, leaves its refcounts to a child that it was making.
func TestUnknownProcessThatEndsInAForkLeavesItsRowToItsChild(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "child")
	c := start(t, b.socket, "forks")
	c.tell("now")
	var held protocol.StorageRef
	c.hear(&held)
	rows := list[broker.SessionRow](p, protocol.ListSessions, "forks")
	require.Len(t, rows, 1)
	b.LookAgainAfter(rows[0].Serial, c.kill)
	require.Equal(t, 1, b.Status().Counts.Closed)
	collected(t, b)
	p.attach(protocol.Ref{Serial: held.Serial, Index: held.Index})
	require.NoError(t, p.refcounts.Take(held.Index))
	require.NotZero(t, b.Status().Memory.Granted)
	eventually(t, "its time is over", func() bool { return b.Status().Counts.Sessions == 1 })
	require.NotZero(t, b.Status().Memory.Granted, "the child counts it")
	p.refcounts.Drop(held.Index)
	eventually(t, "nothing is left", func() bool { return freed(b.Status()) })
}

func init() {
	// limited tries to take over and says what became of it.
	parts["limited"] = func(c *played) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		b, err := broker.New(ctx, broker.Config{Dir: filepath.Dir(c.socket), Memory: 1 << 30, Version: "limited",
			RecoverWait: patience, MemoryDir: os.Getenv(memoryVariable)})
		if err != nil {
			c.tell(err.Error() + "; " + err.(*protocol.Error).Remedy)
			c.hear()
			return
		}
		go b.Serve(context.Background())
		c.tell("serves")
		c.hear()
	}
}

// A broker that may have too few files open changes nothing, and says how many it
// needs; with so many, the next one takes over.
func TestTakeoverWithTooFewFilesLeavesEverything(t *testing.T) {
	for _, kind := range kindsOfMemory {
		t.Run(kind, func(t *testing.T) {
			memory := memoryOf(t, kind)
			old, socket, instance := first(t, memory)
			const n = 20
			var peers []*peer
			var files []handedOver
			var held []shm.Region
			for range n {
				p := connect(t, socket, "p")
				peers = append(peers, p)
				var g protocol.GrantReply
				fds, err := p.call(protocol.OpGrant, protocol.Grant{Bytes: 4096, Chunks: 1}, &g)
				require.NoError(t, err)
				files = append(files, handedOver{"segment", g.SegmentSerial, fds[0]})
				t.Cleanup(func() { fds[0].Close() })
				m := p.mapRegion(fds[0], 4096, true)
				copy(m.Bytes(0, 5), "bytes")
				require.NoError(t, p.refcounts.Take(g.Chunks[0].Chunk*protocol.ChunkIndices))
				held = append(held, m)
			}
			old.kill()
			state, _ := os.ReadFile(filepath.Join(filepath.Dir(socket), "state.json"))
			few := start(t, socket, "limited", func(cmd *exec.Cmd) {
				cmd.Env = append(cmd.Env, memoryVariable+"="+memory)
				limit(cmd, 150)
			})
			var said string
			few.hear(&said)
			number := regexp.MustCompile(`limit of open files to (\d+)`).FindStringSubmatch(said)
			require.NotNil(t, number, said)
			few.tell("end")
			few.kill()
			after, _ := os.ReadFile(filepath.Join(filepath.Dir(socket), "state.json"))
			require.Equal(t, string(state), string(after))
			for _, m := range held {
				require.Equal(t, "bytes", string(m.Bytes(0, 5)))
			}
			need, err := strconv.Atoi(number[1])
			require.NoError(t, err)
			enough := start(t, socket, "limited", func(cmd *exec.Cmd) {
				cmd.Env = append(cmd.Env, memoryVariable+"="+memory)
				limit(cmd, need)
			})
			listens(t, socket)
			for i, p := range peers {
				peers[i] = p.returns(socket, files[i])
			}
			for _, p := range peers {
				p.resumed()
			}
			enough.hear(&said)
			require.Equal(t, "serves", said)
			var st broker.Status
			peers[0].must(protocol.OpStatus, struct{}{}, &st)
			require.Equal(t, instance, st.Instance)
			require.Equal(t, n, st.Counts.Sessions)
			require.Zero(t, st.Counts.Unknown+st.Counts.Disconnected)
		})
	}
}

// A request whose descriptors the broker has no room for is refused, and its session
// goes on.
func TestRequestWhoseDescriptorsTheBrokerCannotReceiveIsRefused(t *testing.T) {
	socket := filepath.Join(shortdir.New(t), "broker.sock")
	c := start(t, socket, "limited")
	listens(t, socket)
	p := connect(t, socket, "p")
	eventually(t, "the broker has no descriptor left", func() bool {
		pid, free := c.cmd.Process.Pid, 0
		for ; ; free++ {
			if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, free)); err != nil {
				break
			}
		}
		out, err := exec.Command("prlimit", "--pid", strconv.Itoa(pid), fmt.Sprintf("--nofile=%d:", free)).CombinedOutput()
		require.NoError(t, err, "%s", out)
		_, err = p.call(protocol.OpOffer, protocol.Offer{}, nil, p.fds[0])
		var e *protocol.Error
		require.ErrorAs(t, err, &e)
		return e.Code == protocol.CodeTooMany
	})
	var st broker.Status
	p.must(protocol.OpStatus, struct{}{}, &st)
	require.Equal(t, 1, st.Counts.Sessions)
}

// limit makes a child begin with a limit of open files.
func limit(cmd *exec.Cmd, n int) {
	cmd.Args = append([]string{"/bin/sh", "-c", `ulimit -n "$0" && exec "$@"`, strconv.Itoa(n), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}
