//! Waiting for memory where there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Access, Memory};
use crate::deadline::{deadline, within};
use crate::error::{Error, Result};
use crate::shm::Parking;

/// Tells allocations that wait that there may be memory.
#[derive(Debug)]
pub(super) struct MemoryWaiters {
    parking: Arc<Parking>,
    waiting: AtomicU32, // allocations
    news: AtomicU64,    // own last references dropped while a thread waits, and what the broker told
}

impl MemoryWaiters {
    pub(super) fn new(parking: Arc<Parking>) -> MemoryWaiters {
        MemoryWaiters { parking, waiting: AtomicU32::new(0), news: AtomicU64::new(0) }
    }
}

impl Memory {
    /// Notes that memory may have come free.
    #[inline]
    pub(crate) fn memory_freed(&self) {
        if self.waiters.waiting.load(Ordering::Relaxed) > 0 {
            self.waiters.news.fetch_add(1, Ordering::Relaxed);
            self.waiters.parking.wake();
        }
    }
}

impl Access {
    /// Tries again until the time has passed, without a limit when there is none. A drop here, a reader's ring or the
    /// broker's notice make it look again. No event tells when the last holder elsewhere lets go, so it
    /// looks once a second as well.
    pub(crate) fn wait_for_memory<T>(
        &self,
        timeout: Option<Duration>,
        mut make: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        if timeout == Some(Duration::ZERO) {
            return make(); // a caller that does not wait for memory gives the broker the time that it takes
        }
        let until = deadline(timeout);
        let mut make = || within(until, &mut make);
        let full = |made: &Result<T>| made.as_ref().is_err_and(Error::is_full);
        let first = make();
        if !full(&first) || until.is_some_and(|u| Instant::now() >= u) {
            return first;
        }
        self.memory.waiters.waiting.fetch_add(1, Ordering::SeqCst);
        let made = loop {
            let (news, rung) = (self.memory.waiters.news.load(Ordering::Relaxed), self.waiter.parking.bell());
            let made = make();
            let now = Instant::now();
            if !full(&made) || until.is_some_and(|u| now >= u) {
                break made;
            }
            let look = now + Duration::from_secs(1);
            let changed = || {
                self.memory.waiters.news.load(Ordering::Relaxed) != news
                    || self.waiter.parking.bell() != rung
                    || self.is_closed()
            };
            if let Err(e) = self.wait(None, None, Some(until.map_or(look, |u| u.min(look))), changed) {
                break Err(e);
            }
        };
        self.memory.waiters.waiting.fetch_sub(1, Ordering::SeqCst);
        made
    }
}
