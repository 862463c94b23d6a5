package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

func TestJobsStayDueUntilTheyAreTaken(t *testing.T) {
	b := newJobs()
	for range 1000 { // while the background is busy
		b.post(func(d *due) { d.reclaim = true })
		b.MapPeer(7, 1)
		b.ForgetPeers()
		b.post(nil)
	}
	require.Len(t, b.wake, 1)
	<-b.wake
	require.Equal(t, due{reclaim: true, forgetPeers: true, peers: map[protocol.PeerSession]bool{{Slot: 7, Serial: 1}: true}}, b.take())
	require.Equal(t, due{}, b.take())
	b.end()
	b.end()
	<-b.stop
}
