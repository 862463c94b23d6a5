package gpu

import (
	"context"
	"testing"

	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
	"github.com/stretchr/testify/require"
)

// Of a sender that dies once the session is lost no broker would tell.
func TestWaitForAStreamEndsWithTheSession(t *testing.T) {
	page, err := sys.MapAnonymous(protocol.SessionStreams + 8)
	require.NoError(t, err)
	defer sys.Unmap(page)
	file := &sessionfiles.Mapping{Region: shm.NewRegion(page)}
	p := Point{file, 1, 7}
	l := &life.Life{}
	waiting := make(chan error)
	go func() { waiting <- p.Await(context.Background(), l) }()
	l.Lose(protocol.Errorf(protocol.CodeSessionLost, "", "the broker was stopped"))
	require.ErrorIs(t, <-waiting, protocol.ErrSessionLost)
	file.Store64(protocol.SessionStreams, 7)
	require.NoError(t, p.Await(context.Background(), l), "it can be read")
}
