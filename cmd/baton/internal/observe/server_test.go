package observe_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
	"github.com/baton-ipc/baton/internal/shortdir"
)

func options(t *testing.T) observe.Options {
	t.Helper()
	return observe.Options{Guard: observe.Guard{Network: "tcp", Address: "127.0.0.1:0"}, Version: "1.2.3", Log: slog.New(slog.DiscardHandler),
		Broker: func() broker.Status { return broker.Status{} }, Ready: func() error { return nil }}
}

func start(t *testing.T, o observe.Options) *observe.Server {
	t.Helper()
	s, err := observe.Start(o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

func get(t *testing.T, s *observe.Server, path string) (int, string) {
	t.Helper()
	r, err := http.Get("http://" + s.Addr() + path)
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(body)
}

func TestReadyTellsWhyNot(t *testing.T) {
	o := options(t)
	o.Ready = func() error { return errors.New("the broker is ending") }
	s := start(t, o)
	code, body := get(t, s, "/readyz")
	assert.Equal(t, 503, code)
	assert.Equal(t, "the broker is ending\n", body)
	code, _ = get(t, s, "/healthz")
	assert.Equal(t, 200, code, "an ending broker is alive")
}

func TestHealthyGivesUpOnABrokerThatHangs(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := observe.Healthy(ctx, func() { <-hang })
	assert.ErrorContains(t, err, "does not answer")
}

func TestMetricsShowTheStatus(t *testing.T) {
	o := options(t)
	o.Broker = func() broker.Status {
		return broker.Status{Instance: "i0", Memory: broker.MemoryStatus{Limit: 1000, Granted: 300, Orphans: 100, Lanes: 40, Held: 70, ForChildren: 30, Free: 50},
			Devices: []broker.DeviceStatus{{Device: "cuda:GPU-1", Granted: 500, Orphans: 200, Held: 40}},
			Counts:  broker.Counts{Sessions: 10, Disconnected: 2, Closed: 1, Evicted: 4, ForChildren: 5, Leases: 7, Storages: 9, Queues: 3, AdoptedLanes: 4}}
	}
	o.NATS = func() *natsbridge.Status {
		return &natsbridge.Status{Connected: true, Reconnects: 1, Published: 12, Dropped: 2, Refused: []natsbridge.Refusal{{Right: "publish baton.default.>"}}, Names: natsbridge.NamesStatus{Pending: 6, Mirrored: 8, LeftOut: 3, Foreign: 9,
			Owners: []natsbridge.ForeignOwner{{Namespace: "a", Instance: "i1", HostName: "h\"1", Keys: 2}, {Namespace: "b", Instance: "i1", HostName: "h\"1", Keys: 3},
				{Namespace: "a", Instance: "i2", Keys: 1}}}}
	}
	_, body := get(t, start(t, o), "/metrics")
	for _, line := range []string{
		`baton_segment_bytes{state="granted"} 200`, `baton_segment_bytes{state="orphan"} 100`,
		`baton_memory_held_bytes 70`, `baton_lane_bytes 40`, `baton_memory_for_children_bytes 30`,
		`baton_device_memory_bytes{device="cuda:GPU-1",state="granted"} 300`, `baton_device_memory_bytes{device="cuda:GPU-1",state="orphan"} 200`,
		`baton_device_memory_bytes{device="cuda:GPU-1",state="held"} 40`,
		`baton_memory_limit_bytes 1000`, `baton_memory_free_bytes 50`,
		`baton_sessions{state="live"} 3`, `baton_sessions{state="disconnected"} 2`, `baton_sessions{state="closed"} 1`, `baton_sessions{state="evicted"} 4`,
		`baton_sessions_for_children 5`,
		`baton_leases 7`, `baton_storages 9`, `baton_topics{kind="queue"} 3`, `baton_adopted_lanes 4`, `baton_recovering 0`,
		`baton_nats_connected 1`, `baton_nats_reconnects_total 1`, `baton_nats_published_total 12`,
		`baton_nats_dropped_total 2`, `baton_nats_right_refused{right="publish baton.default.>"} 1`, `baton_nats_names_pending 6`,
		`baton_nats_names_mirrored 8`, `baton_nats_names_left_out 3`, `baton_nats_names_foreign{host="h\"1",instance="i1"} 5`,
		`baton_nats_names_foreign{host="",instance="i2"} 1`, `baton_nats_names_foreign{host="",instance="others"} 3`,
	} {
		assert.Contains(t, body, line+"\n")
	}
}

// A zero would say that the broker has nothing: what it does not know is not there.
func TestMetricsOfABrokerThatDoesNotServeAreThoseThatItHas(t *testing.T) {
	for _, st := range []broker.Status{{}, {Instance: "i0", Taking: true}, {Instance: "i0", Ending: true}} {
		o := options(t)
		o.Broker = func() broker.Status { return st }
		o.Traffic = func(func(*broker.TopicRow)) (broker.TrafficStatus, bool) { return broker.TrafficStatus{}, false }
		o.Calls = func(func(*broker.FunctionRow)) (broker.CallStatus, bool) { return broker.CallStatus{}, false }
		_, body := get(t, start(t, o), "/metrics")
		for _, name := range []string{"baton_uptime_seconds", "baton_memory_limit_bytes", "baton_recovering", "baton_build_info"} {
			assert.Contains(t, body, "\n"+name)
		}
		for _, name := range []string{"baton_memory_left_bytes", "baton_names", "baton_sessions", "baton_storages", "baton_messages", "baton_calls"} {
			assert.NotContains(t, body, "\n"+name, "%+v", st)
		}
	}
}

func TestMetricsWithoutNATSHaveNone(t *testing.T) {
	_, body := get(t, start(t, options(t)), "/metrics")
	assert.Contains(t, body, "baton_build_info")
	assert.NotContains(t, body, "baton_nats")
}

func TestNothingCanBeChanged(t *testing.T) {
	s := start(t, options(t))
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		r, err := http.Post("http://"+s.Addr()+path, "text/plain", nil)
		require.NoError(t, err)
		r.Body.Close()
		assert.Equal(t, 405, r.StatusCode, path)
	}
}

func TestSocketOfADeadBrokerIsReplaced(t *testing.T) {
	o := options(t)
	o.Network, o.Address = "unix", filepath.Join(shortdir.New(t), "h.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Address, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, o.Address)
	start(t, o)
	info, err := os.Stat(o.Address)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestSocketThatAnswersAndOtherFilesAreLeftAlone(t *testing.T) {
	o := options(t)
	o.Network, o.Address = "unix", filepath.Join(shortdir.New(t), "h.sock")
	start(t, o)
	_, err := observe.Start(o)
	assert.ErrorContains(t, err, "another process serves")

	o.Address = filepath.Join(shortdir.New(t), "file")
	require.NoError(t, os.WriteFile(o.Address, []byte("precious"), 0o600))
	_, err = observe.Start(o)
	assert.ErrorContains(t, err, "not a socket")
	data, err := os.ReadFile(o.Address)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(data))
}

// Another address may have the port of the one before: one of the two listens at any time, and after that the port is
// the endpoint's alone. A connection that the former one has not taken when it ends is reset.
func TestAddressChangesAtItsPort(t *testing.T) {
	o := options(t)
	s := start(t, o)
	_, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	for _, host := range []string{"0.0.0.0", "localhost", "0.0.0.0", "127.0.0.1"} {
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				c, err := net.Dial("tcp", "127.0.0.1:"+port)
				if err != nil && !errors.Is(err, syscall.ECONNRESET) {
					stopped <- err
					return
				}
				if err == nil {
					c.Close()
				}
				select {
				case <-stop:
					stopped <- nil
					return
				default:
				}
			}
		}()
		o.Address = net.JoinHostPort(host, port)
		_, err := s.Change(o.Guard)
		require.NoError(t, err, host)
		close(stop)
		require.NoError(t, <-stopped, host)
		code, _ := get(t, s, "/healthz")
		require.Equal(t, http.StatusOK, code)
		_, err = net.Listen("tcp", "127.0.0.1:"+port)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	o.Address = other.Addr().String()
	_, err = s.Change(o.Guard)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "another process has it")
	code, _ := get(t, s, "/healthz")
	require.Equal(t, http.StatusOK, code)
}
