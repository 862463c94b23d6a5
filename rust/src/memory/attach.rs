//! The chunks that this session is attached to: only their storages may be counted here.
//!
//! What counts a reference reaches the attachment without a lock or a count of its own: the refcount
//! keeps it. A trim takes the note of a chunk away first and looks at the refcounts second, a taker
//! counts up first and looks for the note second; so an attachment whose storages are counted stays,
//! until a later trim finds none of them counted.

use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::session_files::Peer;
use crate::error::{Code, Error, Result, disagree, expired};
use crate::layout::{ALIGNMENT, limits, refcount_word, storage_entry};
use crate::ledger::{Chunk, Entries, Granted, Note, Refcounts};
use crate::message::Ref;
use crate::shm::{Segment, prefetch};
use crate::table::Table;

/// A chunk whose owner looks at this session's refcounts. It keeps the owner's session file and the segment mapped, and
/// their descriptors: a new broker needs both to know what this session holds.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) chunk: Chunk,
    pub(crate) owner: Arc<Peer>,
    pub(crate) entries: Entries,
    pub(crate) segment: Arc<Segment>,
    /// Whether this session owns the chunk, so that its pool is notified of the last drop.
    pub(crate) own: bool,
}

/// An attachment one of whose storages this session's refcounts count, which keeps it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attached(NonNull<Attachment>);

// SAFETY: it is a shared reference to what is Send and Sync.
unsafe impl Send for Attached {}
// SAFETY: as above.
unsafe impl Sync for Attached {}

impl Deref for Attached {
    type Target = Attachment;

    #[inline]
    fn deref(&self) -> &Attachment {
        // SAFETY: the owner of this value counts a storage of the chunk in the refcounts, from before the
        // second look of `Attachments::find` on, and lets go of this value before it counts down.
        // `Attachments::free` frees nothing that is counted.
        unsafe { self.0.as_ref() }
    }
}

/// Every attachment of a session, by chunk.
#[derive(Debug)]
pub(crate) struct Attachments {
    places: Table<Place>,
    /// Whose note is gone; kept while the refcounts count one of their storages.
    past: Mutex<Vec<Past>>,
}

/// What is noted of a chunk.
#[derive(Debug, Default)]
pub(crate) struct Place {
    note: Note<Attachment>,
    seen: OnceLock<Box<Seen>>,
}

impl Granted for Attachment {
    #[inline(always)]
    fn serial(&self) -> u64 {
        self.chunk.serial
    }
}

impl Place {
    /// Whether the session is attached to this grant of the chunk.
    #[inline(always)]
    pub(crate) fn is_of(&self, serial: u64) -> bool {
        self.note.serial() == serial
    }

    /// The attachment to a grant, which is never 0, for a caller that counts a storage of the chunk in
    /// the refcounts already. `None` when it is gone meanwhile.
    #[inline(always)]
    pub(crate) fn find(&self, serial: u64) -> Option<Attached> {
        self.note.find(serial).map(Attached)
    }
}

/// Where the entries of a chunk and the bytes of its storages were when they were last looked at: a
/// storage that is recycled mostly lies where it lay. Hints of what to prefetch, and never read.
#[derive(Debug)]
struct Seen {
    entries: AtomicPtr<u8>,
    ends: [Ends; limits::CHUNK_INDICES as usize],
}

/// The first and the last byte of a storage.
#[derive(Debug, Default)]
struct Ends(AtomicPtr<u8>, AtomicPtr<u8>);

#[derive(Debug)]
struct Past(u32, NonNull<Attachment>);

// SAFETY: it owns what it points to, which is Send.
unsafe impl Send for Past {}

impl Attachments {
    pub(crate) fn new() -> Attachments {
        Attachments { places: Table::new(limits::CHUNKS), past: Mutex::default() }
    }

    /// What is noted of a chunk, where ever anything was.
    #[inline(always)]
    pub(crate) fn place(&self, chunk: u32) -> Option<&Place> {
        self.places.get(chunk)
    }

    /// Whether the session is attached to this grant of a chunk.
    #[inline]
    pub(crate) fn has(&self, chunk: u32, serial: u64) -> bool {
        self.place(chunk).is_some_and(|p| p.is_of(serial))
    }

    /// The grant of a chunk that the session is attached to, 0 for none.
    pub(crate) fn serial(&self, chunk: u32) -> u64 {
        self.places.get(chunk).map_or(0, |p| p.note.serial())
    }

    /// As [`Place::find`].
    #[inline]
    pub(crate) fn find(&self, chunk: u32, serial: u64) -> Option<Attached> {
        self.place(chunk)?.find(serial)
    }

    /// Starts to fetch what taking a reference will need, all at once.
    #[inline]
    pub(crate) fn expect(&self, index: u32, refcounts: &Refcounts) {
        let Some(place) = self.places.get(index / limits::CHUNK_INDICES) else { return };
        refcounts.prefetch(index);
        if let Some(seen) = place.seen.get() {
            let i = index % limits::CHUNK_INDICES;
            let entries = seen.entries.load(Ordering::Relaxed);
            prefetch(entries.wrapping_add((u64::from(i) * storage_entry::SIZE) as usize));
            let Ends(first, last) = &seen.ends[i as usize];
            prefetch(first.load(Ordering::Relaxed));
            prefetch(last.load(Ordering::Relaxed));
        }
    }

    /// Notes where a counted storage lies, for `expect`: its next content mostly comes in the same place.
    #[inline(always)]
    pub(crate) fn note_at(&self, index: u32, at: Attached, offset: u64, bytes: u64) {
        if at.segment.device().is_none()
            && let Some(region) = at.segment.mapped(false)
        {
            self.note(index, at, region.address(offset, bytes), bytes);
        }
    }

    #[inline(always)]
    fn note(&self, index: u32, at: Attached, bytes: *mut u8, n: u64) {
        let Some(place) = self.places.get(index / limits::CHUNK_INDICES) else { return };
        let seen = place.seen.get_or_init(|| {
            let ends = std::array::from_fn(|_| Ends::default());
            Box::new(Seen { entries: AtomicPtr::new(null_mut()), ends })
        });
        let Ends(first, last) = &seen.ends[(index % limits::CHUNK_INDICES) as usize];
        let end = bytes.wrapping_add(n.saturating_sub(1) as usize);
        if first.load(Ordering::Relaxed) != bytes || last.load(Ordering::Relaxed) != end {
            first.store(bytes, Ordering::Relaxed);
            last.store(end, Ordering::Relaxed);
            let chunk = index - index % limits::CHUNK_INDICES;
            seen.entries.store(at.entries.address(chunk), Ordering::Relaxed);
        }
    }

    /// Notes an attachment, or that there is none any more, and frees those that nothing counts.
    pub(crate) fn put(&self, chunk: u32, new: Option<Attachment>, refcounts: &Refcounts) {
        let mut past = self.past.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(old) = self.places.at(chunk).note.set(new.map(Box::new)) {
            past.push(Past(chunk, old));
        }
        past.retain(|p| {
            let counted = counts(refcounts, p.0);
            if !counted {
                // SAFETY: it was made by Box, no thread can find it any more, and no thread that found it
                // counts a storage of its chunk.
                drop(unsafe { Box::from_raw(p.1.as_ptr()) });
            }
            counted
        });
    }

    /// The memory that is attached to, or that something counted in the refcounts was, each with its owner's session
    /// file.
    pub(crate) fn all(&self) -> Vec<(Arc<Segment>, Arc<Peer>)> {
        // While the lock is held no attachment is freed.
        let past = self.past.lock().unwrap_or_else(|p| p.into_inner());
        let noted = self.places.iter().filter_map(|(_, p)| p.note.get());
        let both = |at: NonNull<Attachment>| {
            // SAFETY: it is noted, or among the past ones, and such live.
            let a = unsafe { at.as_ref() };
            (a.segment.clone(), a.owner.clone())
        };
        noted.chain(past.iter().map(|p| p.1)).map(both).collect()
    }

    /// The segments of the chunks that this session owns.
    pub(crate) fn own(&self) -> Vec<u64> {
        let _kept = self.past.lock().unwrap_or_else(|p| p.into_inner());
        // SAFETY: it is noted, and what is noted lives while the lock is held.
        let note = |(_, p): (u32, &Place)| p.note.get().map(|at| unsafe { at.as_ref() });
        self.places.iter().filter_map(note).filter(|a| a.own).map(|a| a.chunk.segment_serial).collect()
    }

    /// Whether the refcounts count anything that this session is, or was, attached to.
    pub(crate) fn count_any(&self, refcounts: &Refcounts) -> bool {
        let past = self.past.lock().unwrap_or_else(|p| p.into_inner());
        self.grants().map(|(chunk, _)| chunk).chain(past.iter().map(|p| p.0)).any(|chunk| counts(refcounts, chunk))
    }

    /// The chunks that the session is attached to, with the serials of their grants.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (u32, u64)> {
        let grants = self.places.iter().map(|(chunk, p)| (chunk, p.note.serial()));
        grants.filter(|(_, serial)| *serial != 0)
    }

    /// The chunks over some segments.
    pub(crate) fn over(&self, segments: &[u64]) -> Vec<u32> {
        // While the lock is held no attachment is freed.
        let _kept = self.past.lock().unwrap_or_else(|p| p.into_inner());
        let over = |p: &Place| {
            // SAFETY: it is noted, and what is noted lives.
            let a = p.note.get().map(|at| unsafe { at.as_ref() });
            a.is_some_and(|a| segments.contains(&a.chunk.segment_serial))
        };
        self.places.iter().filter(|(_, p)| over(p)).map(|(chunk, _)| chunk).collect()
    }
}

pub(crate) fn counts(refcounts: &Refcounts, chunk: u32) -> bool {
    let first = chunk * limits::CHUNK_INDICES;
    (first..first + limits::CHUNK_INDICES).any(|i| refcounts.load(i) & refcount_word::COUNT_MASK != 0)
}

impl Drop for Attachments {
    fn drop(&mut self) {
        let past = std::mem::take(self.past.get_mut().unwrap_or_else(|p| p.into_inner()));
        let noted = self.places.values_mut().filter_map(|p| p.note.take());
        for at in noted.chain(past.into_iter().map(|p| p.1)) {
            // SAFETY: it was made by Box and belongs to the table alone: a thread that counts a reference
            // keeps the session.
            drop(unsafe { Box::from_raw(at.as_ptr()) });
        }
    }
}

impl Attachment {
    pub(crate) fn new(chunk: Chunk, owner: &Arc<Peer>, segment: Arc<Segment>, own: bool) -> Result<Attachment> {
        if chunk.bytes > segment.bytes || chunk.offset > segment.bytes - chunk.bytes {
            return Err(disagree(format!("a chunk of segment {} reaches past it", chunk.segment_serial)));
        }
        Ok(Attachment { chunk, entries: owner.entries.clone(), owner: owner.clone(), segment, own })
    }
}

impl Attached {
    /// Reads a counted ref's entry and checks it, as `locate` does: where it lies, and its bytes.
    #[inline(always)]
    pub(crate) fn range_of(self, reference: Ref) -> Option<(u64, u64)> {
        let (e, chunk) = (self.entries.load(reference.index), &self.chunk);
        let end = chunk.offset + chunk.bytes;
        let inside =
            e.offset & (ALIGNMENT - 1) == 0 && e.offset >= chunk.offset && e.offset <= end && e.bytes <= end - e.offset;
        (inside && e.generation == reference.generation).then_some((e.offset, e.bytes))
    }

    #[cold]
    pub(super) fn why_not(self, reference: Ref) -> Error {
        let e = self.entries.load(reference.index);
        if e.generation != reference.generation {
            return expired("it has been recycled");
        }
        let what = format!(
            "storage {} claims {} bytes at {}, outside its segment's range",
            reference.index, e.bytes, e.offset
        );
        Error::new(Code::InvalidHandle, "restart the process that owns it", what)
    }
}
