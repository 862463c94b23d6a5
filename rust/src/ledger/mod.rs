//! Lifetime and nothing else: the refcounts in which references are counted, the entries and
//! generations of storages, the free test, and the pool in which an owner recycles its storages.
//!
//! Truth about references is in the refcounts alone. Those of one holder are written by it alone; one 64-bit word
//! stands for one storage and holds a sequence and a count. The writer of a place that names a storage pays
//! for it in its own refcounts: up before naming, un-name before down.
//!
//! Ownership: a [`Pool`] owns the storages of the chunks granted to its session. Concurrency: refcounts
//! are changed by atomics from any thread; a pool has a lock of its own, and a turn to ask the broker.
//! Hostile peers: refcounts belong to one process, so one that breaks the protocol can only pin or lose its own
//! references.
//! Death: the broker empties the refcounts of the dead and recycles in the place of a dead owner.

mod chunk;
#[cfg(not(baton_loom))]
mod classes;
mod drops;
mod entry;
mod freetest;
#[cfg(not(baton_loom))]
mod grow;
mod note;
mod openings;
#[cfg(not(baton_loom))]
mod pool;
mod ranges;
mod refcounts;
#[cfg(not(baton_loom))]
mod waiting;

pub(crate) use chunk::{AttachedBits, Chunk, Chunks};
#[cfg(baton_loom)]
pub(crate) use drops::Drops;
pub(crate) use entry::Entries;
pub(crate) use freetest::{FreeTest, Holders};
#[cfg(not(baton_loom))]
pub(crate) use grow::{Grant, Source};
pub(crate) use note::{Granted, Note};
pub(crate) use openings::{Closed, Openings};
#[cfg(not(baton_loom))]
pub use pool::PoolStats;
#[cfg(not(baton_loom))]
pub(crate) use pool::{Pool, Storage};
pub(crate) use ranges::Ranges;
pub(crate) use refcounts::Refcounts;
