package broker_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// An event that was written may not have been read, and one that came without a
// connection was not written at all.
func TestEveryEventIsSentAgainAfterAResume(t *testing.T) {
	s := serve(t, nil)
	p := connect(t, s.socket, "p")
	p.w.Close()
	q := &peer{t: t, w: dial(t, s.socket)}
	h := helloOf("p")
	h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret}
	fds, err := q.call(protocol.OpHello, h, &q.hello)
	require.NoError(t, err)
	wire.CloseAll(fds)
	require.True(t, q.hello.Resumed)
	told := map[string]bool{}
	for _, e := range q.events {
		var v protocol.Envelope
		require.NoError(t, json.Unmarshal(e, &v))
		told[v.Event] = true
	}
	for len(told) < 3 {
		e, _ := q.read()
		told[e.Event] = true
	}
	require.Equal(t, map[string]bool{protocol.EventTrim: true, protocol.EventCollect: true, protocol.EventRoom: true}, told)
}
