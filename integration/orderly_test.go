package integration

import (
	"context"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// startGoingOn starts a client of each kind.
func startGoingOn(b *testkit.Broker, kinds ...string) map[string]*testkit.Process {
	all := map[string]*testkit.Process{}
	for _, kind := range kinds {
		all[kind] = b.Start("goes on", goesOn{kind})
	}
	for _, p := range all {
		p.Next(new(string))
	}
	return all
}

// growing waits until each client has done a few more.
func growing(t *testing.T, all map[string]*testkit.Process) {
	t.Helper()
	for kind, p := range all {
		first, now := int64(-1), int64(0)
		testkit.Until(t, kind+" goes on", func() (bool, string) {
			p.Tell("count")
			p.Next(&now)
			if first < 0 {
				first = now
			}
			return now > first+5, ""
		})
	}
}

func granted(t *testing.T, b *testkit.Broker) uint64 {
	t.Helper()
	c := b.Connect()
	defer c.Close()
	var s struct{ Memory struct{ Granted uint64 } }
	require.NoError(t, c.Broker(testkit.Context(t), protocol.OpStatus, nil, &s))
	return s.Memory.Granted
}

// TERM leaves all to the next broker: no client sees an error, no item of a queue is
// lost or comes twice, and quotas go on counting.
func TestTermLosesNothing(t *testing.T) {
	for _, files := range []bool{false, true} {
		t.Run(map[bool]string{false: "memfds", true: "files"}[files], func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) {
				if files {
					c.MemoryDir = t.TempDir()
				}
			})
			all := startGoingOn(b, kindsThatGoOn...)
			for range 3 {
				growing(t, all)
				before := granted(t, b)
				b.Term()
				b.Restart()
				require.GreaterOrEqual(t, granted(t, b), before)
			}
			growing(t, all)
			for _, p := range all {
				p.Done()
			}
			testkit.AuditKept(t, b)
		})
	}
}

// A call that waits for data goes on while no broker is there, one that needs a broker
// says at its deadline that there is none, and neither takes that for the end of the
// session.
func TestAbsenceIsNoLoss(t *testing.T) {
	b := testkit.StartBroker(t)
	k := newPong(t, b)
	k.rounds(5)
	b.Term()
	k.rounds(50)
	k.lacksBroker()
	b.Restart()
	k.rounds(5)
	k.p.Done()
}

// Stop tells every client: each call fails with SessionLost, also those that wait, what
// is held can be read, and a new session works.
func TestStopNotifiesEveryClient(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory, c.SessionMemory = 256<<20, 16<<20 })
	all := startGoingOn(b, append(kindsThatGoOn, kindsThatWait...)...)
	working := map[string]*testkit.Process{}
	for _, kind := range kindsThatGoOn {
		working[kind] = all[kind]
	}
	growing(t, working)
	out, err := exec.Command(testkit.Binary(t), "stop", "--address", b.Socket).CombinedOutput()
	require.NoError(t, err, string(out))
	b.Process().Ended()
	said := func(what string) {
		for kind, p := range all {
			var s string
			p.Next(&s)
			require.Equal(t, what, s, kind)
		}
	}
	said("lost")
	b.Restart()
	for _, p := range all {
		p.Tell("again")
	}
	said("again")
	for _, p := range all {
		p.Done()
	}
}

// What a new broker cannot resume is lost, too: here the instance is not there any more.
func TestSessionThatABrokerDoesNotKnowIsLost(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect(client.WithName("late"))
	ctx := testkit.Context(t)
	x, err := filled(ctx, c, 64, 1)
	require.NoError(t, err)
	q, err := c.Queue(ctx, "empty")
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		_, err := q.Get(context.Background())
		got <- err
	}()
	b.Kill()
	b.Forget()
	b.Restart()
	require.ErrorIs(t, <-got, protocol.ErrSessionLost)
	_, err = c.Topic(ctx, "new")
	require.ErrorIs(t, err, protocol.ErrSessionLost)
	_, err = filled(ctx, c, 64, 1)
	require.ErrorIs(t, err, protocol.ErrSessionLost)
	_, err = x.Handle(ctx)
	require.ErrorIs(t, err, protocol.ErrSessionLost)
	words, err := client.Slice[uint64](x)
	require.NoError(t, err)
	require.NoError(t, verify(words, 1))
	x.Release()
	require.NoError(t, q.Close())
	require.NoError(t, c.Close())
	_, err = c.Topic(ctx, "new")
	require.ErrorIs(t, err, protocol.ErrClosed)
}

// A broker that still waits for some of its clients hands over when all have come.
func TestReplaceWaitsForABrokerThatBegins(t *testing.T) {
	b := testkit.StartBroker(t)
	all := startGoingOn(b, "set")
	late := startGoingOn(b, "wait read")["wait read"]
	late.Stop() // it is waited for
	b.Kill()
	b.Restart()
	b.Replace()
	late.Cont()
	growing(t, all)
	all["set"].Done()
	late.Done()
}

// A broker takes over from a living one while all goes on: nothing is lost, not even
// what only the old one had, and what was granted stays granted above a lower limit.
func TestReplaceLosesNothing(t *testing.T) {
	for _, files := range []bool{false, true} {
		t.Run(map[bool]string{false: "memfds", true: "files"}[files], func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) {
				c.Memory = 256 << 20
				if files {
					c.MemoryDir = t.TempDir()
				}
			})
			p := b.Start("publish", publishConfig{Name: "alone", Revisions: 3})
			p.Next(new(uint64))
			p.Done()
			all := startGoingOn(b, kindsThatGoOn...)
			for range 3 {
				growing(t, all)
				before := granted(t, b)
				b.Replace(func(c *testkit.BrokerConfig) { c.Memory = 1 << 20 })
				require.GreaterOrEqual(t, granted(t, b), before)
			}
			growing(t, all)
			c := b.Connect()
			w, err := c.Get(testkit.Context(t), "alone")
			require.NoError(t, err)
			require.NoError(t, verifyBundle(w, 3))
			w.Release()
			require.NoError(t, c.Delete(testkit.Context(t), "alone"))
			require.NoError(t, c.Close())
			for _, p := range all {
				p.Done()
			}
			testkit.AuditKept(t, b)
		})
	}
}

// A closed client gives up looking for a broker that never comes, though its lane still
// names a message: the leak check waits for that.
func TestClosedClientWithAnUnreadMessageDoesNotWaitForEver(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect()
	ctx := testkit.Context(t)
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	x, err := filled(ctx, c, 64, 1)
	require.NoError(t, err)
	require.NoError(t, topic.Send(ctx, x))
	x.Release()
	b.Kill()
	require.NoError(t, c.Close())
}
