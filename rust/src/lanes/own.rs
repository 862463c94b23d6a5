//! The session's own lane of a topic: what was sent in it, and what its messages count.

use std::sync::Arc;

use super::stamps::Stamps;
use super::unwanted::Unwanted;
use super::view::View;
use crate::crash_point;
use crate::error::Result;
use crate::holding::Opening;
use crate::layout::lane_bytes;
use crate::memory::Memory;
use crate::shm::{GroupLane, Lane};
use crate::value::Outgoing;
use crate::waits::Spinner;
use crate::wire::ops::TopicInfo;

/// The writing side of a topic in this process; its threads take turns.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(super) own: Option<OwnLane>,
    /// Where a lane was asked for without an answer: it is asked for there again.
    pub(super) asked: Option<u64>,
    /// The last one used, where messages are kept for groups.
    pub(super) view: Option<Arc<View>>,
    /// Those of the session's own lane, of the groups of that view.
    pub(super) claims: Option<Claims>,
    /// By group: which member was rung last.
    pub(super) turns: Vec<u32>,
    pub(super) out: Outgoing,
    pub(super) spin: Spinner,
}

#[derive(Debug)]
pub(super) struct OwnLane {
    pub(super) lane: Lane,
    pub(super) number: u32,
    pub(super) offset: u64,
    pub(super) head: u64,
    pub(super) stamps: Stamps,
    /// Bytes of the tensors of all messages.
    pub(super) total: u64,
    /// The oldest message that is not withdrawn.
    pub(super) tail: u64,
    /// By slot: what its message counts.
    pub(super) kept: Vec<Kept>,
    /// How many of them count anything.
    pub(super) naming: usize,
    /// Of a function: calls that were given up.
    pub(super) unwanted: Unwanted,
}

/// The claims of the session's own lane.
#[derive(Debug)]
pub(super) struct Claims {
    pub(super) of: Arc<View>,
    pub(super) lanes: Vec<GroupLane>,
}

impl Claims {
    pub(super) fn new(view: &Arc<View>, lane: u32, slots: u32) -> Result<Claims> {
        let lanes = view.groups.iter().map(|g| GroupLane::new(&g.file, lane, slots)).collect::<Result<_>>()?;
        Ok(Claims { of: view.clone(), lanes })
    }
}

/// What a message in the lane counts, as (index, own): mostly one storage, which stands inline.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    pub(super) first: Option<(u32, bool)>,
    more: Vec<(u32, bool)>,
}

impl Kept {
    #[inline]
    pub(super) fn set(&mut self, all: &[(u32, bool)]) {
        let (first, more) = match all {
            [] => (None, all),
            [first, more @ ..] => (Some(*first), more),
        };
        self.first = first;
        self.more.clear();
        if !more.is_empty() {
            self.more.extend_from_slice(more);
        }
    }

    #[inline]
    pub(super) fn set_one(&mut self, index: u32, own: bool) {
        self.first = Some((index, own));
        self.more.clear();
    }

    fn iter(&self) -> impl Iterator<Item = (u32, bool)> {
        self.first.into_iter().chain(self.more.iter().copied())
    }
}

impl Writer {
    /// What the lane's messages count, by storage index.
    pub(crate) fn kept(&self) -> impl Iterator<Item = u32> {
        self.own.iter().flat_map(|own| own.kept.iter().flat_map(Kept::iter).map(|(index, _)| index))
    }

    /// Gives up writing: the lane, if there was one, or maybe was.
    pub(crate) fn leave(&mut self, info: &TopicInfo) -> Option<LeftLane> {
        let (offset, kept) = match self.own.take() {
            Some(own) => (own.offset, own.kept.iter().flat_map(Kept::iter).collect()),
            None => (self.asked.take()?, Vec::new()),
        };
        self.claims = None;
        Some(LeftLane { offset, bytes: lane_bytes(info.slots, info.stride), kept })
    }
}

impl OwnLane {
    /// Whether it is time to give back what is done: where that frees memory, or the lane is half full. The claims that
    /// are looked at for it are just being changed by members.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let newest = self.kept[self.lane.slot_of(self.head)].first.is_some();
        self.naming > usize::from(newest) || self.head + 1 - self.tail > self.lane.slots() / 4
    }

    /// Un-names message i, if that has not happened yet, then counts down what it named. All before it are
    /// withdrawn. The storage that the message named first, where that may be free now, is left to the caller
    /// to queue for reclaim.
    #[inline]
    pub(super) fn withdraw(&mut self, inner: &Opening, i: u64) -> Option<u32> {
        if i < self.tail {
            return None;
        }
        self.tail = i + 1;
        self.unname(inner, i)
    }

    /// Withdraws message i of those that are at or behind the tail, in any order; done again it changes nothing.
    #[inline]
    pub(super) fn unname(&mut self, inner: &Opening, i: u64) -> Option<u32> {
        self.lane.unname(i);
        crash_point::at("send-unnamed");
        let kept = &mut self.kept[self.lane.slot_of(i)];
        let (index, own) = kept.first.take()?;
        self.naming -= 1;
        let free = inner.memory.count_down(index, own);
        crash_point::at("send-dropping");
        for (index, own) in kept.more.drain(..) {
            inner.memory.let_go(index, own);
            crash_point::at("send-dropping");
        }
        free.then_some(index)
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
    pub(super) fn let_go(self, memory: &Memory) {
        self.kept.into_iter().for_each(|(index, own)| memory.let_go(index, own));
    }
}
