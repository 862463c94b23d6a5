//! References that this process counts: taking what a place names, and letting go.

use super::attach::Attached;
use super::{Access, Memory};
use crate::crash_point;
use crate::error::Result;
use crate::layout::limits;
use crate::message::Ref;

impl Memory {
    /// Counts a reference down and queues a storage of the session's own for reclaim.
    #[inline]
    pub(crate) fn let_go(&self, index: u32, own: bool) {
        if self.count_down(index, own) {
            self.pool.dropped(index);
            self.queued_for_reclaim(index);
        }
    }

    /// Counts a reference down. Whether the storage is one of the session's own that may be free now: then the caller
    /// queues it at the pool, and says so by `queued_for_reclaim`.
    #[inline]
    pub(crate) fn count_down(&self, index: u32, own: bool) -> bool {
        self.files.refcounts.drop(index) && own
    }

    /// Notifies all others that may wait for a storage that was queued at the pool.
    #[inline]
    pub(crate) fn queued_for_reclaim(&self, index: u32) {
        if let Some(b) = self.beside.get() {
            b.dropped(index);
        }
        if let Some(h) = self.huge.get() {
            h.dropped(index);
        }
        self.memory_freed();
    }
}

impl Access {
    /// Counts one reference up in the session's own refcounts.
    #[inline]
    pub(crate) fn count_up(&self, index: u32) -> Result<()> {
        self.memory.files.refcounts.take(index).map_err(|e| self.refused(e))
    }

    /// Counts a ref up in the session's own refcounts. The caller then looks again at the place that named it, and
    /// lets go if it has changed. The count keeps the memory mapped whatever the broker trims.
    #[inline(always)]
    pub(crate) fn hold(&self, reference: Ref) -> Result<Attached> {
        match self.hold_known(reference) {
            Some(a) => Ok(a),
            None => self.hold_any(reference),
        }
    }

    /// As `hold`, where the session is attached to the chunk and nothing comes in between.
    #[inline(always)]
    pub(crate) fn hold_known(&self, reference: Ref) -> Option<Attached> {
        let Ref { serial, index, .. } = reference;
        let place = self.memory.attached.place(index / limits::CHUNK_INDICES)?;
        if serial == 0 || !place.is_of(serial) {
            return None;
        }
        let open = self.closed.take_known(&self.memory.files.refcounts, index)?;
        match place.find(serial) {
            Some(a) if open && !self.is_lost() && !self.is_undecided() => Some(a),
            _ => {
                self.memory.let_go(index, true); // as in `hold_any`
                None
            }
        }
    }

    #[cold]
    fn hold_any(&self, reference: Ref) -> Result<Attached> {
        let chunk = reference.index / limits::CHUNK_INDICES;
        loop {
            if reference.serial == 0 || !self.memory.attached.has(chunk, reference.serial) {
                self.attach(chunk, reference)?;
            }
            let taken = self.closed.take(&self.memory.files.refcounts, reference.index);
            let ended = !taken.map_err(|e| self.refused(e))? || self.is_lost();
            let undecided = self.is_undecided();
            if let Some(a) = self.memory.attached.find(chunk, reference.serial).filter(|_| !ended && !undecided) {
                return Ok(a);
            }
            self.memory.let_go(reference.index, true); // trimmed meanwhile; the index may be the pool's by now
            if ended {
                return Err(self.why_closed());
            }
            if undecided {
                self.await_decision()?;
            }
        }
    }

    /// Counts all refs up, or none.
    pub(crate) fn hold_all(&self, refs: &[Ref], into: &mut Vec<Attached>) -> Result<()> {
        into.clear();
        for r in refs {
            match self.hold(*r) {
                Ok(a) => {
                    into.push(a);
                    crash_point::at("take-counting");
                }
                Err(e) => {
                    self.let_go_all(refs, into);
                    into.clear();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Counts down what `hold_all` counted up.
    pub(crate) fn let_go_all(&self, refs: &[Ref], held: &[Attached]) {
        for (r, a) in refs.iter().zip(held) {
            self.memory.let_go(r.index, a.own);
        }
    }
}
