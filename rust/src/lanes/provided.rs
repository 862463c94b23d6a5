//! What a provider of a function says of its calls in its session's file, for the broker's listings and for callers
//! whose calls it has when it ends. Of two providers of a session that would have the same record, the first has it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::topic::TopicState;
use crate::layout::{provider_record as rec, session_file};
use crate::shm::Region;

/// Counts of how long calls ran: four for each power of two of nanoseconds.
const BUCKETS: u64 = (rec::BEGUN - rec::COUNTS) / 8;
/// Calls that run for which it is noted when they began.
const BEGUN: u64 = (rec::SIZE - rec::BEGUN) / 8;
/// Bits of the time in a BegunWord, which counts units of 2^10 ns.
const TIME: u32 = 44;
const UNIT: u32 = 10;

/// The record of one provider.
#[derive(Debug)]
pub(crate) struct Counts {
    record: Region,
    at: u64,
    topic: Arc<TopicState>,
}

impl Counts {
    /// Makes the record of a provider by the number of its reader, of whose memory the broker has made sure.
    pub(crate) fn begin(topic: &Arc<TopicState>, number: u64) -> Option<Counts> {
        let at = session_file::provider(number);
        if number == 0 || !topic.topics.lanes.counting.take(at) {
            return None;
        }
        let record = topic.inner.memory.files.session.sub(at, rec::SIZE);
        // Nothing of it is read while the number is another one.
        for off in (0..rec::SIZE).step_by(8) {
            record.store(off, 0);
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        record.store(rec::SINCE, u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        record.store(rec::NUMBER, number);
        Some(Counts { record, at, topic: topic.clone() })
    }

    /// Notes that a call begins to run, by the number of its lane and of the message in it.
    #[inline]
    pub(crate) fn begins(&self, lane: u32, message: u64, now: u64) {
        self.record.store(begun_at(lane, message), begun_word(lane, message, now));
    }

    /// Notes that a call ends without a reply, for which there is no memory. The end of the claim publishes it.
    #[cold]
    pub(crate) fn no_reply(&self, lane: u32, message: u64) {
        self.record.store(begun_at(lane, message), begun_word(lane, message, u64::MAX));
    }

    /// Counts a call that has run for so many nanoseconds.
    #[inline]
    pub(crate) fn ran(&self, ns: u64) {
        self.record.add(rec::COUNTS + 8 * bucket_of(ns), 1);
        self.record.add(rec::TOOK, ns);
    }

    /// Counts that a caller gets an error.
    pub(crate) fn failed(&self) {
        self.record.add(rec::FAILED, 1);
    }
}

impl Drop for Counts {
    /// Gives the record to another provider. It says what it said until then, as that of a reader.
    fn drop(&mut self) {
        if !self.topic.inner.is_foreign() {
            self.topic.topics.lanes.counting.give(self.at);
        }
    }
}

fn bucket_of(ns: u64) -> u64 {
    if ns < 4 {
        return ns;
    }
    let power = u64::from(ns.ilog2());
    (4 * (power - 1) + (ns >> (power - 2) & 3)).min(BUCKETS - 1)
}

fn begun_at(lane: u32, message: u64) -> u64 {
    rec::BEGUN + 8 * (message.wrapping_add(37 * u64::from(lane)) % BEGUN)
}

fn begun_word(lane: u32, message: u64, ns: u64) -> u64 {
    let tag = u64::from(lane) << 8 | ((message / BEGUN) & 0xff);
    tag << TIME | ns >> UNIT & ((1 << TIME) - 1)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_record_of_the_vectors_is_made_of_the_same_calls() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/testdata/v1/structs/provider_record.json");
        let v: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let hex = v["cases"][0]["hex"].as_str().unwrap();
        let byte = |i: usize| hex.get(2 * i..2 * i + 2).map_or(0, |b| u8::from_str_radix(b, 16).unwrap());
        let word = |at: u64| u64::from_le_bytes(std::array::from_fn(|i| byte(at as usize + i)));
        let mut want = vec![0u64; rec::SIZE as usize / 8];
        for ns in [0, 3, 4, 7, 1000, 1024, 1_500_000, 1_500_001, 2_000_000_000, 1 << 62, u64::MAX] {
            want[(rec::COUNTS / 8 + bucket_of(ns)) as usize] += 1;
        }
        for (lane, message, ns) in
            [(0, 1, 123_456_789_012_345), (4095, 777, 123_456_789_012_345), (3, 1 << 40, u64::MAX)]
        {
            want[begun_at(lane, message) as usize / 8] = begun_word(lane, message, ns);
        }
        for at in (rec::COUNTS..rec::SIZE).step_by(8) {
            assert_eq!(word(at), want[at as usize / 8], "at {at}");
        }
    }
}
