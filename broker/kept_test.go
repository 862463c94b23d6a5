package broker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// held is what a peer holds of a session that has ended.
type held struct {
	ref    protocol.StorageRef
	index  uint32
	memory shm.Region
	attach protocol.AttachAnswer
	file   *sys.FD   // of the segment
	files  []*sys.FD // of the ended session: file and bell
}

// holdOfTheDead has a session set a name and end, while p holds what it named.
func holdOfTheDead(t *testing.T, socket string, p *peer) *held {
	c := start(t, socket, "setter")
	h := &held{}
	c.hear(&h.ref)
	h.index = h.ref.Index
	r := protocol.Ref{Serial: h.ref.Serial, Index: h.ref.Index}
	h.attach = p.attach(r)
	var err error
	h.files, err = p.call(protocol.OpPeer, peerOf(h.attach.Owner, h.attach.OwnerSerial), nil)
	require.NoError(t, err)
	files, err := p.call(protocol.OpSegment, protocol.Segment{Segment: h.attach.Segment, Serial: h.attach.SegmentSerial}, nil)
	require.NoError(t, err)
	h.file = files[0]
	t.Cleanup(func() { h.file.Close(); wire.CloseAll(h.files) })
	h.memory = p.mapRegion(h.file, 4096, false)
	require.NoError(t, p.refcounts.Take(h.index))
	c.kill()
	eventually(t, "the setter has ended", func() bool {
		return len(list[broker.SessionRow](p, protocol.ListSessions, "setter")) == 0
	})
	return h
}

// The broker has a segment without a description of its storages. What the refcounts of a holder count of
// it stays as it is, and so do the names in it.
func TestHeldMemoryStaysWhenItsOwnersFileWasNotHandedOver(t *testing.T) {
	for _, what := range []string{"segment without its owner", "neither", "owner without its segment"} {
		t.Run(what, func(t *testing.T) {
			old, socket, _ := first(t, "")
			p := connect(t, socket, "holder")
			h := holdOfTheDead(t, socket, p)
			old.kill()
			var more []handedOver
			switch what {
			case "segment without its owner":
				more = []handedOver{{"segment", h.attach.SegmentSerial, h.file}}
			case "owner without its segment":
				more = []handedOver{{"session", h.attach.OwnerSerial, h.files[0]}}
			}
			p2, b := takenOver(t, socket, nil, p, more...)
			// What the reaper does happens before an alloc that finds no room.
			p2.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 40, Chunks: 1})
			require.Equal(t, "bytes", string(h.memory.Bytes(0, 5)))
			require.EqualValues(t, 4096, b.Status().Memory.Granted)
			require.Equal(t, 1, b.Status().Counts.Names)
			_, lane := p2.nameLane("kept")
			require.True(t, lane.Has(1))
			require.Equal(t, h.attach.SegmentSerial, p2.attach(protocol.Ref{Serial: h.ref.Serial, Index: h.index}).SegmentSerial)
			p2.must(protocol.OpNameDelete, protocol.NameRef{Name: "kept"}, nil)
			p2.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 40, Chunks: 1})
			require.Equal(t, "bytes", string(h.memory.Bytes(0, 5)), "the reader still holds it")
			p2.refcounts.Drop(h.index)
			eventually(t, "it goes with its last holder", func() bool { return freed(b.Status()) })
		})
	}
}

// A name of which only a client has the memory that is not back waits for it.
func TestNameWaitsForAStoppedClient(t *testing.T) {
	old, socket, _ := first(t, "")
	p, q := connect(t, socket, "holder"), connect(t, socket, "stopped")
	h := holdOfTheDead(t, socket, p)
	p.refcounts.Drop(h.index)
	old.kill()
	testkit.Elsewhere(t, socket)
	q2, b := takenOver(t, socket, func(c *broker.Config) { c.RecoverWait = 100 * time.Millisecond }, q)
	require.Equal(t, 1, b.Status().Counts.Names)
	require.Equal(t, 1, b.Status().Counts.Disconnected)
	e := q2.refused(protocol.CodeBusy, protocol.OpSegment, protocol.Segment{Segment: h.attach.Segment, Serial: h.attach.SegmentSerial})
	require.Contains(t, e.Message, fmt.Sprintf("session %d (holder, pid %d)", p.hello.Serial, os.Getpid()))
	require.Contains(t, e.Remedy, fmt.Sprintf("kill -CONT %d", os.Getpid()))
	e = q2.refused(protocol.CodeBusy, protocol.OpEvict, protocol.Evict{Serial: p.hello.Serial})
	require.Contains(t, e.Message, "which runs and is not back")
	require.Contains(t, e.Remedy, fmt.Sprintf("end process %d, or give --kill", os.Getpid()))
	p2 := p.returns(socket, handedOver{"segment", h.attach.SegmentSerial, h.file},
		handedOver{"session", h.attach.OwnerSerial, h.files[0]})
	p2.resumed()
	require.EqualValues(t, 1, q2.count(h.ref), "of the name")
	require.Equal(t, "bytes", string(h.memory.Bytes(0, 5)))
	q2.must(protocol.OpNameDelete, protocol.NameRef{Name: "kept"}, nil)
	eventually(t, "it goes with its name", func() bool { return freed(b.Status()) })
}

// A client that lists a grant of its own late, or never, keeps it until it says that
// it never got it.
func TestGrantIsTakenBackOnlyWhenItsClientReturnsIt(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "a")
	s := p.alloc(4096)
	copy(s.region.Bytes(0, 5), "bytes")
	var g protocol.GrantReply
	p.must(protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 3}, &g) // its answer is lost
	p.refcounts.Drop(s.Index)                                               // warm, to be used again
	old.kill()
	p2, b := takenOver(t, socket, nil, p) // lists neither
	p2.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 40, Chunks: 1})
	require.Equal(t, "bytes", string(s.region.Bytes(0, 5)))
	require.EqualValues(t, 1<<20+4096, b.Status().Memory.Granted)
	require.Equal(t, 4, b.Status().Counts.Chunks)
	p2.must(protocol.OpReturn, protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}, nil)
	require.EqualValues(t, 4096, b.Status().Memory.Granted)
	require.Equal(t, 1, b.Status().Counts.Chunks)
}

func TestClientReturnsAGrantWhoseAnswerWasLost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	socket := filepath.Join(shortdir.New(t), "run", "broker.sock")
	old := start(t, socket, "broker", armed(crashProgram(t), "broker-grant-made", ""))
	var id string
	old.hear(&id)
	made := successor(t, ctx, socket, "", exited(old))
	c, err := client.Connect(ctx, client.WithAddress(socket), client.WithStart(false))
	require.NoError(t, err)
	defer c.Close()
	var x *client.Tensor
	require.NoError(t, again(ctx, func() (err error) { x, err = c.Alloc(ctx, dlpack.Uint64, []int64{512}); return err }))
	defer x.Release()
	b := <-made
	require.Equal(t, id, b.ID())
	p := connect(t, socket, "looks")
	eventually(t, "the client has the one grant that it knows of", func() bool {
		return len(list[broker.SegmentRow](p, protocol.ListSegments, "")) == 1
	})
}
