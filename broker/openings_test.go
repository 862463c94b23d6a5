package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

// A client makes a request again where a broker has ended before it had answered, and cannot
// know whether that one had carried it out. An opening that is asked for, or left, twice is
// one all the same.
func TestOpeningThatIsAskedForAgainIsOne(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "p")
	named := func(number uint64) protocol.TopicOpenRequest {
		return protocol.TopicOpenRequest{Name: "t", Kind: protocol.KindTopic, Create: true, Linger: ptr(0.0), Opening: number}
	}
	private := protocol.TopicOpenRequest{Kind: protocol.KindQueue, Create: true, Linger: ptr(0.0), Opening: 3}
	name := protocol.NameOpen{Name: "n", Opening: 4}
	leave := func(info protocol.TopicInfo) protocol.TopicLeave {
		return protocol.TopicLeave{TopicRef: ref(info), Role: protocol.RoleNameOpen, Opening: info.Opening}
	}
	openers := func(p *peer) (n int) {
		var page struct{ Rows []broker.TopicRow }
		p.must(protocol.OpList, protocol.List{What: protocol.ListTopics}, &page)
		for _, r := range page.Rows {
			n += r.Openers
		}
		return n
	}
	all := func(p *peer) (infos []protocol.TopicInfo) {
		infos = append(infos, p.open(named(1)), p.open(named(2)), p.open(private))
		var info protocol.TopicInfo
		p.must(protocol.OpNameOpen, name, &info)
		return append(infos, info)
	}
	infos := all(p)
	require.Equal(t, infos, all(p))
	require.Equal(t, 2, openers(p)) // a session is one opener; names are listed by themselves
	p.must(protocol.OpTopicLeave, leave(infos[0]), nil)
	p.refused(protocol.CodeNotFound, protocol.OpTopicLeave, leave(infos[0]))

	old.kill()
	made := next(t, socket, nil)
	p2 := p.returns(socket)
	p2.resumed()
	made()
	require.Equal(t, 2, openers(p2))
	p2.refused(protocol.CodeNotFound, protocol.OpTopicLeave, leave(infos[0]))
	require.Equal(t, infos[1:3], []protocol.TopicInfo{p2.open(named(2)), p2.open(private)})
	var again protocol.TopicInfo
	p2.must(protocol.OpNameOpen, name, &again)
	require.Equal(t, infos[3], again)
	require.Equal(t, 2, openers(p2))
	for _, info := range infos[1:] {
		p2.must(protocol.OpTopicLeave, leave(info), nil)
	}
	require.Zero(t, openers(p2))
	p2.refused(protocol.CodeInvalid, protocol.OpTopicOpen, named(1<<53))
}

// A caller that was not answered does not know what it has opened, but for the number.
func TestOpeningIsLeftByItsNumberAlone(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "p")
	request := protocol.TopicOpenRequest{Name: "t", Kind: protocol.KindTopic, Create: true, Linger: ptr(0.0), Opening: 1}
	leave := protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: 1}
	p.refused(protocol.CodeNotFound, protocol.OpTopicLeave, leave)
	p.open(request)
	old.kill()
	made := next(t, socket, nil)
	p2 := p.returns(socket)
	p2.resumed()
	b := made()
	p2.must(protocol.OpTopicLeave, leave, nil)
	p2.refused(protocol.CodeNotFound, protocol.OpTopicLeave, leave)
	require.Zero(t, b.Status().Counts.Topics)
}

// A session may have a lane in a topic that it has not open, as the last thing of it.
func TestTopicIsOpenedAgainBesideALaneThatStayed(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "p")
	info := p.open(protocol.TopicOpenRequest{Name: "t", Kind: protocol.KindTopic, Create: true, Opening: 1})
	w := p.writer(info)
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: 1}, nil)
	old.kill()
	made := next(t, socket, nil)
	p2 := p.returns(socket)
	p2.resumed()
	made()
	again := p2.open(protocol.TopicOpenRequest{Name: "t", Kind: protocol.KindTopic, Opening: 2})
	require.Equal(t, info.ID, again.ID)
	require.EqualValues(t, protocol.LaneLive, p2.members(again).Lanes[0].State)
	p2.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: protocol.RoleNameWrite, Offset: w.at}, nil)
}

// A lane is left late where its writer was closed meanwhile, and the session opened again: then
// the session may have another lane in the topic.
func TestLaneIsLeftByItsPlace(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "p")
	info := p.open(topicOf("t"))
	leave := func(w *writer) protocol.TopicLeave {
		return protocol.TopicLeave{TopicRef: ref(info), Role: protocol.RoleNameWrite, Offset: w.at}
	}
	before := p.writer(info)
	p.must(protocol.OpTopicLeave, leave(before), nil)
	now := p.writer(info)
	p.refused(protocol.CodeNotFound, protocol.OpTopicLeave, leave(before))
	p.refused(protocol.CodeNotFound, protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: protocol.RoleNameWrite})
	require.Equal(t, 1, p.members(info).Writers)
	p.must(protocol.OpTopicLeave, leave(now), nil)
	require.Zero(t, p.members(info).Writers)
}
