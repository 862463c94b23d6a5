package broker_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// What programs keep warm is theirs as long as there is plenty. When the broker's container runs
// short they are asked for it.
func TestProgramsAreAskedForWarmMemoryWhenMemoryRunsShort(t *testing.T) {
	var used, looks atomic.Uint64
	b := serve(t, func(c *broker.Config) {
		c.ReadMemory = func() (sys.Memory, error) {
			looks.Add(1)
			return sys.Memory{Total: 1 << 40, Available: 1 << 39, Limit: 300 << 20, Used: used.Load()}, nil
		}
	})
	p := connect(t, b.socket, "p")
	p.alloc(4096)
	before := looks.Load()
	eventually(t, "the broker looks", func() bool { return looks.Load() > before+1 })
	collected(t, b) // what was sent to p before is there
	used.Store(250 << 20)
	require.Equal(t, protocol.EventCollect, nextOf(p, protocol.EventCollect))
}
