//! How a pool gets memory and gives it back. One thread at a time talks with the source, without the
//! pool's lock: while a broker does not answer, threads that find what they need in the pool go on.

use std::sync::{Arc, MutexGuard};

use super::Holders;
use super::pool::{MAX_SLAB, Pool, State};
use crate::error::{Error, Result, disagree};
use crate::layout::PAGE;
use crate::shm::Segment;
use crate::turns::{Turn, Turnstile};

const MAX_CHUNK_ASK: u32 = 64;

/// Memory that the broker lets a session allocate in: a segment mapped for writing with its pages
/// reserved, and index chunks over it, as (chunk, serial).
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) segment: Arc<Segment>,
    pub(crate) chunks: Vec<(u32, u64)>,
}

/// Where a pool gets memory and gives it back: the session's broker.
pub(crate) trait Source: Holders {
    /// The turn to ask, which is waited for as long as for an answer.
    fn turn<'a>(&self, of: &'a Turnstile<()>) -> Result<Turn<'a, ()>>;
    /// Asks for a segment of at least `bytes` with `chunks` index chunks whose entries it reserves. With
    /// `fallback` a smaller one, or another attempt, follows a refusal for want of room.
    fn grant(&self, bytes: u64, chunks: u32, fallback: bool) -> Result<Grant>;
    /// Asks for more indices over a segment.
    fn more_chunks(&self, segment: &Arc<Segment>, count: u32) -> Result<Vec<(u32, u64)>>;
    /// Gives an empty segment back; false keeps it here.
    fn give_back(&self, segment: &Arc<Segment>) -> bool;
}

impl Pool {
    /// Gets indices for a slab that has memory, or a slab. Others use the pool meanwhile, so what was
    /// got may be gone again: the caller looks anew.
    #[cold]
    pub(super) fn grow<'a>(
        &'a self,
        p: MutexGuard<'a, State>,
        source: &dyn Source,
        class: u64,
        fallback: bool,
    ) -> Result<MutexGuard<'a, State>> {
        let had = p.grown;
        drop(p);
        let _turn = source.turn(&self.asking)?;
        let p = self.state();
        if p.grown != had {
            return Ok(p); // another thread has asked meanwhile
        }
        let slabs = p.slabs.len();
        drop(p);
        for i in 0..slabs {
            if self.more_indices(source, i, class)? {
                return Ok(self.state());
            }
        }
        let grant = self.more_memory(source, class, fallback)?;
        if grant.segment.bytes < class || grant.chunks.is_empty() {
            return Err(disagree(format!("{} bytes were granted, not {class}", grant.segment.bytes)));
        }
        let mut p = self.state();
        p.add_slab(grant);
        Ok(p)
    }

    /// Asks for index chunks where a slab has memory but no index. The caller has the turn.
    fn more_indices(&self, source: &dyn Source, i: usize, class: u64) -> Result<bool> {
        let short = {
            let p = self.state();
            let slab = p.slabs[i].as_ref().filter(|s| s.indices.is_empty() && s.free.has(class));
            slab.map(|s| (s.segment.clone(), s.chunks.clamp(1, MAX_CHUNK_ASK)))
        };
        let Some((segment, count)) = short else { return Ok(false) };
        match source.more_chunks(&segment, count) {
            Ok(chunks) => {
                self.state().add_chunks(i, &chunks);
                Ok(!chunks.is_empty())
            }
            Err(e) if e.is_unanswered() => Err(e),
            Err(_) => Ok(false), // memory of its own comes with indices
        }
    }

    /// Asks for a slab: of the usual size, then, since a quota may have room for what is needed if not for
    /// that, smaller. The caller has the turn. With `fallback` it tries again after the smallest, too.
    fn more_memory(&self, source: &dyn Source, class: u64, fallback: bool) -> Result<Grant> {
        let (granted, first) = {
            let p = self.state();
            (p.stats.granted, p.first)
        };
        let full = |grant: &Result<Grant>| grant.as_ref().is_err_and(Error::is_full);
        let (usual, least) = (granted.clamp(first, MAX_SLAB).max(class), class.max(first));
        let mut grant = source.grant(usual, 1, true);
        if full(&grant) && usual > least {
            grant = source.grant(least, 1, true);
        }
        if full(&grant) {
            self.trim(source, None);
            grant = source.grant(class.next_multiple_of(PAGE), 1, fallback);
        }
        grant
    }

    /// Gives empty slabs back, all but one; the bytes given. The caller has the turn. A slab that is on its way is
    /// no session's to allocate in.
    pub(super) fn trim(&self, source: &dyn Source, but: Option<usize>) -> u64 {
        let mut p = self.state();
        p.unbin();
        let mut given = 0;
        for i in 0..p.slabs.len() {
            let Some(slab) = p.slabs[i].take_if(|s| s.is_empty() && but != Some(i)) else { continue };
            drop(p);
            let gone = source.give_back(&slab.segment);
            p = self.state();
            if gone {
                p.forget_slab(i, slab.segment.bytes);
                given += slab.segment.bytes;
            } else {
                p.slabs[i] = Some(slab);
            }
        }
        given
    }
}
