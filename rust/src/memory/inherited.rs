//! Chunks of which a session counts what it inherited by a fork.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::SessionFiles;
use super::attach::Attached;
use super::custody::FileKey;
use crate::ledger::Entries;

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
