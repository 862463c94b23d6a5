package client_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
)

func TestTracesStayWhereTheEnvironmentSaysSo(t *testing.T) {
	ctx, c, p := pair(t)
	for value, stay := range map[string]bool{"": false, "0": false, "false": false, "1": true, "true": true, "yes": true} {
		t.Setenv("BATON_NO_REMOTE_TRACES", value)
		r := handle(t, p, "fails", func(context.Context, struct{}) (int, error) { panic("as asked") })
		_, err := client.Call[int](ctx, c, "fails")
		var e *client.RemoteError
		require.True(t, errors.As(err, &e), err)
		require.Equal(t, "as asked", e.Message)
		require.Equal(t, stay, e.Trace == "", value)
		require.NoError(t, r.Close(ctx))
	}
}
