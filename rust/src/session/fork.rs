//! Sessions in the child of a fork.
//!
//! A session belongs to the process that opened it: its row and its lanes are not even mapped in a
//! child, its background thread is not there, and a lock may be held for ever. So a child must not
//! touch the sessions that it inherited, not even to drop them. What it reads of their tensors is
//! there as long as the parent holds it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::Session;
use super::inner::Inner;

/// Forks that lie between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
static OPEN: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// How many forks lie behind.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Notes a session that a child would inherit.
pub(crate) fn opened(inner: &Arc<Inner>) {
    let mut open = OPEN.lock().unwrap_or_else(|p| p.into_inner());
    open.retain(|s| s.strong_count() > 0);
    open.push(Arc::downgrade(inner));
}

impl Session {
    /// To be called in the child of a fork before anything else of this crate, with no other thread
    /// running: sessions that were open are the parent's from then on. All that is made of them can
    /// still be dropped, and fails with `Closed` where it would need the session.
    pub fn forked() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        // If another thread held the lock at the fork, it stays locked: then there is no list either.
        let Ok(mut open) = OPEN.try_lock() else { return };
        for inner in open.drain(..).filter_map(|s| s.upgrade()) {
            std::mem::forget(inner); // its mappings must not be undone: their addresses may be others' now
        }
    }
}
