package broker_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/protocol"
)

// TestSessionWithoutAnAnsweredHelloEndsAfterATakeover kills a broker while it
// answers a hello. A session whose client has the answer goes on; one without neither
// holds a takeover up nor stays, though its process lives.
func TestSessionWithoutAnAnsweredHelloEndsAfterATakeover(t *testing.T) {
	program := crashProgram(t)
	for _, point := range []string{"broker-hello-opened", "broker-hello-answered"} {
		for _, kind := range kindsOfMemory {
			t.Run(point+"/"+kind, func(t *testing.T) {
				t.Parallel()
				known := point != "broker-hello-opened"
				killedInHello(t, program, point, memoryOf(t, kind), known)
			})
		}
	}
}

func killedInHello(t *testing.T, program, point, memory string, known bool) {
	socket := filepath.Join(shortdir.New(t), "run", "broker.sock")
	old := start(t, socket, "broker", armed(program, point+":2", memory))
	var id string
	old.hear(&id)
	died := exited(old)
	p := connect(t, socket, "known")
	p.must(protocol.OpStatus, struct{}{}, nil) // from here on it is noted
	var q *peer
	if known {
		q = connect(t, socket, "answered")
	} else {
		q = &peer{t: t, w: dial(t, socket)}
		q.send(protocol.OpHello, helloOf("unacknowledged"))
	}
	select {
	case <-died:
	case <-time.After(patience):
		t.Fatalf("the broker did not come to %s", point)
	}
	made := next(t, socket, func(c *broker.Config) {
		c.MemoryDir = memory
		if !known { // time for the one to return, and then so long until the other is gone
			c.RecoverWait = 5 * time.Second
		}
	})
	p2 := p.returns(socket)
	if known {
		q2 := q.returns(socket)
		q2.resumed()
		q2.must(protocol.OpStatus, struct{}{}, nil)
	}
	p2.resumed()
	b := made()
	require.Equal(t, id, b.ID())
	if known {
		require.Equal(t, 2, b.Status().Counts.Sessions)
		return
	}
	eventually(t, "the session that no process knows of is gone", func() bool { return b.Status().Counts.Sessions == 1 })
	require.Zero(t, b.Status().Counts.Disconnected)
	connect(t, socket, "newcomer").must(protocol.OpStatus, struct{}{}, nil)
	p2.must(protocol.OpStatus, struct{}{}, nil)
}
