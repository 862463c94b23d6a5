//! Calls of a function, which are messages of its topic: what its record says, a call that was sent, and one that a
//! provider has claimed.

use std::fmt;
use std::sync::Arc;

use super::message::Message;
use super::topic::TopicState;
use super::unwanted::Unwanted;
use crate::crash_point;
use crate::holding::{LaneView, Opening};
use crate::layout::{NO_TRACES, broker_file, function_record as rec, lane_record, state};
use crate::shm::{Fixed, GroupLane, Region, Stands, fence, fence_acquire};

/// Words of a record before its description.
const WORDS: usize = 8;

const _: () = {
    // Read as words of two halves.
    assert!(
        rec::REGISTRATION == 8
            && rec::PROVIDERS == 12
            && rec::BYTES == 32
            && rec::CONCURRENCY == 36
            && rec::FLAGS == 16
    );
    assert!(rec::DESCRIPTION == 8 * WORDS as u64 && rec::DESCRIPTION.is_multiple_of(8));
};

/// What the broker says of a function.
#[derive(Debug, Clone)]
pub(crate) struct FunctionRecord {
    head: Fixed<WORDS>,
    broker: Region,
    at: u64,
    topic_id: u64,
}

/// Which of its registrations holds, and how many sessions provide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) registration: u32,
    pub(crate) providers: u32,
}

impl FunctionRecord {
    pub(crate) fn of(topic: &TopicState) -> FunctionRecord {
        let (broker, at) = (&topic.inner.memory.files.broker, broker_file::function(topic.info.topic));
        FunctionRecord { head: Fixed::new(broker, at), broker: broker.clone(), at, topic_id: topic.info.id }
    }

    /// What holds now; nothing where the record is another topic's.
    ///
    /// SYNC function: the broker writes the registration after what describes it.
    #[inline]
    pub(crate) fn registered(&self) -> Registered {
        let word = self.head.load(rec::REGISTRATION as usize / 8);
        if self.head.load(rec::TOPIC_ID as usize / 8) != self.topic_id {
            return Registered { registration: 0, providers: 0 };
        }
        Registered { registration: word as u32, providers: (word >> 32) as u32 }
    }

    /// How many calls its providers take at a time.
    pub(crate) fn concurrency(&self) -> u32 {
        (self.head.load(rec::BYTES as usize / 8) >> 32) as u32
    }

    /// Whether traces of errors stay in the process of the provider.
    pub(crate) fn keeps_traces(&self) -> bool {
        self.head.load(rec::FLAGS as usize / 8) as u32 & NO_TRACES != 0
    }

    /// What changes with the description.
    ///
    /// SYNC function: loaded before a copy of the description and after it; the broker makes it even after what it
    /// writes.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.head.load(rec::VERSION as usize / 8)
    }

    /// The flags and the description, with their version; `None` while the broker writes them, or where there is
    /// nothing.
    ///
    /// SYNC function: the version is even before the copy and the same after it, so what was copied is whole.
    pub(crate) fn description(&self) -> Option<(u64, u32, Vec<u8>)> {
        let version = self.version();
        let flags = self.head.load(rec::FLAGS as usize / 8) as u32;
        let bytes = self.head.load(rec::BYTES as usize / 8) as u32;
        if version & 1 != 0 || u64::from(bytes) > rec::SIZE - rec::DESCRIPTION {
            return None;
        }
        let mut text = vec![0; bytes as usize];
        self.broker.read_bytes(self.at + rec::DESCRIPTION, &mut text);
        fence_acquire();
        (self.version() == version && self.registered().registration != 0).then_some((version, flags, text))
    }
}

/// The registration by which a reader takes calls.
pub(crate) struct Provides {
    pub(super) record: FunctionRecord,
    pub(super) registration: u32,
    /// Whether a call can begin that is looked at while there is no broker; all are taken where nothing says so.
    pub(super) can_begin: Option<Box<CanBegin>>,
}

/// Says of a call that is not taken yet whether it can begin without a broker.
pub(crate) type CanBegin = dyn Fn(&Message) -> bool + Send + Sync;

impl fmt::Debug for Provides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provides").field("registration", &self.registration).finish_non_exhaustive()
    }
}

impl Provides {
    /// Whether it holds still.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.record.registered().registration == self.registration
    }
}

/// A call that was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(super) claims: GroupLane,
    pub(super) lane: u32,
    pub(super) number: u64,
    pub(super) unwanted: Unwanted,
}

impl Sent {
    /// Where it stands: the number of its lane, and of the message in it.
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.lane, self.number)
    }

    /// Where its claim is, and the number of its message.
    pub(crate) fn claim(&self) -> (GroupLane, u64) {
        (self.claims.clone(), self.number)
    }

    /// How it stands.
    #[inline]
    pub(crate) fn stands(&self) -> Stands {
        self.claims.call(self.number)
    }

    /// Notes that nothing waits for it any more, which a provider has. The provider is done with it in its time; but
    /// where its slot is needed before, it is ended for the provider, so that one that is suspended holds up no other
    /// call.
    pub(crate) fn give_up(&self, topic: &TopicState) {
        self.unwanted.add(self.number);
        topic.inner.waiter.wake(); // others of this session may wait for the slot
    }

    /// Ends it where no provider has it; whether that was so.
    pub(crate) fn withdraw(&self, topic: &TopicState) -> bool {
        let right = topic.inner.claiming();
        right.is_some() && self.claims.withdraw(self.number)
    }
}

/// Where the caller of a call says whether it wants that still.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    lane: Arc<LaneView>,
    number: u64,
    /// Of the caller's lane, in the broker file.
    record: u64,
}

impl Wanted {
    /// Whether the caller wants the call no more, or has gone. In the child of a fork there is no call.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        !self.lane.inner.is_foreign() && (self.lane.lane.is_cancelled(self.number) || self.is_deserted())
    }

    /// The session of the provider, which is rung where the caller wants it no more.
    pub(crate) fn session(&self) -> &Arc<Opening> {
        &self.lane.inner
    }

    /// Whether the caller has gone.
    fn is_deserted(&self) -> bool {
        let broker = || &self.lane.inner.memory.files.broker;
        !self.lane.inner.is_foreign() && (broker().load32(self.record) != state::LANE_LIVE || !self.lane.current())
    }
}

/// A call that a provider has claimed. Dropped it is over.
#[derive(Debug)]
pub(crate) struct Claimed {
    group: GroupLane,
    member: u16,
    wanted: Wanted,
    /// How many calls the caller's lane has room for.
    depth: u64,
    /// How often others had begun it.
    begun: u16,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Claimed,
    Begun,
    Over,
}

impl Claimed {
    pub(super) fn new(
        topic: &TopicState,
        group: &GroupLane,
        number: u64,
        member: u16,
        lane: &Arc<LaneView>,
        begun: u16,
    ) -> Claimed {
        let record = broker_file::lane(topic.info.topic, lane.info.lane) + lane_record::STATE;
        let (group, depth) = (group.clone(), u64::from(topic.info.depth));
        let wanted = Wanted { lane: lane.clone(), number, record };
        Claimed { group, member, wanted, depth, begun, state: State::Claimed }
    }

    /// Where it stands: the number of its caller's lane, and of the message in it.
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.wanted.lane.info.lane, self.wanted.number)
    }

    /// How often providers that have ended had begun it.
    pub(crate) fn begun_before(&self) -> u32 {
        u32::from(self.begun)
    }

    /// Where its caller says whether it wants it still.
    #[inline]
    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Whether the caller wants it no more, or has gone.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.wanted.is_cancelled()
    }

    /// Whether the caller has gone.
    pub(crate) fn is_deserted(&self) -> bool {
        self.wanted.is_deserted()
    }

    /// Notes that the function runs for it; false where the call is another's.
    pub(crate) fn begin(&mut self) -> bool {
        let right = self.wanted.lane.inner.claiming();
        let begun = right.is_some() && self.group.begin(self.wanted.number, self.member);
        self.state = if begun { State::Begun } else { State::Over };
        crash_point::at("call-begun");
        begun
    }

    /// Ends it, unless it is the parent's, in the child of a fork. After a reply its caller was rung, unless it waits for
    /// room: for the slot that is this call's.
    pub(crate) fn end(&mut self, replied: bool) {
        let state = std::mem::replace(&mut self.state, State::Over);
        let Wanted { lane, number, .. } = &self.wanted;
        let (member, number) = (self.member, *number);
        if lane.inner.is_foreign() {
            return;
        }
        if let Some(_right) = lane.inner.claiming() {
            match state {
                State::Claimed => drop(self.group.acknowledge(number, member)),
                State::Begun => drop(self.group.finish(number, member)),
                State::Over => return,
            }
        }
        crash_point::at("call-done");
        fence(); // SYNC parked: the claim is visible before the head is read, and the writer's parked word
        if !replied || lane.lane.head() + 1 >= number + self.depth {
            lane.ring();
        }
    }

    /// The session of the provider.
    pub(crate) fn opening(&self) -> &Arc<Opening> {
        &self.wanted.lane.inner
    }

    /// The name of the session that calls.
    pub(crate) fn caller(&self) -> &str {
        &self.wanted.lane.owner.sender
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.end(false);
    }
}
