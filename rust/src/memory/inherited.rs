//! Chunks of which a session counts what it inherited by a fork.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::attach::Attached;
use super::file_key::FileKey;
use super::session_files::map_file;
use super::{Memory, SessionFiles};
use crate::error::Result;
use crate::layout::{PRIVATE, session_file};
use crate::ledger::Entries;
use crate::message::Ref;

/// A chunk of whose storages a session holds some.
#[derive(Debug, Clone)]
pub(crate) struct Inherited {
    pub(crate) chunk: u32,
    pub(crate) serial: u64,
    /// Mapped for reading, in children too.
    pub(crate) entries: Entries,
    /// What a new broker needs of it.
    pub(crate) owner: (u64, Option<Arc<OwnedFd>>),
    pub(crate) segment: (u64, Option<Arc<OwnedFd>>),
}

impl Inherited {
    pub(crate) fn new(files: &SessionFiles, chunk: u32, at: Attached) -> Inherited {
        let (serial, s) = (at.chunk.serial, &at.segment);
        let segment = (s.serial, s.fd().or_else(|| files.custody.get(FileKey::Segment(s.serial))));
        let owner = (at.owner.serial, files.file_of(at.owner.serial));
        Inherited { chunk, serial, entries: at.entries.clone(), owner, segment }
    }
}

impl Memory {
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
        if let Some(i) = of.filter(|i| i.entries.word(r.index) & PRIVATE != 0)
            && let Some(file) = &i.owner.1
        {
            Entries::new(&map_file(file, session_file::BYTES, true)?).share_inherited(r.index);
        }
        Ok(())
    }
}
