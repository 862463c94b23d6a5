//! What this process holds: sets of storages that its refcounts count, the lanes that they were taken from, and the
//! opening of a session that all of them keep.

mod alloc;
#[cfg(test)]
pub(crate) mod fixture;
mod inherited;
mod lane;
mod leases;
mod opening;
mod references;
mod shared;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use lane::{Acknowledge, LaneInfo, LaneView};
pub use leases::Lease;
pub(crate) use leases::storage_ref;
pub(crate) use opening::{Above, Heir, Heirs, Opening};
pub(crate) use references::{Holding, KeptBy, One, Received, Storages, Used, Uses};
pub(crate) use shared::{Owners, Shared};
pub(crate) use view::{MappedFile, Origin, Place, Span, View};
