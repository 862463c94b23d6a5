//! What a session has mapped, by serial.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, RwLockReadGuard};

use super::Memory;
use super::file_key::FileKey;
use super::session_files::Peer;
use crate::error::Result;
use crate::shm::Segment;

/// Files by serial, that of each session and the memory: their descriptors, or that there is none here.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub(crate) sessions: BTreeMap<u64, Option<Arc<OwnedFd>>>,
    pub(crate) segments: BTreeMap<u64, Option<Arc<OwnedFd>>>,
}

fn add(to: &mut BTreeMap<u64, Option<Arc<OwnedFd>>>, serial: u64, fd: Option<Arc<OwnedFd>>) {
    let known = to.entry(serial).or_default();
    *known = known.take().or(fd);
}

impl Memory {
    pub(super) fn segments(&self) -> MutexGuard<'_, HashMap<u64, Arc<Segment>>> {
        self.segments.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Keeps a segment that this process made.
    pub(crate) fn know(&self, s: &Arc<Segment>) {
        self.segments().insert(s.serial, s.clone());
    }

    /// The segment of a serial, where it is known here.
    pub(crate) fn known_segment(&self, serial: u64) -> Option<Arc<Segment>> {
        self.segments().get(&serial).cloned()
    }

    /// Every segment known here.
    pub(crate) fn all_segments(&self) -> Vec<Arc<Segment>> {
        self.segments().values().cloned().collect()
    }

    /// Maps a segment of which a descriptor has come.
    pub(crate) fn map_given(
        &self,
        index: u32,
        serial: u64,
        bytes: u64,
        fd: &OwnedFd,
        write: bool,
    ) -> Result<Arc<Segment>> {
        let mut all = self.segments();
        if let Some(s) = all.get(&serial) {
            s.map_from(fd, write)?;
            return Ok(s.clone());
        }
        let s = Arc::new(Segment::mapped_from(index, serial, bytes, fd, write)?);
        all.insert(serial, s.clone());
        Ok(s)
    }

    /// Marks a grant as under way.
    pub(crate) fn granting(&self) -> RwLockReadGuard<'_, ()> {
        self.granting.read().unwrap_or_else(|p| p.into_inner())
    }

    /// The files of everything mapped here, for a new broker: also of owners that have ended and of segments
    /// that have been trimmed, as long as something of them is held.
    pub(crate) fn mapped(&self) -> Mapped {
        let mut all = Mapped::default();
        let mut sessions: Vec<Arc<Peer>> = self.files.all_peers();
        for segment in self.all_segments() {
            add(&mut all.segments, segment.serial, segment.fd());
        }
        for (segment, owner) in self.attached.all() {
            add(&mut all.segments, segment.serial, segment.fd());
            sessions.push(owner);
        }
        for i in &self.inherited {
            add(&mut all.segments, i.segment.0, i.segment.1.clone());
            add(&mut all.sessions, i.owner.0, i.owner.1.clone());
        }
        sessions.into_iter().for_each(|p| add(&mut all.sessions, p.serial, self.files.file_of(p.serial)));
        for (k, fd) in self.files.custody.snapshot() {
            match k {
                FileKey::Session(serial) => add(&mut all.sessions, serial, Some(fd)),
                FileKey::Segment(serial) => add(&mut all.segments, serial, Some(fd)),
            }
        }
        all
    }

    /// The segment in whose shared mappings `n` bytes at an address lie, the first one's offset, and
    /// whether that mapping is writable.
    pub(crate) fn segment_of(&self, address: *const u8, n: u64) -> Option<(Arc<Segment>, u64, bool)> {
        let all = self.segments();
        all.values().find_map(|s| s.offset_of(address, n).map(|(at, writable)| (s.clone(), at, writable)))
    }

    /// Forgets segments that the broker has taken back. Their mappings go with their last user.
    pub(crate) fn trim(&self, gone: &[u64]) {
        for chunk in self.attached.over(gone) {
            self.attached.put(chunk, None, &self.files.refcounts);
        }
        self.segments().retain(|serial, _| !gone.contains(serial));
    }
}
