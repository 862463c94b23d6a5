//! Leaving a topic: the pending request by which a broker adopts what was sent.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::Lanes;
use super::own::LeftLane;
use crate::crash_point;
use crate::error::{Code, Result};
use crate::holding::Opening;
use crate::link::PendingRequest;
use crate::memory::Memory;
use crate::wire::ops::{TopicLeave, TopicRef};
use crate::wire::{Control, Reply};

/// A lane that a broker is to adopt.
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

impl PendingRequest for Leaving {
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
            // find was adopted by one that could not say so any more.
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

/// Hands a lane to the broker.
pub(super) fn leave_lane(lanes: &Arc<Lanes>, inner: &Opening, topic: TopicRef, lane: LeftLane) {
    let mut line = inner.line();
    let closed = inner.closed.is_set();
    let (memory, offset, bytes) = (&inner.memory, lane.offset, lane.bytes);
    if closed && inner.is_left() {
        drop(line);
        // The broker has adopted all lanes of a session that was closed.
        let mut space = lanes.space();
        space.leave(offset, bytes);
        space.taken_over(&memory.files, topic.topic, offset);
        drop(space);
        return lane.let_go(memory);
    }
    let (memory, lanes) = (memory.clone(), lanes.clone());
    if inner.is_lost() {
        // See `Topics::empty_lanes`.
        return line.put_off(Box::new(Leaving { memory, lanes, topic, lane, asked: true }));
    }
    // Before the request, whose answer may come at once.
    lanes.space().leave(offset, bytes);
    // What the word of the close has adopted before this is not found, as by one that asks again.
    line.send(Box::new(Leaving { memory, lanes, topic, lane, asked: closed }), &*inner.thread);
}

/// Takes back an opening.
pub(crate) fn unopen(inner: &Opening, opening: u64) {
    inner.tell("topic.leave", &TopicLeave::opening(opening));
}
