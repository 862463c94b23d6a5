package names

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/internal/testkit/natstest"
	"github.com/baton-ipc/baton/protocol"
)

const patience = time.Minute

// fakeHost is a host without a broker: its names have a body, and no storage.
type fakeHost struct {
	*Names
	id   string
	nc   *nats.Conn
	hub  *hub
	gone bool

	mu    sync.Mutex
	names map[string]*fakeName
	open  map[string]bool
	seen  map[string][]uint64
}

type fakeName struct {
	State
	body []byte
}

// hub knows all hosts.
type hub struct {
	url   string
	mu    sync.Mutex
	hosts []*fakeHost
}

func startHub(t *testing.T) *hub {
	t.Helper()
	return &hub{url: natstest.Start(t, natstest.JetStream(t)).ClientURL()}
}

func (u *hub) host(t *testing.T, id string) *fakeHost {
	t.Helper()
	nc, err := nats.Connect(u.url)
	require.NoError(t, err)
	h := &fakeHost{id: id, nc: nc, hub: u, names: map[string]*fakeName{}, open: map[string]bool{}, seen: map[string][]uint64{}}
	h.Names = New(Config{Instance: id, HostName: "on-" + id, Namespaces: []string{machines.AllNamespaces}, Local: h, Timeout: 15 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	_, err = nc.Subscribe(protocol.HostSubject("*", id, Subject), func(m *nats.Msg) {
		go func() {
			if a := h.Answer("team", m.Data); a != nil {
				m.Respond(a)
			}
		}()
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	u.mu.Lock()
	u.hosts = append(u.hosts, h)
	u.mu.Unlock()
	h.Start(h)
	t.Cleanup(h.end)
	return h
}

// end ends a host.
func (h *fakeHost) end() {
	h.mu.Lock()
	was := h.gone
	h.gone = true
	h.mu.Unlock()
	if !was {
		h.nc.Close()
		h.Names.Close()
	}
}

func (h *fakeHost) Current() *nats.Conn {
	if !h.nc.IsConnected() {
		return nil
	}
	return h.nc
}

func (h *fakeHost) Fetch(_ context.Context, _ string, far protocol.Handle) (protocol.Handle, error) {
	return far, nil
}
func (h *fakeHost) LetGo(string, protocol.Handle) {}
func (h *fakeHost) Make(context.Context, string, uint64) (machines.Filling, error) {
	return nil, protocol.Errorf(protocol.CodeOutOfMemory, "", "there is no memory")
}

func (h *fakeHost) Spanning(context.Context, string) (all []machines.Host, err error) {
	h.hub.mu.Lock()
	defer h.hub.mu.Unlock()
	for _, o := range h.hub.hosts {
		if o != h {
			all = append(all, machines.Host{Host: o.id})
		}
	}
	return all, nil
}

func (h *fakeHost) Hold(_, name string) (v Value, release func(), found bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.names[name]
	if n == nil || !n.Set {
		return v, nil, false, nil
	}
	return Value{Agreed: n.Agreed, Body: n.body, Setter: "s"}, func() {}, true, nil
}

// put publishes a body here, unless a newer one stands there.
func (h *fakeHost) put(name string, body []byte, a protocol.Agreed, foreign bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.names[name]; n != nil && n.Agreed.Revision >= a.Revision {
		return
	}
	h.names[name] = &fakeName{State{Agreed: a, Set: true, Foreign: foreign}, body}
	h.seen[name] = append(h.seen[name], a.Revision)
}

func (h *fakeHost) Publish(_ string, r *protocol.NameSet, a protocol.Agreed, _ string, _ []uint64) error {
	h.put(r.Name, r.Body, a, true)
	return nil
}

func (h *fakeHost) Read(context.Context, string, protocol.Handle) ([]byte, error) { return nil, io.EOF }

func (h *fakeHost) Renumber(_, name string, a protocol.Agreed) {
	h.mu.Lock()
	n := h.names[name]
	h.mu.Unlock()
	h.put(name, n.body, a, n.Foreign)
}

func (h *fakeHost) Deleted(_, name string, before uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.names[name]; n != nil && n.Agreed.Revision < before {
		n.Set, n.Agreed.Revision = false, before
	}
}

func (h *fakeHost) Evict(_, name string, _ bool) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[name] {
		return 0
	}
	delete(h.names, name)
	return 1
}

func (h *fakeHost) State(_, name string) State {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := State{}
	if n := h.names[name]; n != nil {
		st = n.State
	}
	st.Open = h.open[name]
	return st
}

func (h *fakeHost) States(ns string) map[string]State {
	h.mu.Lock()
	names := maps.Clone(h.names)
	h.mu.Unlock()
	all := map[string]State{}
	for name := range names {
		all[name] = h.State(ns, name)
	}
	return all
}

func (h *fakeHost) Namespaces() []string       { return nil }
func (h *fakeHost) Stale(string, string, bool) {}

func bodyOf(t *testing.T, value int) []byte {
	b, err := protocol.AppendBody(nil, &protocol.Body{Tree: fmt.Appendf(nil, `{"v":%d}`, value)})
	require.NoError(t, err)
	return b
}

// set sets a name to a value.
func (h *fakeHost) set(t *testing.T, name string, value int, number uint64) (uint64, error) {
	body := bodyOf(t, value)
	return h.Names.Set(t.Context(), Setting{Namespace: "team", Name: name, Number: number, Setter: "s",
		Won: func(a protocol.Agreed) { h.put(name, body, a, false) }, Lost: func() {}})
}

func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	late := time.After(patience)
	for !so() {
		select {
		case <-late:
			t.Fatalf("waited without a result until %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// has tells which value a host shows.
func (h *fakeHost) has(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.names[name]; n != nil && n.Set {
		return string(n.body[protocol.BodySize:])
	}
	return ""
}

func (h *fakeHost) opens(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[name] = true
}

func TestHostsAgree(t *testing.T) {
	u := startHub(t)
	a, b, c := u.host(t, "a"), u.host(t, "b"), u.host(t, "c")
	for _, h := range []*fakeHost{a, b, c} {
		h.opens("x")
	}
	const sets = 50
	var setting sync.WaitGroup
	var mu sync.Mutex
	winners := map[uint64]string{}
	for i, h := range []*fakeHost{a, b, c} {
		setting.Go(func() {
			for n := range sets {
				value := i*1000 + n
				revision, err := h.set(t, "x", value, uint64(value)+1)
				if protocol.CodeOf(err) == protocol.CodeConflict {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if other, is := winners[revision]; is {
					t.Errorf("revision %d was won by %s and by %d", revision, other, value)
				}
				winners[revision] = fmt.Sprint(value)
				mu.Unlock()
			}
		})
	}
	setting.Wait()
	last, err := a.set(t, "x", 77, 77777)
	require.NoError(t, err)
	for _, h := range []*fakeHost{a, b, c} {
		until(t, "the last one is there", func() bool { return strings.Contains(h.has("x"), `{"v":77}`) })
		h.mu.Lock()
		for i := 1; i < len(h.seen["x"]); i++ {
			require.Greater(t, h.seen["x"][i], h.seen["x"][i-1])
		}
		require.Equal(t, last, h.names["x"].Agreed.Revision)
		h.mu.Unlock()
	}
	again, err := a.set(t, "x", 77, 77777)
	require.NoError(t, err)
	require.Equal(t, last, again, "a set that is asked for again is known")
	other, err := b.set(t, "x", 78, 1)
	require.NoError(t, err)
	again, err = a.set(t, "x", 77, 77777)
	require.NoError(t, err)
	require.Equal(t, last, again, "also once another one stands there")
	until(t, "a has it", func() bool { return a.State("team", "x").Agreed.Revision == other })

	require.NoError(t, c.Delete(t.Context(), "team", "x"))
	for _, h := range []*fakeHost{a, b, c} {
		until(t, "it is deleted", func() bool { return h.has("x") == "" })
	}
	require.ErrorIs(t, a.Delete(t.Context(), "team", "x"), protocol.ErrNotFound)
}

func TestRevisionIsBroughtFromAnyHostThatHasIt(t *testing.T) {
	u := startHub(t)
	a, b, c := u.host(t, "a"), u.host(t, "b"), u.host(t, "c")
	revision, err := a.set(t, "x", 1, 1)
	require.NoError(t, err)
	b.opens("x")
	require.NoError(t, b.Await(t.Context(), "team", "x"))
	require.Equal(t, revision, b.State("team", "x").Agreed.Revision)
	_, err = a.set(t, "alone", 2, 2)
	require.NoError(t, err)
	a.end()
	c.opens("x")
	require.NoError(t, c.Await(t.Context(), "team", "x"))
	require.Equal(t, revision, c.State("team", "x").Agreed.Revision)
	c.opens("alone")
	require.ErrorIs(t, c.Await(t.Context(), "team", "alone"), protocol.ErrHostLost)
	require.Len(t, c.Far("team"), 1)
	require.Contains(t, c.Far("team")[0].State, "no host that answers")
	_, err = b.set(t, "alone", 3, 3)
	require.NoError(t, err)
	until(t, "the next set is there", func() bool { return c.has("alone") != "" })
}

func TestHostsKeepTheOrderWhenTheBucketIsLost(t *testing.T) {
	u := startHub(t)
	a, b := u.host(t, "a"), u.host(t, "b")
	for _, h := range []*fakeHost{a, b} {
		h.opens("x")
		require.NoError(t, h.Await(t.Context(), "team", "x"))
	}
	var last uint64
	for n := range 5 {
		var err error
		last, err = a.set(t, "x", n, uint64(n)+1)
		require.NoError(t, err)
	}
	until(t, "b has it", func() bool { return b.State("team", "x").Agreed.Revision == last })
	js, err := jetstream.New(a.nc)
	require.NoError(t, err)
	for n := range 3 {
		require.NoError(t, js.DeleteStream(t.Context(), StreamName("team")))
		until(t, "it is put back", func() bool {
			at, other := a.State("team", "x").Agreed, b.State("team", "x").Agreed
			return at.Revision > last && at.Revision == other.Revision
		})
		require.Contains(t, b.has("x"), `{"v":4}`)
		last = a.State("team", "x").Agreed.Revision
		require.EqualValues(t, n+1, epochOf(last))
	}
	next, err := b.set(t, "x", 9, 99)
	require.NoError(t, err)
	require.Greater(t, next, last)
}

func TestWhatAnyHostMayWriteIsReadSafely(t *testing.T) {
	for _, text := range []string{"", "{", `[]`, `{"id":7}`, strings.Repeat("x", mostEntry+1)} {
		e := readEntry([]byte(text), 3)
		require.False(t, e.set(), text)
	}
	long, err := json.Marshal(entry{ID: strings.Repeat("i", 2*mostText), Host: "h\n\x1b[31m", Over: make([]over, 3*mostOver)})
	require.NoError(t, err)
	e := readEntry(long, 3)
	require.True(t, e.set())
	require.Len(t, e.ID, mostText)
	require.Len(t, e.Over, mostOver)
	require.NotContains(t, e.Host, "\x1b")
	for _, text := range []string{"", "7", `{"epoch":4096}`} {
		_, err := readEpochs([]byte(text), 3)
		require.Error(t, err, text)
	}
}

func TestNumbersGrowWithTheEpoch(t *testing.T) {
	var none epochs
	require.EqualValues(t, 7, none.number(7))
	data, err := none.raised(2)
	require.NoError(t, err)
	all, err := readEpochs(data, 10)
	require.NoError(t, err)
	require.EqualValues(t, 7, all.number(7), "what stands before it keeps its number")
	require.EqualValues(t, 2<<placeBits|11, all.number(11))
	data, err = all.raised(3)
	require.NoError(t, err)
	later, err := readEpochs(data, 20)
	require.NoError(t, err)
	for _, seq := range []uint64{7, 11, 19} {
		require.Equal(t, all.number(seq), later.number(seq), "the record that replaces another one knows it")
	}
	require.EqualValues(t, 3, epochOf(later.number(21)))
}
