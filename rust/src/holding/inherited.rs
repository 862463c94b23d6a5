//! What is left of a holding in the child of a fork.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Holding;
use crate::error::Result;
use crate::link::forked;
use crate::memory::Held;
use crate::shm::Segment;

impl Holding {
    /// Refuses what a child did not inherit. In the process that made the holding it costs a look.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.inner().is_foreign() { self.check_inherited() } else { Ok(()) }
    }

    #[cold]
    fn check_inherited(&self) -> Result<()> {
        if self.inner().is_lost() {
            return Ok(()); // no holder counts it any more, and it stays mapped
        }
        let heir = self.inner().heir().ok_or_else(forked)?;
        self.storages.iter().filter_map(|s| s.at.segment.device()).try_for_each(|d| d.device.check_process())?;
        let missed = self.storages.iter().find(|s| !self.is_inherited() || !heir.has(s.reference));
        missed.map_or(Ok(()), |s| Err(heir.why_missed(s.reference)))
    }

    /// Whether it was there before the fork began.
    fn is_inherited(&self) -> bool {
        self.era < self.inner().memory.era.load(Ordering::Relaxed)
    }

    /// Lets go of what a child inherited with this holding.
    #[cold]
    pub(crate) fn let_go_inherited(&self) {
        if let Some(heir) = self.inner().heir().filter(|_| self.is_inherited()) {
            self.storages.iter().for_each(|s| heir.let_go(s.reference));
        }
    }

    /// The address of a storage of this holding, mapped for a use.
    #[inline]
    pub(crate) fn address(&self, held: &Held, write: bool) -> Result<*mut u8> {
        if !self.inner().is_foreign() {
            return held.address(write);
        }
        // The session keeps the segment as long as its refcounts count the storage.
        held.address_in(&*self.segment(held, write)?, write)
    }

    /// The segment of a storage of this holding, mapped or to be mapped for a use.
    pub(crate) fn segment(&self, held: &Held, write: bool) -> Result<Arc<Segment>> {
        let s = &held.at.segment;
        if !self.inner().is_foreign() || s.mapped(write).is_some() {
            return Ok(s.clone());
        }
        // Another thread of the parent may have been mapping it: this process maps it anew.
        self.inner().here()?.segment(held.at.chunk.segment, held.at.chunk.segment_serial, write)
    }
}
