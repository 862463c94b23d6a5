//! The topics that this process has open, and leaving them in order.
//!
//! A topic is left when its last user here drops it, while another thread may be opening it again.
//! Requests of a connection are carried out in order, so leaving sends its requests before it takes
//! the entry from the table, and opening begins anew when anything was left meanwhile.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
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
    fn let_go(self, inner: &Inner) {
        self.kept.into_iter().for_each(|(index, own)| inner.let_go(index, own));
    }
}

/// A lane that a broker is still to take over.
#[derive(Debug)]
struct Leaving {
    topic: TopicRef,
    lane: LeftLane,
    /// A broker was asked, and went away before it had answered.
    asked: bool,
}

/// A lane that the broker was asked to take over.
#[derive(Debug)]
pub(crate) struct Left {
    what: Leaving,
    answer: Receiver<Reply>,
}

impl Leaving {
    /// Asks by a connection; comes back where that is lost.
    fn ask(self, control: &Control) -> Result<Left, Leaving> {
        match control.request("topic.leave", &TopicLeave::lane(self.topic, self.lane.offset), &[]) {
            Ok((_, answer)) => Ok(Left { what: self, answer }),
            Err(_) => Err(self),
        }
    }
}

impl Left {
    /// As it was before it was asked for.
    fn unanswered(self) -> Leaving {
        Leaving { asked: true, ..self.what }
    }

    /// Counts down what the lane's messages name, once the broker counts for them. The next broker is asked
    /// where this one goes away before it has answered.
    pub(crate) fn finish(self, inner: &Inner, control: &Control) {
        let reply = inner.background.pump_for(control, &self.answer);
        if let Some(still) = self.settle(inner, reply) {
            inner.link_locked().lanes.push(still);
        }
    }

    /// The broker keeps the lane for its readers, or its place is free.
    fn taken_over(&self, inner: &Inner) {
        let (topic, at) = (self.what.topic.topic, self.what.lane.offset);
        inner.lanes.lock().unwrap_or_else(|p| p.into_inner()).taken_over(&inner.pages, topic, at);
    }

    /// Does what follows from an answer; comes back where no broker has answered.
    fn settle(self, inner: &Inner, reply: Reply) -> Option<Leaving> {
        let Leaving { lane, asked, .. } = &self.what;
        match reply {
            Err(e) if matches!(e.code(), Code::BrokerLost | Code::SessionLost) => return Some(self.unanswered()),
            // The lane was asked for only, and that came to no broker.
            Err(e) if e.code() == Code::NotFound && lane.kept.is_empty() && !asked => {
                self.taken_over(inner);
            }
            // Nothing but this request ends a lane of a session that goes on: one that a broker does not
            // find was taken over by one that could not say so any more.
            Err(e) if e.code() != Code::NotFound || !asked => {}
            _ => {
                crash_point::at("leave-write");
                self.taken_over(inner);
                crash_point::at("leave-placed");
                self.what.lane.let_go(inner);
            }
        }
        None
    }
}

/// The connection of a session, and the lanes that are left once there is another.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) control: Arc<Control>,
    lanes: Vec<Leaving>,
}

impl Link {
    pub(super) fn new(control: Arc<Control>) -> Link {
        Link { control, lanes: Vec::new() }
    }

    /// Whether a lane waits for another connection.
    pub(super) fn is_leaving(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// Puts a new connection in the place of a lost one. What is owed goes first by it, so that a later request
    /// finds left what was left.
    fn renew(&mut self, control: Arc<Control>) -> Vec<Left> {
        let mut asked = Vec::new();
        for lane in std::mem::take(&mut self.lanes) {
            match lane.ask(&control) {
                Ok(left) => asked.push(left),
                Err(still) => self.lanes.push(still),
            }
        }
        for owed in self.control.take_owed() {
            let _ = control.tell_value(owed);
        }
        self.control = control;
        asked
    }
}

impl Inner {
    /// Leaves a topic: hands the lane to the broker, which keeps what was sent for those who have not
    /// seen it. It waits for no answer; where there is no broker, the next one is told.
    pub(crate) fn leave_topic(&self, topic: TopicRef, opening: u64, lane: Option<LeftLane>) {
        if let Some(lane) = lane {
            self.leave_lane(topic, lane);
        }
        self.unopen(opening);
        self.topics.forget(topic.id);
    }

    /// Hands a lane to the broker.
    pub(super) fn leave_lane(&self, topic: TopicRef, lane: LeftLane) {
        let mut link = self.link_locked();
        let closed = self.closed.is_set();
        if closed && self.is_left() {
            drop(link);
            // The broker has taken over all lanes of a session that was closed.
            let mut lanes = self.lanes.lock().unwrap_or_else(|p| p.into_inner());
            lanes.leave(lane.offset, lane.bytes);
            lanes.taken_over(&self.pages, topic.topic, lane.offset);
            drop(lanes);
            return lane.let_go(self);
        }
        if self.is_lost() {
            return link.lanes.push(Leaving { topic, lane, asked: true }); // see `empty_lanes`
        }
        // Before the request, whose answer may come at once.
        self.lanes.lock().unwrap_or_else(|p| p.into_inner()).leave(lane.offset, lane.bytes);
        // What the word of the close took over before this is not found, as by one that asks again.
        match (Leaving { topic, lane, asked: closed }).ask(&link.control) {
            Ok(left) => self.background.post(Job::Leave(left)),
            Err(still) => link.lanes.push(still),
        }
    }

    /// Counts down what the lanes of a lost session name: once a broker that has come since counts for it,
    /// or at once where none comes or none that would know the session. Whether nothing is left.
    pub(super) fn empty_lanes(&self) -> bool {
        self.topics.all().iter().for_each(|t| t.end_writing(None));
        let over = self.is_unknown() || self.pages.is_over();
        let still = self.topics.is_leaving(); // looked at before the lanes that come by it
        let mut link = self.link_locked();
        let unanswered = self.background.take_leaves().into_iter().map(Left::unanswered);
        link.lanes.extend(unanswered);
        let taken = |l: &mut Leaving| over || self.pages.is_taken_over(l.topic.topic, l.lane.offset);
        let taken: Vec<_> = link.lanes.extract_if(.., taken).collect();
        let done = !still && link.lanes.is_empty();
        drop(link);
        taken.into_iter().for_each(|l| l.lane.let_go(self));
        done
    }

    /// Takes back an opening.
    pub(super) fn unopen(&self, opening: u64) {
        self.tell("topic.leave", &TopicLeave::opening(opening));
    }

    /// Puts a new connection in the place of a lost one. Called by the background thread.
    pub(super) fn relink(&self, control: Arc<Control>) {
        // Locked, so that nobody adds to what is owed, or asks the new broker before it is told of that.
        let (mut link, mut answered) = (self.link_locked(), Vec::new());
        for left in self.background.take_leaves() {
            match left.answer.try_recv() {
                Ok(reply) if !matches!(&reply, Err(e) if e.code() == Code::BrokerLost) => answered.push((left, reply)),
                _ => link.lanes.push(left.unanswered()),
            }
        }
        let asked = link.renew(control);
        self.background.connected();
        self.strays.store(true, Ordering::Release);
        drop(link);
        asked.into_iter().for_each(|left| self.background.post(Job::Leave(left)));
        for (left, reply) in answered {
            let _ = left.settle(self, reply); // which was an answer
        }
        self.relinked.notify_all();
        self.waiter.wake();
    }
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::Session;

    #[test]
    fn another_connection_is_heard_of_though_nothing_comes_by_it() {
        let Some(broker) = baton_testkit::Broker::start() else { return };
        let session = Session::builder().address(broker.address()).connect().unwrap();
        let inner = &session.inner;
        let (ours, _silent) = UnixStream::pair().unwrap();
        // What asks by the former connection and is told that it is lost has read this before.
        let before = inner.background.heard();
        inner.relink(Arc::new(Control::new(ours.into())));
        assert_ne!(inner.background.heard(), before);
    }
}
