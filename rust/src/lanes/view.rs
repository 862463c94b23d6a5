//! The members of a topic as a look at its record has found them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::holding::LaneView;
use crate::shm::{GroupLane, Region};

/// What a session has to know of a topic: the lanes where it reads, the groups where it sends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts {
    pub(super) lanes: bool,
    pub(super) groups: bool,
}

pub(crate) const TO_READ: Parts = Parts { lanes: true, groups: false };
pub(crate) const TO_SEND: Parts = Parts { lanes: false, groups: true };
pub(crate) const ALL: Parts = Parts { lanes: true, groups: true };

/// The members of a topic, each part as of a version of its own. It is never changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    pub(super) has: Parts,
    /// The version of the lanes.
    pub(super) lanes_at: u32,
    /// That of the groups.
    pub(super) groups_at: u32,
    /// Messages of lanes that are no more.
    pub(crate) gone: u64,
    /// By number.
    pub(crate) lanes: Vec<Arc<LaneView>>,
    /// Incarnations of lanes whose pages no broker has yet; the version says when it has.
    pub(crate) hidden: Vec<u64>,
    /// Where they are not all known those that are mapped here.
    pub(crate) groups: Vec<Arc<GroupView>>,
}

#[derive(Debug)]
pub(crate) struct GroupView {
    pub(crate) number: u32,
    pub(crate) id: u64,
    pub(crate) file: Region,
    pub(crate) fd: OwnedFd,
}

impl View {
    /// Whether it has the parts that are needed, as of some version.
    #[inline]
    pub(crate) fn knows(&self, need: Parts) -> bool {
        (self.has.lanes || !need.lanes) && (self.has.groups || !need.groups)
    }

    /// Whether its lanes are those of a version.
    #[inline]
    pub(crate) fn has_lanes_of(&self, version: u64) -> bool {
        self.lanes_at == version as u32
    }

    /// Whether its groups are those of a version.
    #[inline]
    pub(crate) fn has_groups_of(&self, version: u64) -> bool {
        self.groups_at == (version >> 32) as u32
    }

    /// Whether the parts that are needed are those of a version. Readers come and go without a reader's having
    /// to know of it.
    #[inline]
    pub(crate) fn is_of(&self, version: u64, need: Parts) -> bool {
        self.knows(need) && (!need.lanes || self.has_lanes_of(version)) && (!need.groups || self.has_groups_of(version))
    }

    /// The lane with a number.
    pub(super) fn lane(&self, number: u32) -> Option<&Arc<LaneView>> {
        let at = self.lanes.binary_search_by_key(&number, |l| l.info.lane).ok()?;
        Some(&self.lanes[at])
    }

    /// Whether every group is finished with message i of a lane.
    pub(super) fn done(&self, lane: u32, slots: u32, i: u64) -> bool {
        self.groups.iter().filter_map(|g| GroupLane::new(&g.file, lane, slots).ok()).all(|g| g.done(i))
    }
}
