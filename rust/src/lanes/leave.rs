//! The topics that this process has open, and leaving them in order.
//!
//! A topic is left when its last user here drops it, while another thread may be opening it again.
//! Requests of a connection are carried out in order, so leaving sends its requests before it takes
//! the entry from the table, and opening begins anew when anything was left meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;

use super::Lanes;
use super::got::AllGot;
use super::members::GroupView;
use super::topic::TopicState;
use crate::crash_point;
use crate::error::{Code, Result, closed};
use crate::holding::Opening;
use crate::link::Errand;
use crate::memory::{Expected, Memory, SessionFiles};
use crate::message::Ref;
use crate::wire::ops::{TopicLeave, TopicRef};
use crate::wire::{Control, Reply};

/// The open topics of one opening of a session.
#[derive(Debug)]
pub(crate) struct Topics {
    pub(crate) lanes: Arc<Lanes>,
    table: Mutex<Table>,
    changed: Condvar,
    pub(super) got: AllGot,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u64, Weak<TopicState>>,
    left: u64, // counts topics left
}

/// What [`Topics::register`] found.
pub(crate) enum Opened {
    /// A topic that this process had not open.
    New(Arc<TopicState>),
    /// One that it had: the broker counts one opener too many.
    Known(Arc<TopicState>),
    /// Something was left meanwhile, and maybe this: ask the broker again.
    Again,
}

impl Topics {
    pub(crate) fn new(lanes: Arc<Lanes>) -> Arc<Topics> {
        Arc::new(Topics { lanes, table: Mutex::default(), changed: Condvar::new(), got: AllGot::default() })
    }

    /// Those of an opening.
    pub(crate) fn of(inner: &Opening) -> Result<&Arc<Topics>> {
        inner.part().ok_or_else(|| closed("the session"))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The number to give to `register`, read before the broker is asked.
    pub(crate) fn mark(&self) -> u64 {
        self.table().left
    }

    /// Finds or enters a topic that the broker says is open.
    pub(crate) fn register(&self, mark: u64, id: u64, make: impl FnOnce() -> Arc<TopicState>) -> Opened {
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

    /// Whether the last user of a topic is just leaving it.
    fn is_leaving(&self) -> bool {
        self.table().by_id.values().any(|t| t.strong_count() == 0)
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

impl LeftLane {
    /// Counts down what its messages count.
    fn let_go(self, memory: &Memory) {
        self.kept.into_iter().for_each(|(index, own)| memory.let_go(index, own));
    }
}

/// A lane that a broker is to take over.
struct Leaving {
    memory: Arc<Memory>,
    lanes: Arc<Lanes>,
    topic: TopicRef,
    lane: LeftLane,
    /// A broker was asked, and went away before it had answered.
    asked: bool,
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leaving { topic, lane, asked, .. } = self;
        f.debug_struct("Leaving").field("topic", topic).field("lane", lane).field("asked", asked).finish()
    }
}

impl Leaving {
    /// The broker keeps the lane for its readers, or its place is free.
    fn taken_over(&self) {
        self.lanes.space().taken_over(&self.memory.files, self.topic.topic, self.lane.offset);
    }
}

impl Errand for Leaving {
    fn ask(&self, control: &Control) -> Result<Receiver<Reply>> {
        let request = TopicLeave::lane(self.topic, self.lane.offset);
        control.request("topic.leave", &request, &[]).map(|(_, answer)| answer)
    }

    fn unanswered(&mut self) {
        self.asked = true;
    }

    /// Counts down what the lane's messages name, once the broker counts for them.
    fn answered(self: Box<Self>, reply: Reply) {
        match reply {
            // The lane was asked for only, and that came to no broker.
            Err(e) if e.code() == Code::NotFound && self.lane.kept.is_empty() && !self.asked => {
                self.taken_over();
            }
            // Nothing but this request ends a lane of a session that goes on: one that a broker does not
            // find was taken over by one that could not say so any more.
            Err(e) if e.code() != Code::NotFound || !self.asked => {}
            _ => {
                crash_point::at("leave-write");
                self.taken_over();
                crash_point::at("leave-placed");
                self.end();
            }
        }
    }

    fn is_done(&self) -> bool {
        self.memory.files.is_taken_over(self.topic.topic, self.lane.offset)
    }

    fn end(self: Box<Self>) {
        self.lane.let_go(&self.memory);
    }
}

impl Topics {
    /// Leaves a topic: hands the lane to the broker, which keeps what was sent for readers that have not
    /// seen it. It waits for no answer; where there is no broker, the request goes to the next one.
    pub(crate) fn leave_topic(&self, client: &Opening, topic: TopicRef, opening: u64, lane: Option<LeftLane>) {
        if let Some(lane) = lane {
            self.leave_lane(client, topic, lane);
        }
        unopen(client, opening);
        self.forget(topic.id);
    }

    /// Hands a lane to the broker.
    pub(crate) fn leave_lane(&self, inner: &Opening, topic: TopicRef, lane: LeftLane) {
        let mut line = inner.line();
        let closed = inner.closed.is_set();
        let (memory, offset, bytes) = (&inner.memory, lane.offset, lane.bytes);
        if closed && inner.is_left() {
            drop(line);
            // The broker has taken over all lanes of a session that was closed.
            let mut space = self.lanes.space();
            space.leave(offset, bytes);
            space.taken_over(&memory.files, topic.topic, offset);
            drop(space);
            return lane.let_go(memory);
        }
        let (memory, lanes) = (memory.clone(), self.lanes.clone());
        if inner.is_lost() {
            // See `empty_lanes`.
            return line.put_off(Box::new(Leaving { memory, lanes, topic, lane, asked: true }));
        }
        // Before the request, whose answer may come at once.
        self.lanes.space().leave(offset, bytes);
        // What the word of the close took over before this is not found, as by one that asks again.
        line.send(Box::new(Leaving { memory, lanes, topic, lane, asked: closed }), &*inner.thread);
    }

    /// Counts down what the lanes of a lost session name: once a broker that has come since counts for it,
    /// or at once where none comes or none that would know the session. Whether nothing is left.
    pub(crate) fn empty_lanes(&self, inner: &Opening) -> bool {
        self.all().iter().for_each(|t| t.end_writing(None));
        let over = inner.is_unknown() || inner.memory.files.is_over();
        let still = self.is_leaving(); // looked at before the lanes that come by it
        inner.end_errands(over) && !still
    }

    /// Lets what writes to lanes end, now that the session is marked closed: no reader would see a later message. A
    /// send that waits for an answer of the broker is not waited for much longer than that takes. What lanes name is
    /// counted down once the broker counts for it.
    pub(crate) fn end_writing(&self, until: Instant) {
        self.all().iter().for_each(|t| t.end_writing(Some(until)));
    }

    /// Withdraws queue messages that are done, which frees storages.
    pub(crate) fn withdraw_done(&self) {
        self.all().iter().for_each(|t| t.withdraw_done());
    }

    /// Takes back what the broker has given up of lanes that were left, and leaves names that are not set any more.
    pub(crate) fn compare(&self, files: &SessionFiles) {
        self.lanes.space().compare(files);
        self.got.forget_deleted();
    }

    /// The group files mapped here.
    pub(crate) fn group_files(&self) -> Vec<Arc<GroupView>> {
        let views = self.all().into_iter().filter_map(|t| t.view.load_full());
        views.flat_map(|v| v.groups.clone()).collect()
    }
}

impl Expected for Topics {
    /// The first ref of the newest message of each lane.
    fn refs(&self) -> Vec<Ref> {
        self.all().iter().flat_map(|t| t.newest_refs()).collect()
    }
}

/// Takes back an opening.
pub(crate) fn unopen(inner: &Opening, opening: u64) {
    inner.tell("topic.leave", &TopicLeave::opening(opening));
}
