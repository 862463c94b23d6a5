//! References that this process counts: attaching to chunks, holding what a place names, and
//! checking where it lies.

use std::sync::Arc;

use super::inner::Inner;
use super::pages::Peer;
use super::reader::Acknowledge;
use crate::error::{Code, Error, Result, disagree, expired};
use crate::layout::{ALIGNMENT, limits};
use crate::ledger::{Chunk, Entries};
use crate::message::Ref;
use crate::shm::Segment;
use crate::wire::ops::{AttachRequest, Ignored};

/// A chunk whose owner looks at this session's row: only then may its storages be counted here. It
/// keeps owner's entries and segment mapped.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) chunk: Chunk,
    pub(crate) entries: Entries,
    pub(crate) segment: Arc<Segment>,
    /// Whether this session owns the chunk, so that its pool is to hear of the last drop.
    pub(crate) own: bool,
}

/// A storage that this process counts, and where it lies.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) reference: Ref,
    pub(crate) at: Arc<Attachment>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A set of storages that this process holds together: those of an allocation, or of a message. The
/// row counts each once; drop counts them down.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) inner: Arc<Inner>,
    pub(crate) storages: Vec<Held>,
    pub(crate) acknowledge: Option<Acknowledge>,
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.inner.is_foreign() {
            return; // the parent's row counts it
        }
        for s in &self.storages {
            self.inner.let_go(s.reference.index, s.at.own);
        }
        if let Some(a) = self.acknowledge.take() {
            a.done();
        }
    }
}

impl Held {
    /// The address of the storage's bytes, mapped for a use.
    pub(crate) fn address(&self, write: bool) -> Result<*mut u8> {
        let region = self.at.segment.region(write)?;
        if !region.has(self.offset, self.bytes) {
            let what = format!("storage {} lies outside its segment", self.reference.index);
            return Err(Error::new(Code::InvalidHandle, "its owner is at fault: restart it", what));
        }
        Ok(region.address(self.offset, self.bytes))
    }
}

impl Attachment {
    pub(crate) fn new(chunk: Chunk, owner: &Peer, segment: Arc<Segment>, own: bool) -> Result<Attachment> {
        if chunk.bytes > segment.bytes || chunk.offset > segment.bytes - chunk.bytes {
            return Err(disagree(format!("a chunk of segment {} reaches past it", chunk.segment_serial)));
        }
        Ok(Attachment { chunk, entries: owner.entries.clone(), segment, own })
    }

    /// Reads a held ref's entry and checks it: the generation is the ref's, the range lies in the
    /// chunk's.
    pub(crate) fn locate(self: &Arc<Self>, reference: Ref) -> Result<Held> {
        let e = self.entries.load(reference.index);
        if e.generation != reference.generation {
            return Err(expired("it has been recycled"));
        }
        let end = self.chunk.offset + self.chunk.bytes;
        if e.offset & (ALIGNMENT - 1) != 0 || e.offset < self.chunk.offset || e.offset > end || e.bytes > end - e.offset
        {
            return Err(Error::new(
                Code::InvalidHandle,
                "its owner is at fault: restart it",
                format!(
                    "storage {} claims {} bytes at {}, outside its segment's range",
                    reference.index, e.bytes, e.offset
                ),
            ));
        }
        Ok(Held { reference, at: self.clone(), offset: e.offset, bytes: e.bytes })
    }
}

impl Inner {
    /// Counts a ref up in the own row. The caller then looks again at the place that named it, and
    /// lets go if it has changed. The attachment keeps the memory mapped whatever the broker trims.
    pub(crate) fn hold(&self, reference: Ref) -> Result<Arc<Attachment>> {
        let a = self.attach(reference)?;
        self.pages.row.take(reference.index)?;
        Ok(a)
    }

    /// Counts all refs up, or none.
    pub(crate) fn hold_all(&self, refs: &[Ref], into: &mut Vec<Arc<Attachment>>) -> Result<()> {
        into.clear();
        for r in refs {
            match self.hold(*r) {
                Ok(a) => into.push(a),
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
    pub(crate) fn let_go_all(&self, refs: &[Ref], held: &[Arc<Attachment>]) {
        for (r, a) in refs.iter().zip(held) {
            self.let_go(r.index, a.own);
        }
    }

    /// Counts a reference down and offers an own storage for recycling.
    #[inline]
    pub(crate) fn let_go(&self, index: u32, own: bool) {
        if self.pages.row.drop(index) && own {
            self.pool.dropped(index);
            self.room_made();
        }
    }

    /// The storage in which `n` bytes at an address of this process lie, when the process holds it:
    /// held once more, where the bytes begin in it, and whether the address may be written. Whoever
    /// gives the address keeps its memory meanwhile.
    pub(crate) fn holder_of(self: &Arc<Inner>, address: *const u8, n: u64) -> Option<(Holding, u64, bool)> {
        let (segment, at, writable) = self.segment_of(address, n)?;
        for chunk in segment.chunks() {
            let a = self.attached[chunk as usize].load_full();
            let Some(a) = a.filter(|a| a.chunk.segment_serial == segment.serial) else { continue };
            let first = chunk * limits::CHUNK_INDICES;
            // What this row counts cannot be recycled, so its entry stays as it is.
            for index in (first..first + limits::CHUNK_INDICES).filter(|i| self.pages.row.count(*i) > 0) {
                let e = a.entries.load(index);
                if at < e.offset || at - e.offset > e.bytes || n > e.bytes - (at - e.offset) {
                    continue;
                }
                self.pages.row.take(index).ok()?;
                let reference = Ref { serial: a.chunk.serial, generation: e.generation, index };
                let Ok(held) = a.locate(reference) else {
                    self.let_go(index, a.own);
                    continue;
                };
                let holding = Holding { inner: self.clone(), storages: vec![held], acknowledge: None };
                return Some((holding, at - e.offset, writable));
            }
        }
        None
    }

    fn attach(&self, reference: Ref) -> Result<Arc<Attachment>> {
        let chunk = reference.index / limits::CHUNK_INDICES;
        let Some(place) = self.attached.get(chunk as usize) else {
            let what = format!("no storage index {}", reference.index);
            return Err(Error::new(Code::InvalidHandle, "use the handle as it was made", what));
        };
        if let Some(a) = place.load().as_ref()
            && a.chunk.serial == reference.serial
        {
            return Ok(a.clone());
        }
        self.attach_slow(chunk, reference.serial)
    }

    fn attach_slow(&self, chunk: u32, serial: u64) -> Result<Arc<Attachment>> {
        const GONE: &str = "its memory has been given back";
        let _one = self.attaching.lock().unwrap_or_else(|p| p.into_inner());
        let place = &self.attached[chunk as usize];
        if let Some(a) = place.load_full().filter(|a| a.chunk.serial == serial) {
            return Ok(a);
        }
        if self.pages.chunks.serial(chunk) != serial {
            return Err(expired(GONE));
        }
        self.call::<_, Ignored>("attach", &AttachRequest { chunk, serial })?;
        let record = self.pages.chunks.load(chunk);
        if record.serial != serial {
            return Err(expired(GONE));
        }
        let owner = self.peer(record.owner, record.owner_serial)?;
        let segment = self.segment(record.segment, record.segment_serial, false)?;
        segment.note_chunk(chunk);
        let a = Arc::new(Attachment::new(record, &owner, segment, record.owner_serial == self.pages.serial)?);
        place.store(Some(a.clone()));
        Ok(a)
    }
}
