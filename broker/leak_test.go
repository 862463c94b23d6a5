package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func TestNothingIsLeftOpenAfterwards(t *testing.T) {
	before := openFiles(t)
	maps := sharedMappings(t)
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	q := connect(t, b.socket, "b")
	s := p.alloc(4096)
	info := p.open(queueOf("work"))
	w := p.writer(info)
	w.post("one", 0, []protocol.Ref{s.Ref})
	q.open(queueOf("work"))
	fds, err := q.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("queue")}, nil)
	require.NoError(t, err)
	wire.CloseAll(fds)
	p.must(protocol.OpNameSet, nameSet("n", s), nil)
	p.must(protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}}, nil)
	q.must(protocol.OpBye, struct{}{}, nil)
	require.NoError(t, b.stop())
	for _, x := range []*peer{p, q} {
		x.w.Close()
		wire.CloseAll(x.fds)
	}
	eventually(t, "all descriptors are closed", func() bool { return openFiles(t) <= before })
	require.LessOrEqual(t, sharedMappings(t)-maps, 2*4+1, "only the peers' own mappings are left")
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	return len(fds)
}

func sharedMappings(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(data), "memfd:baton-")
}
