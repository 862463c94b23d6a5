package protocol

import (
	"math"
	"math/bits"
)

// ProviderRecordAt is where the record of a reader that provides a function stands in its session's
// file.
func ProviderRecordAt(number uint64) uint64 {
	return SessionProviders + number%MaxProviderRecords*ProviderRecordSize
}

// BucketOf is which count of a ProviderRecord a call that ran for ns is in: four for each power of
// two, so that a bucket is a quarter of its lower bound wide.
func BucketOf(ns uint64) int {
	if ns < 4 {
		return int(ns)
	}
	power := bits.Len64(ns) - 1
	return min(4*(power-1)+int(ns>>(power-2)&3), ProviderBuckets-1)
}

// BucketFrom is the least time, in ns, that a bucket is for; BucketFrom(i+1) is where it ends.
func BucketFrom(i int) uint64 {
	if i < 4 {
		return uint64(i)
	}
	if power := i/4 + 1; power < 64 {
		return uint64(4+i%4) << (power - 2)
	}
	return math.MaxUint64
}

// A BegunWord says of a call that runs which one it is, by the number of its lane and of the message
// in it, and when it began. One that stands for another call is in the same place now and then: then
// it says nothing of the earlier one. A time whose bits are all set says that the call ends without a reply,
// for which its provider got no memory.
const (
	begunTag  = 20 // bits: 12 of the lane, 8 of the message
	begunTime = 64 - begunTag
	begunUnit = 10 // bits: times are counted in units of 1,024 ns
)

// BegunAt is where the word of a call stands in a ProviderRecord.
func BegunAt(lane uint32, message uint64) uint64 {
	return ProviderBegun + 8*((message+37*uint64(lane))%MaxBegun)
}

// BegunWord is the word of a call that begins at a time of CLOCK_MONOTONIC.
func BegunWord(lane uint32, message, ns uint64) uint64 {
	tag := uint64(lane)<<8 | message/MaxBegun&0xff
	return tag<<begunTime | ns>>begunUnit&(1<<begunTime-1)
}

// NoReplyWord is the word of a call that ends without a reply, for which its provider got no memory.
func NoReplyWord(lane uint32, message uint64) uint64 {
	return BegunWord(lane, message, math.MaxUint64)
}

// RanFor tells for how long a call has run at a time, in ns; false where the word is of no such call.
func RanFor(word uint64, lane uint32, message, now uint64) (uint64, bool) {
	if word == 0 || word == NoReplyWord(lane, message) || word>>begunTime != BegunWord(lane, message, 0)>>begunTime {
		return 0, false
	}
	ran := (now>>begunUnit - word) & (1<<begunTime - 1)
	if ran >= 1<<(begunTime-1) { // it would have begun later than now
		return 0, true
	}
	return ran << begunUnit, true
}
