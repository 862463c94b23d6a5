package broker_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

// A thousand topics and names, each of which is open for a while, leave nothing behind
// in the broker's files, nor does a new broker that looks through their records.
func TestMemoryOfTopicsThatAreOverIsGivenBack(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "p")
	pages := func() (all uint64) {
		for _, fd := range []int{0, 3} { // the broker file and the broker's own session file
			n, err := p.fds[fd].Allocated()
			require.NoError(t, err)
			all += n
		}
		return all
	}
	before, versions := pages(), map[uint32]uint32{}
	const many = 1000
	var infos []protocol.TopicInfo
	for i := range many {
		infos = append(infos, p.open(protocol.TopicOpenRequest{Name: fmt.Sprintf("t%d", i), Kind: "topic", Create: true, Linger: ptr(0.0)}))
		var name protocol.TopicInfo
		p.must(protocol.OpNameOpen, protocol.NameRef{Name: fmt.Sprintf("n%d", i)}, &name)
		infos = append(infos, name)
	}
	require.Greater(t, pages()-before, uint64(many*protocol.TopicLanes))
	for _, info := range infos {
		versions[info.Topic] = p.members(info).LanesVersion
		p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: protocol.RoleNameOpen, Opening: info.Opening}, nil)
	}
	const little = 1 << 20 // openings
	require.Less(t, pages()-before, uint64(little))

	old.kill()
	made := next(t, socket, nil)
	p2 := p.returns(socket)
	p2.resumed()
	made()
	require.Less(t, pages()-before, uint64(little))
	for i := range 20 {
		info := p2.open(protocol.TopicOpenRequest{Name: fmt.Sprintf("u%d", i), Kind: "topic", Create: true})
		require.Greater(t, p2.members(info).LanesVersion, versions[info.Topic], "its version tells it from the former topic")
	}
}
