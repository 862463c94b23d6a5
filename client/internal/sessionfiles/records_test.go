package sessionfiles

import (
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
	"github.com/stretchr/testify/require"
)

// What is read in the midst of a change is left out.
func TestRecordsThatAreNotWholeAreLeftOut(t *testing.T) {
	r := TopicRecord{shm.NewRegion(shm.BytesOf(make([]uint64, protocol.TopicRecordSize/8)))}
	lane := func(n uint64, slot, state uint32, incarnation uint64) {
		at := protocol.TopicLanes + n*protocol.LaneRecordSize
		r.r.Store64(at+protocol.LaneRecordSerial, 7+n)
		r.r.Store64(at+protocol.LaneRecordOffset, n*protocol.PageBytes)
		r.r.Store32(at+protocol.LaneRecordSlot, slot)
		r.r.Store32(at+protocol.LaneRecordState, state)
		r.r.Store64(at+protocol.LaneRecordIncarnation, incarnation)
	}
	lane(1, 5, protocol.LaneLive, 20)
	lane(2, 5, protocol.LaneLive, 0)
	lane(3, protocol.MaxSessions, protocol.LaneLive, 21)
	lane(4, 5, protocol.LaneClosed, 22)
	lane(5, 6, protocol.LaneAdopted, 23)
	lane(6, 6, protocol.LaneLive, 24)
	require.Empty(t, r.Lanes())
	r.r.Store32(protocol.TopicLanesEnd, 6)
	require.Equal(t, []LaneRecord{{1, 5, protocol.LaneLive, 8, protocol.PageBytes, 20},
		{5, 6, protocol.LaneAdopted, 12, 5 * protocol.PageBytes, 23}}, r.Lanes())
	r.r.Store32(protocol.TopicLanesEnd, 1<<31)
	require.Len(t, r.Lanes(), 3, "the table has an end")

	r.r.Store64(protocol.TopicGroups+2*protocol.GroupRecordSize+protocol.GroupID, 9)
	require.Empty(t, r.Groups())
	r.r.Store32(protocol.TopicGroupsEnd, 1<<31)
	require.Equal(t, []GroupRecord{{2, 9}}, r.Groups())
	r.r.Store64(protocol.TopicReaders, 3)
	r.r.Store64(protocol.TopicReaders+8*(protocol.BitmapWords-1), 1<<63)
	require.Equal(t, 3, r.Readers())
}

func TestNameOfAnotherIsMadeFitToBePrinted(t *testing.T) {
	r := shm.NewRegion(shm.BytesOf(make([]uint64, 1024)))
	for said, name := range map[string]string{"": "", "worker-1": "worker-1", "naïve": "naïve", "a\x00b": "a",
		"a\x1b[2J": "a\uFFFD[2J", "\xff\xfe": "\uFFFD\uFFFD", "123456789012345678901234567890123456789012345678901234567890123456": "1234567890123456789012345678901234567890123456789012345678901234"} {
		clear(r.Bytes(protocol.SessionSender, protocol.SessionNameBytes))
		copy(r.Bytes(protocol.SessionSender, protocol.SessionNameBytes), said)
		require.Equal(t, name, senderName(r), "%q", said)
	}
}
