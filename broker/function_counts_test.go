package broker_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

// A provider that lies in its record spoils the numbers of its function, and what is listed stays readable.
func TestProviderThatLiesSpoilsItsOwnNumbers(t *testing.T) {
	b := serve(t, nil)
	liar, err := provide(t, b.socket, "liar", "f", nil)
	require.NoError(t, err)
	honest, err := provide(t, b.socket, "honest", "f", nil)
	require.NoError(t, err)
	none, err := provide(t, b.socket, "none", "g", nil)
	require.NoError(t, err)
	record := func(p *provider) uint64 { return protocol.ProviderRecordAt(p.joined.Reader) }
	for off := uint64(0); off < protocol.ProviderRecordSize; off += 8 {
		liar.file.Store64(record(liar)+off, math.MaxUint64)
	}
	liar.file.Store64(record(liar)+protocol.ProviderNumber, liar.joined.Reader)
	at := record(honest)
	honest.file.Store64(at+protocol.ProviderNumber, honest.joined.Reader)
	honest.file.Store64(at+protocol.ProviderCounts+8*uint64(protocol.BucketOf(3000)), 5)
	honest.file.Store64(at+protocol.ProviderFailed, 7) // more than there are
	none.file.Store64(record(none)+protocol.ProviderNumber, none.joined.Reader+1)
	none.file.Store64(record(none)+protocol.ProviderCounts, 5)
	rows := list[broker.FunctionRow](connect(t, b.socket, "looks"), protocol.ListFunctions, "")
	require.Len(t, rows, 2)
	f, g := rows[0], rows[1]
	require.EqualValues(t, protocol.MaxSafeInt, f.Calls, "as much as JSON can hold")
	require.LessOrEqual(t, f.Errors, f.Calls)
	require.Len(t, f.Providers, 2)
	require.EqualValues(t, protocol.MaxSafeInt, f.Providers[0].Calls)
	one := f.Providers[1]
	require.Equal(t, [2]uint64{5, 5}, [2]uint64{one.Calls, one.Errors})
	require.InDelta(t, 3e-6, *one.P50, 1e-6)
	require.NotNil(t, one.Since)
	require.Zero(t, g.Calls, "the record is another reader's")
	require.Nil(t, g.Providers[0].Since)
	sum, ok := b.Calls(nil)
	require.True(t, ok)
	require.EqualValues(t, protocol.MaxSafeInt, sum.Calls)
	liar.bye()
	sum, _ = b.Calls(nil)
	require.EqualValues(t, protocol.MaxSafeInt, sum.Calls, "what it said stays")
}

// An operator's setting reaches functions that are there, and those of a previous broker.
func TestTracesThatStayAreAFlagOfEveryFunction(t *testing.T) {
	b := serve(t, nil)
	p, err := provide(t, b.socket, "p", "f", nil)
	require.NoError(t, err)
	flag := func() uint32 { return p.functionWord(p.info, protocol.FunctionFlags) & protocol.FunctionNoTraces }
	require.Zero(t, flag())
	stay := true
	_, err = b.Change(broker.Change{NoRemoteTraces: &stay})
	require.NoError(t, err)
	require.NotZero(t, flag())
	q, err := provide(t, b.socket, "q", "g", nil)
	require.NoError(t, err)
	require.NotZero(t, q.functionWord(q.info, protocol.FunctionFlags)&protocol.FunctionNoTraces)
	stay = false
	_, err = b.Change(broker.Change{NoRemoteTraces: &stay})
	require.NoError(t, err)
	require.Zero(t, flag())
}
