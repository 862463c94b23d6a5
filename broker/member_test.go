package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// member has taken the first item of a queue with redelivery, whose broker is killed.
type member struct {
	t      *testing.T
	socket string
	made   func() *broker.Broker
	p, q   *peer // the writer and the member
	info   protocol.TopicInfo
	joined protocol.TopicReadReply
	group  *sys.FD
	area   shm.GroupLane
}

func newMember(t *testing.T) *member {
	old, socket, _ := first(t, "")
	m := &member{t: t, socket: socket, p: connect(t, socket, "writer"), q: connect(t, socket, "member")}
	open := queueOf("work")
	open.Redeliver = ptr(true)
	m.info = m.p.open(open)
	w := m.p.writer(m.info)
	w.post("one", 0, nil)
	w.post("two", 0, nil)
	m.q.open(queueOf("work"))
	group, err := m.q.call(protocol.OpTopicRead, m.asked(), &m.joined)
	require.NoError(t, err)
	m.group = group[0]
	t.Cleanup(func() { wire.CloseAll(group) })
	m.area, err = shm.NewGroupLane(m.q.mapRegion(group[0], int(protocol.GroupBytes(m.info.Slots)), true), w.num, m.info.Slots)
	require.NoError(t, err)
	i, hint, ok := m.area.Next(1)
	require.True(t, ok && m.area.Take(i, hint, m.joined.Member, true))
	old.kill()
	m.made = next(t, socket, nil)
	return m
}

func (m *member) asked() protocol.TopicRead {
	return protocol.TopicRead{TopicRef: ref(m.info), Group: ptr("queue"), Reader: 7}
}

func (m *member) leave() protocol.TopicLeave {
	return protocol.TopicLeave{TopicRef: ref(m.info), Role: protocol.RoleNameRead, Reader: 7}
}

func (m *member) handsOver() handedOver { return handedOver{"group", m.joined.GroupID, m.group} }

// A list may be incomplete: its session says by `topic.leave` that a reader is no more.
func TestMemberThatListsNoClaimsKeepsThem(t *testing.T) {
	m := newMember(t)
	p, q := m.p.returns(m.socket, m.handsOver()), m.q.returns(m.socket)
	p.resumed()
	q.resumed()
	m.made()
	require.False(t, m.area.Open(1), "its claim is another's now")
	require.Len(t, p.members(m.info).Readers, 1)
	q.must(protocol.OpTopicLeave, m.leave(), nil)
	require.True(t, m.area.Open(1))
}

// A session that `stop` has ended may claim an item before its process learns of it, after
// the moment in which its claims were freed.
func TestClaimsOfNoMemberAreFreed(t *testing.T) {
	m := newMember(t)
	i, hint, ok := m.area.Next(2)
	require.True(t, ok)
	require.True(t, m.area.Take(i, hint, m.joined.Member+1, true))
	p, q := m.p.returns(m.socket, m.handsOver()), m.q.returns(m.socket, m.handsOver())
	p.resumed()
	q.resumed()
	m.made()
	require.False(t, m.area.Open(1), "a living member's claim is another's now")
	require.True(t, m.area.Open(2))
}

func TestReaderWhoseAnswerDidNotComeIsTakenBack(t *testing.T) {
	m := newMember(t)
	unanswered := []protocol.Reading{{TopicRef: ref(m.info), Reader: 7},
		{TopicRef: ref(m.info), Reader: 8}, {TopicRef: protocol.TopicRef{Topic: 1 << 31, ID: 1}, Reader: 7}}
	p, q := m.p.returns(m.socket, m.handsOver()), m.q.returnsWithout(m.socket, unanswered)
	p.resumed()
	q.resumed()
	m.made()
	require.True(t, m.area.Open(1))
	require.Empty(t, p.members(m.info).Readers)
	q.refused(protocol.CodeNotFound, protocol.OpTopicLeave, m.leave())
}

func TestClaimsThatNoSessionListsAreTheirMembersUntilTheyLeave(t *testing.T) {
	m := newMember(t)
	p, q := m.p.returns(m.socket), m.q.returns(m.socket)
	p.resumed()
	q.resumed()
	m.made()
	other := m.asked()
	other.Reader = 9
	p.refused(protocol.CodeBusy, protocol.OpTopicRead, other)
	require.Equal(t, []groupOf{joinedGroup(&m.joined)}, p.members(m.info).Groups)
	require.Len(t, p.members(m.info).Readers, 1)
	q.must(protocol.OpTopicLeave, m.leave(), nil)
	var r protocol.TopicReadReply
	_, err := p.call(protocol.OpTopicRead, other, &r)
	require.NoError(t, err)
	require.NotEqual(t, m.joined.GroupID, r.GroupID, "the former claims are no more, wherever they are mapped")
}

// A reader that asks again under its number has no claims.
func TestReaderThatAsksAgainIsGivenOtherClaimsWhereNoSessionHasAny(t *testing.T) {
	m := newMember(t)
	p, q := m.p.returns(m.socket), m.q.returns(m.socket)
	p.resumed()
	q.resumed()
	m.made()
	var r protocol.TopicReadReply
	group, err := q.call(protocol.OpTopicRead, m.asked(), &r)
	require.NoError(t, err)
	require.EqualValues(t, 7, r.Reader)
	area, err := shm.NewGroupLane(q.mapRegion(group[0], int(protocol.GroupBytes(m.info.Slots)), true), 0, m.info.Slots)
	require.NoError(t, err)
	require.True(t, area.Open(1))
}
