package record_test

import (
	"bytes"
	"testing"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
	"github.com/stretchr/testify/require"
)

// newFile is a broker file in memory of this process, and its bytes.
func newFile(t *testing.T) (record.File, []byte) {
	m, err := sys.MapAnonymous(protocol.BrokerBytes)
	require.NoError(t, err)
	t.Cleanup(func() { sys.Unmap(m) })
	return record.Of(shm.NewRegion(m)), m
}

var (
	aSession = record.Session{Serial: 7, State: protocol.SessionLive, PID: 8, StartTime: 9, UID: 10, Language: 2, SecretHash: [16]byte{1, 2},
		Connected: 11, PIDNS: 12, Name: "trainer", Namespace: "default", File: 13, Answered: true, Heard: true, Holder: record.Holder{Family: 15, User: 16}}
	aSegment = record.Segment{Serial: 7, Bytes: 8, Kind: protocol.KindCUDA, Owner: 9, OwnerSerial: 10, State: protocol.SegmentGranted,
		DeviceType: 2, DeviceID: 3, MadeAt: 11, File: 12}
	aLease = record.Lease{ID: 7, Expires: 8, Session: 9, Ref: protocol.Ref{Serial: 10, Generation: 11, Index: 12}, Once: true}
	aTopic = record.Topic{ID: 7, State: protocol.TopicOpen, Kind: protocol.TopicKindName, Flags: protocol.TopicPrivate, Depth: 1, Slots: 2,
		Stride: 3, Description: 4, MadeAt: 5, Linger: 6, Name: "weights/actor", Namespace: "default", Creator: "me", Token: [16]byte{3}, Ephemeral: 8,
		Holder: record.Holder{Family: 9, User: 10}}
	aGroup   = record.Group{ID: 7, Members: 2, Flags: protocol.GroupAcknowledged, Name: "queue", File: 8}
	aLane    = record.Lane{Serial: 7, Offset: 8, Slot: 9, State: protocol.LaneLive, Incarnation: 10}
	aJoin    = record.Join{Session: 7, TopicID: 8, Number: 9, Reader: true, Topic: 10, Group: 64, Member: protocol.MaxMembers, Alone: true}
	aRemains = record.Remains{Serial: 7, File: 8, Slot: 10, PID: 11, Name: "trainer", Holder: record.Holder{Family: 12, User: 13}}
)

func TestRecordsReadAsTheyWereStored(t *testing.T) {
	f, _ := newFile(t)
	f.Session(protocol.MaxSessions - 1).Store(aSession)
	require.Equal(t, aSession, f.Session(protocol.MaxSessions-1).Load())
	f.Segment(protocol.MaxSegments - 1).Store(aSegment)
	require.Equal(t, aSegment, f.Segment(protocol.MaxSegments-1).Load())
	f.Lease(protocol.MaxLeases - 1).Store(aLease)
	require.Equal(t, aLease, f.Lease(protocol.MaxLeases-1).Load())
	topic := f.Topic(protocol.MaxTopics - 1)
	topic.Begin()
	topic.Store(aTopic)
	topic.Group(protocol.MaxGroups - 1).Store(aGroup)
	topic.Lane(protocol.MaxLanes - 1).Store(aLane)
	require.Equal(t, aTopic, topic.Load())
	require.Equal(t, aGroup, topic.Group(protocol.MaxGroups-1).Load())
	require.Equal(t, aLane, topic.Lane(protocol.MaxLanes-1).Load())
	f.Join(record.MaxJoins - 1).Store(aJoin)
	require.Equal(t, aJoin, f.Join(record.MaxJoins-1).Load())
	f.Remains(record.MaxRemains - 1).Store(aRemains)
	require.Equal(t, aRemains, f.Remains(record.MaxRemains-1).Load())
	require.EqualValues(t, protocol.MaxTopics, f.UsedTopics())
	require.EqualValues(t, record.MaxJoins, f.UsedJoins())
	require.EqualValues(t, protocol.MaxLeases, f.UsedLeases())
	require.EqualValues(t, record.MaxRemains, f.UsedRemains())
}

func TestTheLastEvictedSessionsAreKnown(t *testing.T) {
	f, _ := newFile(t)
	require.False(t, f.WasEvicted(0))
	for n := range uint64(record.MaxEvictions + 1) {
		f.AddEviction(n + 1)
	}
	require.False(t, f.WasEvicted(1))
	require.True(t, f.WasEvicted(2) && f.WasEvicted(record.MaxEvictions+1))
	require.Equal(t, record.Place{At: 0x900000 + 8, Bytes: 8}, f.EvictionPlace())
}

func TestClaimsAreTheLastOnesOldestFirst(t *testing.T) {
	f, _ := newFile(t)
	require.Empty(t, f.Claims())
	for lease := range uint64(record.MaxClaims + 2) {
		f.AddClaim(lease + 1)
		if lease == 1 {
			require.Equal(t, []uint64{1, 2}, f.Claims())
		}
	}
	require.Equal(t, record.Place{At: 0x800000 + 2*8, Bytes: 8}, f.ClaimPlace())
	claims := f.Claims()
	require.Len(t, claims, record.MaxClaims)
	require.EqualValues(t, 3, claims[0])
	require.EqualValues(t, record.MaxClaims+2, claims[record.MaxClaims-1])
	f.ForgetClaims()
	require.Empty(t, f.Claims())
}

func TestRecordsAreFreedByTheirFirstWord(t *testing.T) {
	f, _ := newFile(t)
	f.Session(1).Store(aSession)
	f.Session(1).Free()
	require.Zero(t, f.Session(1).Serial())
	f.Session(1).Store(record.Session{Serial: 8})
	require.Equal(t, record.Session{Serial: 8}, f.Session(1).Load(), "nothing of the session before is left")
	f.Topic(1).Begin()
	f.Topic(1).Store(aTopic)
	f.Topic(1).Lane(3).Store(aLane)
	f.Topic(1).RaiseLanesVersion()
	f.Topic(1).Free()
	f.Topic(1).Begin()
	require.Equal(t, record.Topic{}, f.Topic(1).Load())
	require.Equal(t, record.Lane{}, f.Topic(1).Lane(3).Load())
	require.EqualValues(t, 1, f.Topic(1).LanesVersion(), "a version never falls: clients compare it")
}

func TestSingleWordsOfARecordChangeAlone(t *testing.T) {
	f, _ := newFile(t)
	f.Topic(2).Store(aTopic)
	f.Topic(2).SetDeleted(true)
	require.True(t, f.Topic(2).Deleted())
	f.Topic(2).SetDeleted(false)
	require.Equal(t, aTopic, f.Topic(2).Load())
	f.Session(2).Store(aSession)
	f.Session(2).SetState(protocol.SessionDisconnected)
	want := aSession
	want.State = protocol.SessionDisconnected
	require.Equal(t, want, f.Session(2).Load())
	f.SetDevice(record.MaxDevices-1, "cuda:GPU-1")
	require.Equal(t, "cuda:GPU-1", f.Device(record.MaxDevices-1))
	require.Zero(t, f.Session(0).Load(), "the last device ends with the head page")
}

// Records lie side by side: one that is stored may change no other.
func TestRecordsDoNotOverlap(t *testing.T) {
	f, m := newFile(t)
	stores := []func(){
		func() { f.SetBoot("boot") }, func() { f.SetDir("/run") }, func() { f.SetPIDNamespace(1) }, func() { f.NextSerial() },
		func() { f.SetDevice(0, "a") }, func() { f.SetDevice(1, "b") },
		func() { f.Session(0).Store(aSession) }, func() { f.Session(1).Store(aSession) },
		func() { f.SetChunkSerial(0, 1) }, func() { f.Segment(0).Store(aSegment) }, func() { f.Segment(1).Store(aSegment) },
		func() { f.Topic(0).Store(aTopic) }, func() { f.Topic(0).Group(0).Store(aGroup) }, func() { f.Topic(0).Group(1).Store(aGroup) },
		func() { f.Topic(0).Lane(0).Store(aLane) }, func() { f.Topic(0).Lane(1).Store(aLane) },
		func() { f.Topic(0).SetReader(protocol.MaxSessions-1, true) }, func() { f.Topic(0).SetGone(1, 2) }, func() { f.Topic(0).SetLastLeft("me") }, func() { f.Topic(1).Store(aTopic) },
		func() { f.Lease(0).Store(aLease) }, func() { f.Lease(1).Store(aLease) },
		func() { f.Join(0).Store(aJoin) }, func() { f.Join(1).Store(aJoin) },
		func() { f.AddClaim(1) }, func() { f.AddClaim(2) }, func() { f.AddEviction(1) }, func() { f.AddEviction(2) },
		func() { f.Remains(0).Store(aRemains) }, func() { f.Remains(1).Store(aRemains) },
	}
	const counters = 0x100 // how far tables are used: raised by several
	var tables [][]byte    // where they begin
	for _, at := range []uint64{counters, protocol.BrokerSessions, protocol.BrokerSegments, record.RemainsPlace(1).At, f.ClaimPlace().At, f.EvictionPlace().At, protocol.BrokerLeases,
		record.JoinPlace(0).At, protocol.BrokerChunks, protocol.BrokerTopics, protocol.BrokerTopics + protocol.TopicRecordSize/2, record.TopicPlace(1).At} {
		tables = append(tables, m[at:at+0x4000])
	}
	for i, store := range stores {
		var before [][]byte
		for _, table := range tables {
			before = append(before, bytes.Clone(table))
		}
		store()
		for n, was := range before {
			for k, c := range was {
				raised := n == len(tables)-3 && k/4 == protocol.TopicLanesEnd/4 // by lanes
				require.False(t, c != 0 && c != tables[n][k] && !raised, "store %d changed byte %#x of table %d", i, k, n)
			}
		}
	}
}
