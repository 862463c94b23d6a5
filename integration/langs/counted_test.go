package langs

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// listed gets the rows of a listing.
func listed[Row any](t *testing.T, b *testkit.Broker, what string) (rows []Row) {
	t.Helper()
	var page protocol.ListReply
	_, err := b.Raw().Call(protocol.OpList, protocol.List{What: what}, &page)
	require.NoError(t, err)
	for _, raw := range page.Rows {
		var r Row
		require.NoError(t, json.Unmarshal(raw, &r))
		rows = append(rows, r)
	}
	return rows
}

// What a topic and its sessions have sent, taken and lost is told, in each pair of languages, and
// stays when readers and senders leave.
func TestListingsCountWhatWasSentTakenAndLost(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		to.do(command{"do": "read", "topic": "t", "depth": 4})
		stays, err := b.Connect().Topic(testkit.Context(t), "t") // else it ends with both
		require.NoError(t, err)
		defer stays.Close()
		for i := range 20 {
			from.do(command{"do": "send", "topic": "t", "depth": 4, "seed": 100 + i, "words": 1000})
		}
		lost := uint64(0)
		for range 3 {
			lost += to.do(command{"do": "receive", "topic": "t"}).Lost
		}
		require.NotZero(t, lost)
		topic := func() broker.TopicRow {
			rows := listed[broker.TopicRow](t, b, protocol.ListTopics)
			require.Len(t, rows, 1)
			return rows[0]
		}
		want := topic().Traffic
		assert.Equal(t, uint64(20), want.Sent)
		assert.GreaterOrEqual(t, want.SentBytes, uint64(20*8*1000))
		assert.Less(t, want.SentBytes, uint64(20*8*2000))
		assert.Equal(t, uint64(3), want.Taken)
		assert.Equal(t, lost, want.Lost)
		sum := broker.Traffic{}
		for _, s := range listed[broker.SessionRow](t, b, protocol.ListSessions) {
			sum.Sent += s.Sent
			sum.SentBytes += s.SentBytes
			sum.Taken += s.Taken
			sum.Lost += s.Lost
		}
		assert.Equal(t, want, sum)

		to.Kill()
		require.Eventually(t, func() bool { return topic().Readers == 0 }, 10*time.Second, time.Millisecond)
		assert.Equal(t, want, topic().Traffic)
		from.Kill()
		require.Eventually(t, func() bool { return topic().Writers == 0 }, 10*time.Second, time.Millisecond)
		assert.Equal(t, want, topic().Traffic)
	})
}
