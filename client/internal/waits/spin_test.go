package waits

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// A process that is confined to one processor has peers on others, for which it
// spins as any other.
func TestConfinedToOneProcessorSpinsForPeersOnOthers(t *testing.T) {
	if os.Getenv("BATON_TEST_CONFINED") != "" {
		require.Equal(t, 1, runtime.NumCPU())
		looks := 0
		h := New(&sessionfiles.Files{Bells: shm.NewBells(shm.NewRegion(shm.BytesOf(make([]uint64, protocol.BellRecords/8))))}, &life.Life{})
		found := h.spinUntil(time.Minute, func() bool { looks++; return looks > 1 })
		require.Equal(t, sys.SeveralProcessors(), found, "looks: %d", looks)
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, err := sys.Affinity()
	require.NoError(t, err)
	require.True(t, len(all) == 1 || sys.SeveralProcessors())
	require.NoError(t, sys.SetAffinity(all[:1]))
	defer func() { require.NoError(t, sys.SetAffinity(all)) }()
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), "BATON_TEST_CONFINED=1")
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
