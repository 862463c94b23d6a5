package record_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/protocol"
)

func takeAll(t *record.Table, h record.Holder) (got []uint32) {
	for {
		n, err := t.Take(h)
		if err != nil {
			return got
		}
		got = append(got, n)
	}
}

func TestOneHolderLeavesAReserveToHoldersWithLittle(t *testing.T) {
	table := record.NewTable(record.NewShares("things", "give some back", 256), 4)
	greedy := takeAll(&table, record.Holder{Family: 1})
	require.Len(t, greedy, 256-32)
	_, err := table.Take(record.Holder{Family: 1})
	require.ErrorIs(t, err, protocol.ErrTooMany)
	require.ErrorContains(t, err, "224 of the broker's 256 things")
	require.Len(t, takeAll(&table, record.Holder{Family: 2}), 16, "less than a sixteenth, and then no more")
	require.Len(t, takeAll(&table, record.Holder{Family: 3}), 16)
	_, err = table.Take(record.Holder{Family: 4})
	require.ErrorContains(t, err, "all 256 things")
	for _, n := range greedy {
		table.Give(n, record.Holder{Family: 1})
	}
	require.Equal(t, 32, table.Taken())
	require.Len(t, takeAll(&table, record.Holder{Family: 2}), 256-32-32, "it counts what it has, not what it had")
}

func TestReserveOfASmallTableIsOfUse(t *testing.T) {
	shares := record.NewShares("things", "give some back", 64).ForUse(9)
	greedy, newcomer := record.Holder{Family: 1}, record.Holder{Family: 2}
	for shares.Check(greedy, 1) == nil {
		shares.Add(greedy, 1)
	}
	require.Equal(t, 64-9, shares.Taken())
	require.NoError(t, shares.Check(newcomer, 6))
	shares.Add(newcomer, 6)
	require.NoError(t, shares.Check(newcomer, 3))
	require.ErrorIs(t, shares.Check(greedy, 1), protocol.ErrTooMany)
}

func TestOneUserLeavesHalfOfTheReserveToOthers(t *testing.T) {
	table := record.NewTable(record.NewShares("things", "give some back", 256), 4)
	mine := 0
	for family := uint64(1); family < 300; family++ {
		mine += len(takeAll(&table, record.Holder{Family: family, User: 1001}))
	}
	require.Equal(t, 256-16, mine)
	require.Len(t, takeAll(&table, record.Holder{Family: 300, User: 1002}), 16)
}

func TestTheBrokerItselfHasNoShare(t *testing.T) {
	table := record.NewTable(record.NewShares("things", "give some back", 64), 4)
	require.Len(t, takeAll(&table, record.Holder{}), 64)
	table.Give(7, record.Holder{})
	table.Give(9, record.Holder{})
	n, err := table.Take(record.Holder{})
	require.NoError(t, err)
	require.EqualValues(t, 7, n, "when no other is left, one that rests is taken")
}
