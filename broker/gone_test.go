package broker_test

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func init() {
	// silent says nothing after hello.
	parts["silent"] = func(c *played) {
		connectAlive(c, "silent", nil)
		c.tell("there")
		if c.hear() == "exec\n" {
			replaceBySleep(c)
		}
	}
	// taker holds a storage and the first item of a queue, and does what it is told to.
	parts["taker"] = func(c *played) {
		p := connectAlive(c, "taker", nil)
		s := p.alloc(4096)
		info := p.open(queueOf("work"))
		var r protocol.TopicReadReply
		group, err := p.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("queue")}, &r)
		require.NoError(c, err)
		area, err := shm.NewGroupLane(p.mapRegion(group[0], int(protocol.GroupBytes(info.Slots)), true), 0, info.Slots)
		require.NoError(c, err)
		i, hint, ok := area.Next(1)
		require.True(c, ok && area.Take(i, hint, r.Member, true))
		group[0].Close()
		c.tell(s.ref())
		for {
			switch c.hear() {
			case "exec\n":
				replaceBySleep(c)
			case "close\n":
				closeFiles(c, "socket:", "/")
				c.tell("closed")
			case "":
				return
			}
		}
	}
}

// replaced has a program replaced by another one, and waits until it is.
func replaced(t *testing.T, c *child) {
	t.Helper()
	former := programOf(c)
	c.tell("exec")
	eventually(t, "another program runs", func() bool { now := programOf(c); return now != "" && now != former })
}

func programOf(c *child) string {
	path, _ := os.Readlink("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/exe")
	return path
}

// A program that exec replaces while no broker can see it: the next one does not wait
// for it, and ends its session. One that is stopped and has closed all descriptors is
// not taken for it.
func TestExecWithoutABrokerEndsTheSessionAtTheNext(t *testing.T) {
	for _, kind := range kindsOfMemory {
		t.Run(kind, func(t *testing.T) {
			memory := memoryOf(t, kind)
			old, socket, instance := first(t, memory)
			p := connect(t, socket, "writer")
			open := queueOf("work")
			open.Redeliver = ptr(true)
			info := p.open(open)
			var r protocol.TopicReadReply
			group, err := p.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("queue")}, &r)
			require.NoError(t, err)
			w := p.writer(info)
			w.post("one", 0, nil)
			area, err := shm.NewGroupLane(p.mapRegion(group[0], int(protocol.GroupBytes(info.Slots)), true), w.num, info.Slots)
			require.NoError(t, err)

			taker, stopped := start(t, socket, "taker"), start(t, socket, "program")
			var taken, kept protocol.StorageRef
			taker.hear(&taken)
			stopped.hear(&kept)
			require.False(t, area.Open(1))
			stopped.ask("close")
			require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
			old.kill()
			replaced(t, taker)

			made := next(t, socket, func(c *broker.Config) { c.MemoryDir, c.RecoverWait = memory, 3*time.Second })
			p2 := p.returns(socket, handedOver{"group", r.GroupID, group[0]})
			group[0].Close()
			p2.resumed()
			b := made()
			require.Equal(t, instance, b.ID())
			eventually(t, "the former program is found gone", func() bool { return b.Status().Counts.Disconnected == 1 })
			rows := list[broker.SessionRow](p2, protocol.ListSessions, "program")
			require.Len(t, rows, 1, "which the broker looked at in the same way")
			require.Equal(t, "disconnected", rows[0].State)
			stopped.kill()
			eventually(t, "nothing is left of both", func() bool {
				return b.Status().Counts.Sessions == 1 && freed(b.Status())
			})
			require.True(t, area.Open(1), "its claim is free")
			require.NoError(t, taker.cmd.Process.Signal(syscall.Signal(0)), "the process goes on")
		})
	}
}

// A takeover goes on as soon as it is sure that a program is gone, whatever time it has.
func TestTakeoverDoesNotWaitForProgramsThatExecReplaced(t *testing.T) {
	old, socket, instance := first(t, "")
	p := connect(t, socket, "writer")
	c, _ := holding(t, socket, "program")
	silent := start(t, socket, "silent")
	silent.hear(new(string))
	old.kill()
	replaced(t, c)
	replaced(t, silent)
	_, b := takenOver(t, socket, func(c *broker.Config) { c.RecoverWait = 100 * patience }, p)
	require.Equal(t, instance, b.ID())
	require.Equal(t, 1, b.Status().Counts.Sessions)
	eventually(t, "its memory is free", func() bool { return freed(b.Status()) })
}
