//! Descriptors of other sessions' files that this session keeps for the next broker.
//!
//! A file of another session is closed once it is mapped, unless the broker gives this session custody of it.
//! The broker sees to it that of each file enough processes have one.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Access;
use super::arriving::Arriving;
use super::file_key::FileKey;
use crate::error::{Code, Error};
use crate::sys::most_open_files;
use crate::wire::ops::{CustodyReply, CustodyRequest};

/// So many descriptors a process has that custody leaves alone; of the others it takes half.
const NEEDED: u64 = 48;

/// What a session has custody of.
#[derive(Debug, Default)]
pub(crate) struct Custody(Mutex<HashMap<FileKey, Arc<OwnedFd>>>);

impl Custody {
    fn all(&self) -> MutexGuard<'_, HashMap<FileKey, Arc<OwnedFd>>> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Keeps a descriptor; where there is one of the file the new one is closed.
    pub(crate) fn keep(&self, k: FileKey, fd: OwnedFd) {
        self.all().entry(k).or_insert_with(|| Arc::new(fd));
    }

    /// Whether this process keeps so many files already that those which it needs might find no descriptor.
    fn is_full(&self, k: FileKey) -> bool {
        let all = self.all();
        !all.contains_key(&k) && all.len() as u64 >= most_open_files().saturating_sub(NEEDED) / 2
    }

    pub(crate) fn get(&self, k: FileKey) -> Option<Arc<OwnedFd>> {
        self.all().get(&k).cloned()
    }

    pub(crate) fn let_go(&self, k: FileKey) {
        self.all().remove(&k);
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }

    pub(crate) fn snapshot(&self) -> HashMap<FileKey, Arc<OwnedFd>> {
        self.all().clone()
    }
}

impl Access {
    /// Tells the broker of files that could not be received for lack of descriptors: it counts on this session to keep
    /// them, perhaps.
    #[cold]
    pub(crate) fn lacks(&self, e: &Error, files: impl Iterator<Item = FileKey>) {
        if e.code() != Code::TooMany {
            return;
        }
        let closed = files.filter(|k| self.memory.files.custody.get(*k).is_none()).map(FileKey::item).collect();
        self.tell("custody", &CustodyRequest { closed, ..CustodyRequest::default() });
    }

    /// Keeps a file that came with the answer to a request, or tells the broker that this process has no descriptor
    /// for it.
    pub(crate) fn keep_new(&self, k: FileKey, fd: OwnedFd, before: Arriving) {
        if self.memory.files.custody.is_full(k) {
            self.tell("custody", &CustodyRequest { closed: vec![k.item()], ..CustodyRequest::default() });
            return;
        }
        self.memory.files.custody.keep(k, fd);
        if let Some(fd) = self.memory.files.custody.get(k) {
            self.arrived(before, k, fd.as_fd());
        }
    }

    /// Asks the broker what this session is to keep, and what not any more. What it does not say that it
    /// keeps, for the broker is away or no descriptor is free, others are asked to keep.
    pub(crate) fn take_custody(&self) {
        let mut ask = CustodyRequest::default();
        loop {
            let before = self.arriving();
            let Ok((ok, fds)) = self.call_fds::<_, CustodyReply>("custody", &ask) else { return };
            if fds.len() != ok.given.len() {
                return;
            }
            let custody = &self.memory.files.custody;
            if ok.given.is_empty() && ok.ended.is_empty() {
                return;
            }
            ask = CustodyRequest { kept: Vec::new(), closed: ok.ended };
            ask.closed.iter().filter_map(FileKey::of).for_each(|k| custody.let_go(k));
            for (item, fd) in ok.given.into_iter().zip(fds) {
                match FileKey::of(&item) {
                    Some(k) if !custody.is_full(k) => {
                        self.keep_new(k, fd, before);
                        ask.kept.push(item);
                    }
                    _ => ask.closed.push(item),
                }
            }
        }
    }
}
