package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// road leads from one server of a cluster to another one, and can be cut.
type road struct {
	l  net.Listener
	to string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newRoad(t *testing.T, to int) *road {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &road{l: l, to: fmt.Sprintf("127.0.0.1:%d", to), conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		l.Close()
		r.set(true)
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.carry(c)
		}
	}()
	return r
}

func (r *road) port() int { return r.l.Addr().(*net.TCPAddr).Port }

func (r *road) carry(a net.Conn) {
	defer a.Close()
	b, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer b.Close()
	r.mu.Lock()
	cut := r.cut
	r.conns[a], r.conns[b] = true, true
	r.mu.Unlock()
	if !cut {
		go func() {
			io.Copy(b, a)
			b.Close()
		}()
		io.Copy(a, b)
	}
	r.mu.Lock()
	delete(r.conns, a)
	delete(r.conns, b)
	r.mu.Unlock()
}

// set cuts the road, or opens it.
func (r *road) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut = cut; cut {
		for c := range r.conns {
			c.Close()
		}
	}
}

// dividedCluster is a cluster of which a server can be cut off from the others.
type dividedCluster struct {
	natsCluster
	roads [3][3]*road
}

func startDivided(t *testing.T, b *testkit.Broker) *dividedCluster {
	c := &dividedCluster{natsCluster: natsCluster{t: t}}
	dir := t.TempDir()
	for i := range c.servers {
		c.servers[i] = natsServerConfig{Port: testkit.HeldPort(t), Store: filepath.Join(dir, fmt.Sprint(i)), Name: fmt.Sprintf("s%d", i), Cluster: testkit.HeldPort(t),
			Advertise: testkit.HeldPort(t)} // none answers there: servers come by the roads alone
	}
	for i := range c.servers {
		for j := range c.servers {
			if i != j {
				c.roads[i][j] = newRoad(t, c.servers[j].Cluster)
				c.servers[i].Routes = append(c.servers[i].Routes, c.roads[i][j].port())
			}
		}
	}
	for i := range c.servers {
		c.start(i, b)
	}
	t.Cleanup(func() {
		for _, p := range c.running {
			if p.Alive() {
				p.Kill()
			}
		}
	})
	return c
}

// divide cuts a server off from the others, or ends that.
func (c *dividedCluster) divide(server int, cut bool) {
	for other := range c.roads {
		if other != server {
			c.roads[server][other].set(cut)
			c.roads[other][server].set(cut)
		}
	}
}

// at connects to one server alone.
func (c *dividedCluster) at(server int) (*nats.Conn, jetstream.JetStream) {
	nc, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", c.servers[server].Port), nats.Timeout(testkit.Patience), nats.IgnoreDiscoveredServers(), nats.MaxReconnects(-1))
	require.NoError(c.t, err)
	c.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(c.t, err)
	return nc, js
}

// A leader that is cut off answers reads with what it had. A set that begins there, after another one has returned where most
// servers are, does not conflict with that.
func TestSetAtALeaderThatIsCutOffDoesNotConflictWithWhatWasSetBefore(t *testing.T) {
	home := testkit.StartBroker(t)
	c := startDivided(t, home)
	ctx := testkit.Context(t)
	var brokers [3]*testkit.Broker
	for i := range brokers {
		brokers[i] = testkit.StartBroker(t, func(b *testkit.BrokerConfig) {
			b.JoinNATS = []string{"--nats", fmt.Sprintf("nats://127.0.0.1:%d", c.servers[i].Port), "--span"}
		})
	}
	var at [3]*client.Client
	for i, b := range brokers {
		at[i] = b.Connect(client.WithNamespace("team"))
		hostStatusUntil(t, ctx, at[i], "the host answers others", func(s machines.Status) bool { return s.State == machines.StateSpanning })
	}
	testkit.Until(t, "JetStream is ready", func() (bool, string) {
		_, err := numbered(t, ctx, at[0], "x", 1)
		return err == nil, fmt.Sprint(err)
	})
	stream := names.StreamName("team")
	_, js := c.at(0)
	old := c.leader(js, stream)
	other := (old + 1) % 3
	one, two := at[old], at[other]
	_, js = c.at(other)
	var first uint64
	testkit.Until(t, "a name is set", func() (bool, string) {
		var err error
		first, err = numbered(t, ctx, one, "x", 1)
		return err == nil, fmt.Sprint(err)
	})
	require.EqualValues(t, 1, comes(t, ctx, two, "x", first))
	_, err := numbered(t, ctx, two, "y", 1)
	require.NoError(t, err)
	here, alone := c.at(old)
	sent, err := here.SubscribeSync("$KV." + names.BucketName("team") + ".x")
	require.NoError(t, err)
	require.NoError(t, here.Flush())

	c.divide(old, true)
	testkit.Until(t, "the others have a leader", func() (bool, string) {
		leader := c.leader(js, stream)
		return leader != old, fmt.Sprint(leader)
	})
	second := map[string]uint64{}
	testkit.Until(t, "names are set where most servers are", func() (bool, string) {
		for _, name := range []string{"x", "y"} {
			var err error
			if second[name], err = numbered(t, ctx, two, name, 2); err != nil {
				return false, err.Error()
			}
		}
		return true, ""
	})
	type result struct {
		name     string
		revision uint64
		err      error
	}
	over := make(chan result, 2)
	set := func(name string, opts ...client.SetOption) {
		revision, err := numbered(t, ctx, one, name, 3, opts...)
		over <- result{name, revision, err}
	}
	go set("x")
	go set("y", client.Replaces(second["y"])) // a program has carried the number here
	cutOff := false
	testkit.Until(t, "the set is written on what was read, or no leader answers there", func() (bool, string) {
		if n, _, _ := sent.Pending(); n > 0 {
			cutOff = true
			return true, ""
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		s, err := alone.Stream(ctx, stream)
		return err != nil || s.CachedInfo().Cluster.Leader != fmt.Sprintf("s%d", old), "it waits"
	})
	t.Logf("the leader that was cut off had the set: %v", cutOff)
	c.divide(old, false)
	for range 2 {
		r := <-over
		if r.err == nil {
			require.Greater(t, r.revision, second[r.name])
			require.EqualValues(t, 3, comes(t, ctx, two, r.name, r.revision))
			continue
		}
		t.Logf("%s: %v", r.name, r.err)
		require.ErrorIs(t, r.err, protocol.ErrUnreachable)
	}
}
