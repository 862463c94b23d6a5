//! What a reader has joined, and the requests to join whose answers are not processed yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::topic::TopicState;
use crate::crash_point;
use crate::wire::ops::{Reading, TopicLeave, TopicRef};

/// What a reader joined. It is left when the reader and all that it must still acknowledge are gone:
/// the broker gives the items of a member that left to others.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) topic: Arc<TopicState>,
    pub(super) number: u64,
    pub(super) counted: bool,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let leave = TopicLeave::reader(self.topic.reference(), self.number);
        if !self.topic.inner.is_foreign() {
            self.topic.inner.tell("topic.leave", &leave);
            crash_point::at("leave-read");
            if self.counted {
                self.topic.topics.lanes.counting.end(self.number);
            }
        }
    }
}

/// The requests to read of a session, by number: from before each is made until its answer is processed.
#[derive(Debug, Default)]
pub(crate) struct Joining(Mutex<HashMap<u64, (TopicRef, bool)>>);

impl Joining {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, (TopicRef, bool)>> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    pub(super) fn begin(&self, number: u64, topic: TopicRef) {
        self.all().insert(number, (topic, false));
    }

    /// Whether a new broker was told that the request is unanswered, and has taken its reader back.
    pub(super) fn end(&self, number: u64) -> bool {
        self.all().remove(&number).is_some_and(|(_, told)| told)
    }

    /// All of them, for a new broker.
    pub(crate) fn unanswered(&self) -> Vec<Reading> {
        let told = |(number, (topic, told)): (&u64, &mut (TopicRef, bool))| {
            *told = true;
            Reading { topic: *topic, reader: *number }
        };
        self.all().iter_mut().map(told).collect()
    }
}
