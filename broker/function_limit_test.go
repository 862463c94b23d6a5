package broker_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// mostFunctions is how many functions one process can provide, whatever else it has. The rest of the table are topics.
const mostFunctions = 16384

// As many functions as are promised are registered. One more than the table has room for is refused, nothing is
// lost by that, and so it is at the next broker.
func TestFunctionsBeyondTheLimitAreRefusedAndNothingIsLost(t *testing.T) {
	manyFunctions := 512 // $BATON_MANY_FUNCTIONS: as many as are promised take half a minute
	if n, err := strconv.Atoi(os.Getenv("BATON_MANY_FUNCTIONS")); err == nil && n > 0 {
		manyFunctions = min(n, mostFunctions)
	}
	if _, limit, err := sys.OpenFiles(); err != nil || limit < uint64(manyFunctions+3000) {
		t.Skipf("a broker needs an open file for each function: raise ulimit -n to %d", manyFunctions+3000)
	}
	old, socket, _ := first(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	session := func() *client.Client {
		c, err := client.Connect(ctx, client.WithAddress("unix:"+socket), client.WithStart(false))
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	provider, caller := session(), session()
	name := func(i int) string { return fmt.Sprintf("f/%d", i) }
	register := func(i int) error {
		_, err := client.Handle(provider, name(i), func(_ context.Context, x int) (int, error) { return x + i, nil })
		return err
	}
	for i := range manyFunctions {
		require.NoError(t, register(i))
	}
	calls := func() {
		for i := 0; i < manyFunctions; i += manyFunctions / 8 {
			var got int
			require.NoError(t, again(ctx, func() (err error) { got, err = client.Call[int](ctx, caller, name(i), 1); return err }))
			require.Equal(t, i+1, got)
		}
	}
	calls()
	// The rest of the table are topics, which take no open files.
	var last *client.Topic
	topics := 0
	for ; ; topics++ {
		topic, err := caller.Topic(ctx, fmt.Sprintf("t%d", topics), client.Linger(0))
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrTooMany)
			break
		}
		last = topic
	}
	share := protocol.MaxTopics - protocol.MaxTopics/8
	require.Greater(t, topics, share-manyFunctions-100, "beside topics for replies")
	require.ErrorIs(t, register(manyFunctions), protocol.ErrTooMany)
	_, err := caller.Function(ctx, name(manyFunctions))
	require.ErrorIs(t, err, protocol.ErrNotFound)
	calls()

	old.kill()
	var instance string
	start(t, socket, "broker").hear(&instance)
	calls()
	require.ErrorIs(t, again(ctx, func() error { return register(manyFunctions) }), protocol.ErrTooMany)
	rows := list[broker.FunctionRow](connect(t, socket, "looks"), protocol.ListFunctions, "f/*")
	require.Len(t, rows, manyFunctions)
	for _, r := range rows {
		require.Len(t, r.Providers, 1, r.Name)
	}
	require.NoError(t, last.Close())
	eventually(t, "there is room for one", func() bool { return register(manyFunctions) == nil })
}
