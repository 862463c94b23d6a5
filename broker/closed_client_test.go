package broker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
)

func value(t *testing.T, x *client.Tensor) uint64 {
	t.Helper()
	v, err := client.Slice[uint64](x)
	require.NoError(t, err)
	return v[0]
}

// One client is closed before its broker dies, one while no broker runs. The next
// broker gets all that they hold, and frees it when they let go.
func TestClosedClientsKeepWhatTheyHoldAcrossBrokers(t *testing.T) {
	old, socket, _ := first(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	open := func(name string) *client.Client {
		c, err := client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName(name))
		require.NoError(t, err)
		return c
	}
	early, second, late := open("early"), open("second"), open("late")
	x, err := filled(ctx, early, 1)
	require.NoError(t, err)
	_, err = early.Set(ctx, "early", x)
	require.NoError(t, err)
	require.NoError(t, early.Close())
	y, err := filled(ctx, second, 2)
	require.NoError(t, err)
	_, err = second.Set(ctx, "second", y)
	require.NoError(t, err)
	require.NoError(t, second.Close()) // its counts move to early's refcounts, and its files to early
	z, err := filled(ctx, late, 3)
	require.NoError(t, err)
	_, err = late.Set(ctx, "late", z)
	require.NoError(t, err)
	empty := open("empty")
	old.kill()
	require.NoError(t, late.Close())
	require.NoError(t, empty.Close())
	b := next(t, socket, nil)()
	eventually(t, "one closed session keeps all", func() bool {
		n := b.Status().Counts
		return n.Sessions == 1 && n.Closed == 1
	})
	for want, held := range map[uint64]*client.Tensor{1: x, 2: y, 3: z} {
		require.Equal(t, want, value(t, held))
	}
	reader := open("reader")
	defer reader.Close()
	for name, want := range map[string]uint64{"early": 1, "second": 2, "late": 3} {
		got, err := reader.Get(ctx, name)
		require.NoError(t, err)
		require.Equal(t, want, value(t, got.Tensors()[0]))
		got.Release()
		require.NoError(t, reader.Delete(ctx, name))
	}
	for _, held := range []*client.Tensor{x, y, z} {
		held.Release()
	}
	eventually(t, "nothing is left", func() bool {
		st := b.Status()
		return st.Counts.Sessions == 1 && st.Counts.Storages == 0 && st.Memory.Orphans == 0
	})
}
