package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

// A mismatch names both versions, and what is to be done with which of them.
func TestMismatchOfVersionsNamesBothAndWhatToDo(t *testing.T) {
	of := func(role, build string, layout int) protocol.Speaker {
		return protocol.Speaker{Role: role, Build: build, Speaks: 1, Layout: layout}
	}
	require.NoError(t, of(protocol.SpeakerBroker, "1.0", 13).CheckPeer(of(protocol.SpeakerClient, "1.1", 13)))
	for _, k := range []struct {
		here, peer protocol.Speaker
		remedy     string
	}{
		{of(protocol.SpeakerBroker, "1.0", 12), of(protocol.SpeakerClient, "2.0", 13),
			"the broker is the older of the two: end it (baton stop), and start version 2.0 (protocol 1, layout 13), which the program has"},
		{of(protocol.SpeakerClient, "2.0", 13), of(protocol.SpeakerBroker, "1.0", 12),
			"the broker is the older of the two: end it (baton stop), and start version 2.0 (protocol 1, layout 13), which the program has"},
		{of(protocol.SpeakerBroker, "2.0", 13), of(protocol.SpeakerClient, "1.0", 12),
			"the client is the older of the two: update it to version 2.0 (protocol 1, layout 13), which the broker has"},
		{of(protocol.SpeakerBroker, "1.0", 12), of(protocol.SpeakerNewBroker, "2.0", 13),
			"the broker that runs is the older of the two and cannot hand over to version 2.0 (protocol 1, layout 13): end it first (baton stop), which ends the sessions of its programs"},
		{of(protocol.SpeakerBroker, "2.0", 13), of(protocol.SpeakerNewBroker, "1.0", 12),
			"the new broker is the older of the two: start version 2.0 (protocol 1, layout 13), which runs, or a later one that has its layout"},
	} {
		err := k.here.CheckPeer(k.peer)
		require.ErrorIs(t, err, protocol.ErrVersion)
		var e *protocol.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, k.remedy, e.Remedy)
		assert.Contains(t, e.Message, "("+k.here.Build+")")
		assert.Contains(t, e.Message, "("+k.peer.Build+")")
	}
}
