package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
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

// natsCluster is a JetStream of three servers, in processes of their own.
type natsCluster struct {
	t       *testing.T
	servers [3]natsServerConfig
	running [3]*testkit.Process
}

func startCluster(t *testing.T, b *testkit.Broker) *natsCluster { return startSome(t, b, 3) }

// startSome starts the first servers of a cluster that grows.
func startSome(t *testing.T, b *testkit.Broker, servers int) *natsCluster {
	c := &natsCluster{t: t}
	dir := t.TempDir()
	var routes []int
	for i := range c.servers {
		c.servers[i] = natsServerConfig{Port: testkit.HeldPort(t), Store: filepath.Join(dir, fmt.Sprint(i)), Name: fmt.Sprintf("s%d", i), Cluster: testkit.HeldPort(t)}
		if i < servers {
			routes = append(routes, c.servers[i].Cluster)
		}
	}
	for i := range c.servers {
		c.servers[i].Routes = routes
		if i < servers {
			c.start(i, b)
		}
	}
	t.Cleanup(func() {
		for _, p := range c.running {
			if p != nil && p.Alive() {
				p.Kill()
			}
		}
	})
	return c
}

func (c *natsCluster) start(i int, b *testkit.Broker) {
	c.running[i] = b.Start("nats-server", c.servers[i])
	c.running[i].Next(&c.servers[i].Port)
}

func (c *natsCluster) url() string {
	var all []string
	for _, s := range c.servers {
		all = append(all, fmt.Sprintf("nats://127.0.0.1:%d", s.Port))
	}
	return strings.Join(all, ",")
}

// leader is which server leads a stream.
func (c *natsCluster) leader(js jetstream.JetStream, stream string) (i int) {
	testkit.Until(c.t, "the stream has a leader", func() (bool, string) {
		ctx, cancel := context.WithTimeout(testkit.Context(c.t), time.Second) // no server answers while none leads
		defer cancel()
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return false, err.Error()
		}
		info := s.CachedInfo().Cluster
		if info == nil || info.Leader == "" {
			return false, "none"
		}
		_, err = fmt.Sscanf(info.Leader, "s%d", &i)
		return err == nil, info.Leader
	})
	return i
}

// A set rides over the death of the leader; without a quorum it ends by an error, and names are read as they were.
func TestNamesOfAClusterWhoseLeaderDies(t *testing.T) {
	home := testkit.StartBroker(t)
	c := startCluster(t, home)
	join := func(b *testkit.BrokerConfig) { b.JoinNATS = []string{"--nats", c.url(), "--span"} }
	a, b := testkit.StartBroker(t, join), testkit.StartBroker(t, join)
	b.Namespace = a.Namespace
	ctx := testkit.Context(t)
	one, two := a.Connect(), b.Connect()
	hostStatusUntil(t, ctx, one, "the host answers others", func(s machines.Status) bool { return s.State == machines.StateSpanning })
	hostStatusUntil(t, ctx, two, "the host answers others", func(s machines.Status) bool { return s.State == machines.StateSpanning })
	var first uint64
	testkit.Until(t, "JetStream is ready", func() (bool, string) {
		var err error
		first, err = numbered(t, ctx, one, "x", 1)
		return err == nil, fmt.Sprint(err)
	})
	require.EqualValues(t, 1, comes(t, ctx, two, "x", first))

	nc, err := nats.Connect(c.url(), nats.Timeout(testkit.Patience), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream := "KV_" + names.BucketName(a.Namespace)
	s, err := js.Stream(ctx, stream)
	require.NoError(t, err)
	require.Equal(t, 3, s.CachedInfo().Config.Replicas)

	dead := c.leader(js, stream)
	c.running[dead].Kill()
	began := time.Now()
	second, err := numbered(t, ctx, two, "x", 2)
	require.NoError(t, err)
	t.Logf("set %s after the leader was killed", time.Since(began).Round(time.Millisecond))
	require.EqualValues(t, 2, comes(t, ctx, one, "x", second))

	other := (dead + 1) % 3
	c.running[other].Kill()
	_, err = numbered(t, briefly(t), two, "x", 3)
	require.ErrorIs(t, err, protocol.ErrUnreachable)
	require.EqualValues(t, 2, comes(t, ctx, one, "x", second))
	c.start(other, home)
	c.start(dead, home)
	third, err := numbered(t, ctx, one, "x", 4)
	if err != nil { // an election may take as long
		require.ErrorIs(t, err, protocol.ErrUnreachable)
		testkit.Until(t, "names are set again", func() (bool, string) {
			third, err = numbered(t, ctx, one, "x", 4)
			return err == nil, fmt.Sprint(err)
		})
	}
	require.EqualValues(t, 4, comes(t, ctx, two, "x", third))
}

// A bucket that was made when there were fewer servers, or that an operator has made with fewer replicas, gets one on each
// of three.
func TestBucketOfNamesGetsAReplicaOnEachServer(t *testing.T) {
	home := testkit.StartBroker(t)
	c := startSome(t, home, 2)
	b := testkit.StartBroker(t, func(b *testkit.BrokerConfig) { b.JoinNATS = []string{"--nats", c.url(), "--span"} })
	ctx := testkit.Context(t)
	one := b.Connect()
	hostStatusUntil(t, ctx, one, "the host answers others", func(s machines.Status) bool { return s.State == machines.StateSpanning })
	nc, err := nats.Connect(c.url(), nats.Timeout(testkit.Patience), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	set := func(in *client.Client) (revision uint64) {
		t.Helper()
		testkit.Until(t, "the name is set", func() (bool, string) {
			var err error
			revision, err = numbered(t, ctx, in, "x", 1)
			return err == nil, fmt.Sprint(err)
		})
		return revision
	}
	config := func(namespace string) (cfg jetstream.StreamConfig, err error) {
		s, err := js.Stream(ctx, names.StreamName(namespace))
		if err == nil {
			cfg = s.CachedInfo().Config
		}
		return cfg, err
	}
	replicas := func(namespace string, want int) {
		t.Helper()
		testkit.Until(t, fmt.Sprintf("the bucket has %d replicas", want), func() (bool, string) {
			cfg, err := config(namespace)
			return err == nil && cfg.Replicas == want, fmt.Sprint(cfg.Replicas, err)
		})
	}
	first := set(one)
	replicas(b.Namespace, 2)
	c.start(2, home)
	replicas(b.Namespace, 3)
	require.EqualValues(t, 1, comes(t, ctx, one, "x", first))

	cfg, err := config(b.Namespace)
	require.NoError(t, err)
	cfg.Name, cfg.Subjects, cfg.Replicas = names.StreamName("operators"), []string{"$KV." + names.BucketName("operators") + ".>"}, 1
	_, err = js.CreateStream(ctx, cfg)
	require.NoError(t, err)
	set(b.Connect(client.WithNamespace("operators")))
	replicas("operators", 3)
}
