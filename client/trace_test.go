package client_test

import (
	"encoding/json"
	"testing"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// A listing tells the line of the program, and none of the client's parts.
func TestStorageTellsTheLineThatAskedForIt(t *testing.T) {
	t.Setenv(address.EnvTrace, "1")
	c, ctx := connect(t, newBroker(t)), limited(t)
	x, err := c.Zeros(ctx, dlpack.Uint8, []int64{64})
	require.NoError(t, err)
	defer x.Release()
	b, err := c.AllocBundle(ctx, client.Spec{Name: "w", DType: dlpack.Uint8, Shape: []int64{64}})
	require.NoError(t, err)
	defer b.Release()
	var page protocol.ListReply
	require.NoError(t, c.Broker(ctx, protocol.OpList, protocol.List{What: protocol.ListStorages}, &page))
	require.Len(t, page.Rows, 2)
	for _, row := range page.Rows {
		var r broker.StorageRow
		require.NoError(t, json.Unmarshal(row, &r))
		require.Regexp(t, `^client/trace_test\.go:\d+$`, r.Trace)
	}
}
