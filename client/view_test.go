package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

// A queue's items stay while its group is being made anew: no group at all is done with them.
func TestQueueWhoseGroupIsNotListedIsDoneWithNothing(t *testing.T) {
	queue := &topic{info: protocol.TopicInfo{Kind: protocol.KindQueue}}
	require.False(t, queue.done(&groupsView{whole: true}, 1))
	require.False(t, queue.done(&groupsView{}, 1))
	lossless := &topic{info: protocol.TopicInfo{Kind: protocol.KindTopic}}
	require.True(t, lossless.done(&groupsView{whole: true}, 1))
	require.False(t, lossless.done(&groupsView{}, 1), "it is not known whether there are any")
}

func TestLaneWhoseRecordHasChangedIsAnotherAndKeepsItsMapping(t *testing.T) {
	l := &lane{laneRecord: laneRecord{number: 3, incarnation: 9, state: protocol.LaneLive}, before: 5}
	require.Same(t, l, l.as(l.laneRecord))
	ended := l.laneRecord
	ended.state = protocol.LaneAdopted
	other := l.as(ended)
	require.Equal(t, ended, other.laneRecord)
	require.Equal(t, l.before, other.before)
	require.EqualValues(t, protocol.LaneLive, l.state, "views that have the former one go on")
}
