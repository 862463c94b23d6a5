//! Chunks of which a session counts what it inherited by a fork.
//!
//! The mappings of the parent are there in a child, at their addresses, and are the child's own session's from its
//! beginning: so an array of before the fork lies in memory of the child's session.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::attach::{Attached, Attachment};
use super::file_key::FileKey;
use super::session_files::{Peer, map_file};
use super::{Memory, SessionFiles};
use crate::error::Result;
use crate::layout::{PRIVATE, session_file};
use crate::ledger::Entries;
use crate::message::Ref;
use crate::shm::{Region, Segment};

/// A chunk of whose storages a session holds some.
#[derive(Debug, Clone)]
pub(crate) struct Inherited {
    pub(crate) chunk: u32,
    pub(crate) serial: u64,
    /// The file of its owner, by slot; mapped for reading, in children too.
    pub(crate) slot: u32,
    pub(crate) file: Region,
    /// Its segment as the parent had mapped it.
    pub(crate) mapped: Arc<Segment>,
    /// What a new broker needs of it.
    pub(crate) owner: (u64, Option<Arc<OwnedFd>>),
    pub(crate) segment: (u64, Option<Arc<OwnedFd>>),
}

impl Inherited {
    /// `before`: what the session inherited of the chunk itself, whose descriptors go on: that of the owner's file is for
    /// writing, as the owner had it, and what the session has custody of is for reading alone.
    pub(crate) fn new(files: &SessionFiles, chunk: u32, at: Attached, before: Option<&Inherited>) -> Inherited {
        let (owner, s) = (&at.owner, &at.segment);
        let kept = || s.fd().or_else(|| files.custody.get(FileKey::Segment(s.serial)));
        let owners = before.and_then(|b| b.owner.1.clone());
        Inherited {
            chunk,
            serial: at.chunk.serial,
            slot: owner.slot,
            file: owner.file.clone(),
            mapped: s.clone(),
            owner: (owner.serial, owners.or_else(|| files.file_of(owner.serial))),
            segment: (s.serial, kept().or_else(|| before?.segment.1.clone())),
        }
    }

    /// The entries of its owner.
    pub(crate) fn entries(&self) -> Entries {
        Entries::new(&self.file)
    }
}

impl Memory {
    /// Attaches the session to what it inherited, over the mappings of its parent. The broker has attached it, and its
    /// refcounts count what it holds. What cannot be attached now is attached when it is needed.
    pub(super) fn adopt(&self) {
        for i in &self.inherited {
            let listed = self.files.chunks.load(i.chunk);
            let listed = listed.filter(|c| c.serial == i.serial && c.segment_serial == i.segment.0);
            let (Some(of), Some(segment)) = (listed, self.adopted(i)) else { continue };
            let known = self.files.known(i.slot, i.owner.0);
            let owner = known.unwrap_or_else(|| self.files.add(Peer::of(i.slot, i.owner.0, i.file.clone())));
            segment.note_chunk(i.chunk);
            if let Ok(made) = Attachment::new(of, &owner, segment, false) {
                self.attached.put(i.chunk, Some(made), &self.files.refcounts);
            }
        }
    }

    /// The segment of an inherited chunk, over the mappings of the parent; `None` of one that was not mapped.
    fn adopted(&self, i: &Inherited) -> Option<Arc<Segment>> {
        let mut all = self.segments();
        if let Some(s) = all.get(&i.segment.0) {
            return Some(s.clone());
        }
        let s = Arc::new(Segment::inherited(&i.mapped, i.segment.1.clone())?);
        all.insert(s.serial, s.clone());
        Some(s)
    }

    /// Says that there is a way to a storage from now on, where that has not been said: before a process that holds
    /// it first names it anywhere. `own`: the storage is of this session's memory.
    #[inline(always)]
    pub(crate) fn share(&self, r: Ref, own: bool) -> Result<()> {
        if own {
            self.files.entries.share(r.index);
        } else if !self.inherited.is_empty() {
            return self.share_inherited(r);
        }
        Ok(())
    }

    /// As `share`, of a storage that this process may have inherited: its owner, the parent, has not said so where it
    /// has named the storage nowhere. The parent's file came with the fork, and is mapped for as long as this takes.
    #[cold]
    fn share_inherited(&self, r: Ref) -> Result<()> {
        let of = self.inherited.iter().find(|i| i.serial == r.serial);
        if let Some(i) = of.filter(|i| i.entries().word(r.index) & PRIVATE != 0)
            && let Some(file) = &i.owner.1
        {
            Entries::new(&map_file(file, session_file::BYTES, true)?).share_inherited(r.index);
        }
        Ok(())
    }
}
