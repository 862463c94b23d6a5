//! What threads of one process share, so that loom can take its place in the models.

#[cfg(not(baton_loom))]
pub(crate) use std::sync::{Mutex, atomic::AtomicU64};

#[cfg(baton_loom)]
pub(crate) use loom::sync::{Mutex, atomic::AtomicU64};
