//! Memory of Baton's on a GPU that a framework has to hand out.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use crate::shm::Segment;

/// Ranges of device addresses that frameworks have of a session: first to end, with their segments.
#[derive(Debug, Default)]
pub(crate) struct Rented(RwLock<BTreeMap<u64, (u64, Arc<Segment>)>>);

impl Rented {
    /// The segment of rented memory in which `n` bytes at an address lie.
    pub(crate) fn segment(&self, at: u64, n: u64) -> Option<Arc<Segment>> {
        let all = self.0.read().unwrap_or_else(|p| p.into_inner());
        let (_, (end, segment)) = all.range(..=at).next_back()?;
        (at <= *end && n <= end - at).then(|| segment.clone())
    }

    pub(crate) fn begin(&self, at: u64, bytes: u64, segment: &Arc<Segment>) {
        let mut all = self.0.write().unwrap_or_else(|p| p.into_inner());
        all.insert(at, (at + bytes, segment.clone()));
    }

    pub(crate) fn end(&self, at: u64) {
        self.0.write().unwrap_or_else(|p| p.into_inner()).remove(&at);
    }
}
