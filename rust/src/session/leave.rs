//! The topics that this process has open, and leaving them in order.
//!
//! A topic is left when its last user here drops it, while another thread may be opening it again.
//! Requests of a connection are carried out in order, so leaving sends its requests before it takes
//! the entry from the table, and opening begins anew when anything was left meanwhile.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use super::background::Job;
use super::inner::Inner;
use super::topic::TopicState;
use crate::crash_point;
use crate::error::Code;
use crate::wire::ops::{TopicLeave, TopicRef};
use crate::wire::{Control, Reply};

/// The open topics of a session.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u64, Weak<TopicState>>,
    left: u64, // counts topics left
}

/// What [`Topics::settle`] found.
pub(crate) enum Opened {
    /// A topic that this process had not open.
    New(Arc<TopicState>),
    /// One that it had: the broker counts one opener too many.
    Known(Arc<TopicState>),
    /// Something was left meanwhile, and maybe this: ask the broker again.
    Again,
}

impl Topics {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The number to give to `settle`, read before the broker is asked.
    pub(crate) fn mark(&self) -> u64 {
        self.table().left
    }

    /// Finds or enters a topic that the broker says is open.
    pub(crate) fn settle(&self, mark: u64, id: u64, make: impl FnOnce() -> Arc<TopicState>) -> Opened {
        let mut t = self.table();
        match t.by_id.get(&id).map(Weak::upgrade) {
            Some(Some(open)) => return Opened::Known(open),
            Some(None) => {
                // Its last user is just leaving it.
                while t.by_id.get(&id).is_some_and(|w| w.strong_count() == 0) {
                    t = self.changed.wait(t).unwrap_or_else(|p| p.into_inner());
                }
                return Opened::Again;
            }
            None => {}
        }
        if t.left != mark {
            return Opened::Again;
        }
        let made = make();
        t.by_id.insert(id, Arc::downgrade(&made));
        Opened::New(made)
    }

    /// Every open topic. The caller drops them without holding a lock.
    pub(crate) fn all(&self) -> Vec<Arc<TopicState>> {
        self.table().by_id.values().filter_map(Weak::upgrade).collect()
    }

    fn forget(&self, id: u64) {
        let mut t = self.table();
        t.by_id.remove(&id);
        t.left += 1;
        self.changed.notify_all();
    }
}

/// A lane that is not written any more.
#[derive(Debug)]
pub(crate) struct LeftLane {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// What its messages count, as (index, own).
    pub(crate) kept: Vec<(u32, bool)>,
}

/// A lane that the broker was asked to take over.
#[derive(Debug)]
pub(crate) struct Left {
    lane: LeftLane,
    link: Arc<Control>,
    answer: Receiver<Reply>,
}

impl Left {
    /// Counts down what the lane's messages name, once the broker counts for them. Without an answer
    /// the end of the session hands the lane over.
    pub(crate) fn finish(self, inner: &Inner) {
        match inner.background.pump_for(&self.link, &self.answer) {
            Ok(_) => {
                crash_point::at("leave-write");
                self.lane.kept.into_iter().for_each(|(index, own)| inner.let_go(index, own));
            }
            // It was asked for only, and that came to no broker.
            Err(e) if e.code() == Code::NotFound && self.lane.kept.is_empty() => {
                inner.lanes.lock().unwrap_or_else(|p| p.into_inner()).reuse(&inner.pages, self.lane.offset);
            }
            Err(_) => {}
        }
    }
}

impl Inner {
    /// Leaves a topic: hands the lane to the broker, which keeps what was sent for those who have not
    /// seen it. It waits for no answer.
    pub(crate) fn leave_topic(&self, topic: TopicRef, lane: Option<LeftLane>) {
        let link = self.link();
        if let Some(lane) = lane {
            // Before the request: the event that gives it back may come at once.
            self.lanes.lock().unwrap_or_else(|p| p.into_inner()).leave(lane.offset, lane.bytes);
            let leave = TopicLeave { topic, role: "write", reader: None };
            if let Ok((_, answer)) = link.request("topic.leave", &leave, &[]) {
                self.background.post(Job::Leave(Left { lane, link: link.clone(), answer }));
            }
        }
        tell_closed(&link, topic);
        self.topics.forget(topic.id);
    }

    /// Takes back that a topic was opened once more.
    pub(super) fn unopen(&self, topic: TopicRef) {
        tell_closed(&self.link(), topic);
    }
}

fn tell_closed(link: &Control, topic: TopicRef) {
    let _ = link.tell("topic.leave", &TopicLeave { topic, role: "open", reader: None });
}
