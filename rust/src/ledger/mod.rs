//! Lifetime and nothing else: the ledger rows in which references are counted, the entries and
//! generations of storages, the free test, and the pool in which an owner recycles its storages.
//!
//! Truth about references is in the rows alone. One session writes a row; one 64-bit word stands for
//! one storage and holds a sequence and a count. The writer of a place that names a storage pays
//! for it in its own row: up before naming, un-name before down.
//!
//! Ownership: a [`Pool`] owns the storages of the chunks granted to its session. Concurrency: rows
//! are changed by atomics from any thread; a pool has a lock of its own, and a turn to ask the broker.
//! Hostile peers: a row belongs to one process, so a liar can only pin or lose its own references.
//! Death: the broker empties the row of the dead and recycles in the place of a dead owner.

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
mod row;
#[cfg(not(baton_loom))]
mod waiting;

pub(crate) use chunk::{AttachedBits, Chunk, Chunks};
#[cfg(baton_loom)]
pub(crate) use drops::Drops;
pub(crate) use entry::Entries;
pub(crate) use freetest::{FreeTest, Rows};
#[cfg(not(baton_loom))]
pub(crate) use grow::{Grant, Source};
pub(crate) use note::{Granted, Note};
pub(crate) use openings::{Closed, Openings};
#[cfg(not(baton_loom))]
pub use pool::PoolStats;
#[cfg(not(baton_loom))]
pub(crate) use pool::{Pool, Storage};
pub(crate) use ranges::Ranges;
pub(crate) use row::Row;
