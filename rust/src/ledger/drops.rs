//! The hand-back of storages to their pool by threads that do not get its lock.

use crate::sync::{AtomicBool, Mutex, Ordering};

/// Indices whose own count fell to zero while another thread had the pool: for that thread, or the next that has it.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    list: Mutex<Vec<u32>>,
    news: AtomicBool, // whether there are any; changed with the list locked
}

impl Drops {
    #[cold]
    pub(crate) fn note(&self, index: u32) {
        let mut list = self.list.lock().unwrap_or_else(|p| p.into_inner());
        list.push(index);
        self.news.store(true, Ordering::Relaxed);
    }

    /// What was noted, in exchange for an empty list; `None` where there is nothing, or where that is noted just now
    /// and left for the next look: the lock orders what is taken, the look without it orders nothing.
    #[inline]
    pub(crate) fn take(&self, spare: &mut Vec<u32>) -> Option<Vec<u32>> {
        if !self.news.load(Ordering::Relaxed) {
            return None;
        }
        let mut list = self.list.lock().unwrap_or_else(|p| p.into_inner());
        self.news.store(false, Ordering::Relaxed);
        Some(std::mem::replace(&mut *list, std::mem::take(spare)))
    }
}
