package protocol_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/baton-ipc/baton/protocol"
)

// providerExample is a record whose counts and words every language makes of the same calls.
func providerExample() structCase {
	counts, begun := make([]uint64, protocol.ProviderBuckets), make([]uint64, protocol.MaxBegun)
	for _, ns := range []uint64{0, 3, 4, 7, 1000, 1024, 1_500_000, 1_500_001, 2_000_000_000, 1 << 62, math.MaxUint64} {
		counts[protocol.BucketOf(ns)]++
	}
	for _, c := range [][3]uint64{{0, 1, 123456789012345}, {4095, 777, 123456789012345}, {3, 1 << 40, math.MaxUint64}} {
		at := protocol.BegunAt(uint32(c[0]), c[1])
		begun[(at-protocol.ProviderBegun)/8] = protocol.BegunWord(uint32(c[0]), c[1], c[2])
	}
	return example("eleven calls, three of which run", "ProviderRecord", fieldValues{"number": uint64(9), "since": uint64(1700000000123456789),
		"failed": uint64(2), "took": uint64(2003003038), "counts": counts, "begun": begun})
}

func TestEveryTimeIsInTheBucketThatEndsBehindIt(t *testing.T) {
	last := -1
	for ns := uint64(0); ; {
		i := protocol.BucketOf(ns)
		assert.LessOrEqual(t, protocol.BucketFrom(i), ns)
		if i < protocol.ProviderBuckets-1 {
			assert.Greater(t, protocol.BucketFrom(i+1), ns)
		}
		assert.GreaterOrEqual(t, i, last)
		last = i
		if ns > math.MaxUint64/9*8 {
			break
		}
		ns += ns/8 + 1
	}
	assert.Equal(t, protocol.ProviderBuckets-1, last)
}

func TestCallThatRunsIsToldFromOthersAndHowLong(t *testing.T) {
	const now = 1 << 62
	word := protocol.BegunWord(7, 300, now-5_000_000_000)
	ran, ok := protocol.RanFor(word, 7, 300, now)
	assert.True(t, ok)
	assert.InDelta(t, 5_000_000_000, ran, 2048)
	for _, other := range [][2]uint64{{8, 300}, {7, 300 + protocol.MaxBegun}} {
		_, ok = protocol.RanFor(word, uint32(other[0]), other[1], now)
		assert.False(t, ok, other)
	}
	_, ok = protocol.RanFor(0, 0, 256*256, now)
	assert.False(t, ok, "no word")
	_, ok = protocol.RanFor(protocol.NoReplyWord(7, 300), 7, 300, now)
	assert.False(t, ok, "it ends without a reply")
	ran, ok = protocol.RanFor(protocol.BegunWord(7, 300, now+1_000_000), 7, 300, now)
	assert.True(t, ok && ran == 0, "it begins later than now")
}
