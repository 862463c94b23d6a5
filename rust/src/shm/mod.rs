//! The mechanics of shared memory, without policy: mapped regions and the atomics on them, lanes and
//! their slots, group claims, bells and the sets of waiting sessions.
//!
//! Ownership: a [`Region`] keeps its mapping alive. Concurrency: everything that other processes see is
//! changed by atomics; a lane has one writing session, whose threads take turns by a lock of their
//! own. Hostile peers: what stands on a page that another session writes may change between two
//! looks: every function loads a word once, checks the local copy against the geometry that the
//! broker gave, and uses the copy. Death: a writer's death leaves its lane as it stood; a slot whose
//! seq is 0 is invisible, so nothing is ever half sent.

mod active;
mod bell;
mod bits;
mod group;
mod lane;
#[cfg(not(baton_loom))]
pub(crate) mod racing;
mod region;
#[cfg(not(baton_loom))]
mod segment;
mod waits;
#[cfg(not(baton_loom))]
mod words;
#[cfg(baton_loom)]
#[path = "words_loom.rs"]
mod words;

pub(crate) use active::{Active, Scan};
pub(crate) use bell::{Bell, Bells, LOOK_AGAIN, Parking};
pub(crate) use bits::bits;
pub(crate) use group::{GroupLane, Stands};
pub(crate) use lane::{Copied, Lane, SlotHead};
pub(crate) use region::{fence, fence_acquire, pause};
#[cfg(not(baton_loom))]
pub(crate) use segment::Segment;
pub(crate) use waits::{Missing, Waits};
#[cfg(not(baton_loom))]
pub(crate) use words::prefetch;
pub(crate) use words::{Fixed, Region};
