package lanes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// A queue's items stay while its group is being made anew: no group at all is done with them.
func TestQueueWhoseGroupIsNotListedIsDoneWithNothing(t *testing.T) {
	queue := &Topic{Info: protocol.TopicInfo{Kind: protocol.KindQueue}}
	require.False(t, queue.done(&groupsView{whole: true}, 1))
	require.False(t, queue.done(&groupsView{}, 1))
	lossless := &Topic{Info: protocol.TopicInfo{Kind: protocol.KindTopic}}
	require.True(t, lossless.done(&groupsView{whole: true}, 1))
	require.False(t, lossless.done(&groupsView{}, 1), "it is not known whether there are any")
}

func TestLaneWhoseRecordHasChangedIsAnotherAndKeepsItsMapping(t *testing.T) {
	l := &sessionfiles.Lane{LaneRecord: sessionfiles.LaneRecord{Number: 3, Incarnation: 9, State: protocol.LaneLive}, Before: 5}
	require.Same(t, l, l.As(l.LaneRecord))
	ended := l.LaneRecord
	ended.State = protocol.LaneAdopted
	other := l.As(ended)
	require.Equal(t, ended, other.LaneRecord)
	require.Equal(t, l.Before, other.Before)
	require.EqualValues(t, protocol.LaneLive, l.State, "views that have the former one go on")
}
