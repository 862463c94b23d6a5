//! The topics for replies that a provider has open: one for each place where a caller of its waits.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::record::{Head, malformed};
use crate::error::{Code, Error, Result, ended};
use crate::holding::Opening;
use crate::lanes::{TopicState, Topics};
use crate::layout::slot_flag;
use crate::value::Payload;
use crate::wire::ops::TopicOpen;

/// How many replies may be there before another one: what a caller's word says, with room for the last one.
fn most_of(depth: u32, most: u32) -> u32 {
    match most {
        ALL => depth,
        most => most.clamp(1, (depth - 1).max(1)),
    }
}

/// As many as there is room for.
pub(super) const ALL: u32 = u32::MAX;

/// A topic for replies.
#[derive(Debug)]
struct Place {
    topic: Arc<TopicState>,
    /// The version with which it was seen to be read.
    seen: u64,
}

/// Those of one provider, by topic.
#[derive(Debug, Default)]
pub(super) struct Replies(Mutex<Places>);

type Places = HashMap<u64, Place, BuildHasherDefault<ById>>;

/// Finds topics by their ids, which a broker has counted: none is chosen by a caller.
#[derive(Debug, Default)]
struct ById(u64);

impl Hasher for ById {
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = self.0 << 8 | u64::from(*b));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

impl Replies {
    fn all(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The topic in which a caller waits, where a lane of this provider's is: a reply needs no broker then.
    #[inline]
    pub(super) fn known(&self, head: &Head) -> Option<Arc<TopicState>> {
        self.all().get(&head.topic_id).map(|place| place.topic.clone())
    }

    /// Opens one.
    #[cold]
    pub(super) fn open(&self, inner: &Arc<Opening>, head: &Head) -> Result<Arc<TopicState>> {
        self.sweep();
        let token: String = head.token.iter().map(|b| format!("{b:02x}")).collect();
        let request = TopicOpen { token: Some(&token), kind: "topic", ..TopicOpen::default() };
        let topic = Topics::open(inner, "topic.open", &request).map_err(|e| match e.code() {
            Code::NotFound => ended("", "the topic for replies"), // its caller has left before it was opened here
            _ => e,
        })?;
        if (topic.info.topic, topic.info.id) != (head.topic, head.topic_id) || topic.info.overwrite {
            return Err(malformed("a topic for replies that is another one"));
        }
        topic.drain();
        topic.begin_writing()?;
        // Its version is looked at when it is next looked whether it is read.
        self.all().insert(head.topic_id, Place { topic: topic.clone(), seen: 0 });
        Ok(topic)
    }

    /// Sends a reply where fewer than `most` of this provider's there are not taken. It waits for no caller. False where
    /// there is no room: of a reply that is no part its caller has broken the protocol.
    #[inline]
    pub(super) fn send(&self, place: &TopicState, reply: &mut Payload, most: u32) -> Result<bool> {
        match place.attempt_ahead(reply, slot_flag::WRITABLE, most_of(place.info.depth, most)) {
            Err(e) if e.is_end() => self.forget(place, e),
            sent => sent,
        }
    }

    /// Waits until its caller may have room for another part, or `other` says that there is something else.
    pub(super) fn wait(
        &self,
        place: &TopicState,
        window: u32,
        until: Option<Instant>,
        other: impl FnMut() -> bool,
    ) -> Result<()> {
        match place.wait_ahead(most_of(place.info.depth, window.min(ALL - 1)), until, other) {
            Err(e) if !e.is_end() || place.inner.is_closed() => Err(e),
            _ => Ok(()), // the next attempt says what there is
        }
    }

    #[cold]
    fn forget(&self, place: &TopicState, e: Error) -> Result<bool> {
        let gone = self.all().remove(&place.info.id);
        drop(gone); // unlocked: the last user of a topic leaves it
        Err(e)
    }

    /// Leaves the topics that no session reads any more, and gives back what was taken.
    pub(super) fn sweep(&self) {
        let mut all = self.all();
        let gone = |_: &u64, p: &mut Place| {
            p.topic.withdraw_done();
            let version = p.topic.version();
            let read = version == p.seen || p.topic.is_read() && !p.topic.is_closed();
            p.seen = version;
            !read
        };
        let over: Vec<_> = all.extract_if(gone).collect();
        drop(all);
        drop(over); // unlocked, as in `forget`
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_word_leaves_room_for_the_last_reply() {
        for (depth, most, of) in [(64, 16, 16), (64, 63, 63), (64, 64, 63), (64, ALL - 1, 63), (64, 0, 1), (1, 5, 1)] {
            assert_eq!(most_of(depth, most), of);
        }
        assert_eq!((most_of(64, ALL), most_of(1, ALL)), (64, 1));
    }
}
