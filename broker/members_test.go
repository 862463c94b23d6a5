package broker_test

import (
	"math/bits"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// members are the sessions that take part in a topic, as its record says.
type members struct {
	LanesVersion, ReadersVersion uint32
	Closed                       bool
	Lanes                        []laneOf
	Groups                       []groupOf
	Readers                      []uint32 // session slots
	Writers                      int
	LastLeft                     string
}

type laneOf struct {
	Number uint32
	Sender string
	record.Lane
}

// groupOf is a group by its number in the record.
type groupOf struct {
	Number uint32
	ID     uint64
}

// joinedGroup is the group of a reply.
func joinedGroup(r *protocol.TopicReadReply) groupOf { return groupOf{*r.Group, r.GroupID} }

// members reads the record of a topic as clients do.
func (p *peer) members(info protocol.TopicInfo) (m members) {
	p.t.Helper()
	f := record.Of(p.broker)
	t := f.Topic(info.Topic)
	require.Equal(p.t, info.ID, t.ID())
	versions := p.broker.Load64(record.TopicPlace(info.Topic).At + protocol.TopicVersion)
	m.LanesVersion, m.ReadersVersion, m.Closed = uint32(versions), uint32(versions>>32), t.Load().State != protocol.TopicOpen
	for n := range t.UsedLanes() {
		if r := t.Lane(n).Load(); r.Incarnation != 0 {
			m.Lanes = append(m.Lanes, laneOf{n, p.senderOf(r), r})
			if r.State == protocol.LaneLive {
				m.Writers++
			}
		}
	}
	at := protocol.BrokerTopics + uint64(info.Topic)*protocol.TopicRecordSize
	for n := range p.broker.Load32(at + protocol.TopicGroupsEnd) {
		if id := t.Group(n).ID(); id != 0 {
			m.Groups = append(m.Groups, groupOf{n, id})
		}
	}
	for w := range uint64(protocol.BitmapWords) {
		for b := p.broker.Load64(at + protocol.TopicReaders + 8*w); b != 0; b &= b - 1 {
			m.Readers = append(m.Readers, uint32(w*64)+uint32(bits.TrailingZeros64(b)))
		}
	}
	m.LastLeft = cString(p.broker.Bytes(at+protocol.TopicLastLeft, protocol.SessionNameBytes))
	return m
}

// senderOf is the name in the file of the session that a lane lies in, "" where it cannot be read.
func (p *peer) senderOf(l record.Lane) string {
	p.t.Helper()
	var r protocol.PeerReply
	fds, err := p.call(protocol.OpPeer, peerOf(l.Slot, l.Serial), &r)
	require.NoError(p.t, err)
	defer wire.CloseAll(fds)
	if len(fds) == 0 {
		return ""
	}
	return cString(p.mapRegion(fds[0], protocol.SessionBytes, false).Bytes(protocol.SessionSender, protocol.SessionNameBytes))
}

func peerOf(slot uint32, serial uint64) protocol.Peer {
	return protocol.Peer{Sessions: []protocol.PeerSession{{Slot: slot, Serial: serial}}}
}

// lacks asks for the file of one session, which is refused.
func (p *peer) lacks(code protocol.Code, slot uint32, serial uint64) {
	p.t.Helper()
	var r protocol.PeerReply
	fds, err := p.call(protocol.OpPeer, peerOf(slot, serial), &r)
	require.NoError(p.t, err)
	require.Empty(p.t, fds)
	require.NotNil(p.t, r.Sessions[0].Error)
	require.Equal(p.t, code, r.Sessions[0].Error.Code)
}

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
