//! Files that come with an answer while another broker takes the instance over: it asks for what this session has,
//! and what is not mapped yet is in no list. It gets such a file after its list.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Access;
use super::file_key::FileKey;
use crate::error::Result;
use crate::wire::ops::{Ignored, Restore, RestoreItem};

/// How many brokers had asked for this session's files before a request was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arriving(u64);

/// What new brokers have asked for of the files that are here, and may lack.
#[derive(Debug, Default)]
pub(crate) struct Restores {
    /// How many have asked for them.
    asked: AtomicU64,
    /// Those that the present one may lack.
    owed: Mutex<HashSet<FileKey>>,
}

impl Restores {
    /// A broker asks.
    ///
    /// SYNC restores: before anything is listed; pairs with `arrived`.
    pub(crate) fn asked(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
    }

    fn owed(&self) -> MutexGuard<'_, HashSet<FileKey>> {
        self.owed.lock().unwrap_or_else(|p| p.into_inner())
    }
}

impl Access {
    /// Before a request whose answer brings a file.
    pub(crate) fn arriving(&self) -> Arriving {
        Arriving(self.memory.files.restores.asked.load(Ordering::SeqCst))
    }

    /// Hands a file over, once it would be listed, to each broker that has asked since. One that refuses, since it
    /// has no descriptor free, say, is asked again by comparisons.
    ///
    /// SYNC restores: the file is listed first and the count read second; the list is made after the count. So
    /// the one or the other has it.
    pub(crate) fn arrived(&self, before: Arriving, k: FileKey, fd: BorrowedFd<'_>) {
        let Arriving(mut asked) = before;
        loop {
            let Arriving(now) = self.arriving();
            if now == asked {
                return;
            }
            asked = now;
            if self.hand_over_file(k, fd).is_err() {
                self.memory.files.restores.owed().insert(k);
            }
        }
    }

    fn hand_over_file(&self, k: FileKey, fd: BorrowedFd<'_>) -> Result<()> {
        let (role, serial) = k.parts();
        let items = &[RestoreItem { role, serial }];
        self.call_with::<_, Ignored>("restore", &Restore { items }, &[fd]).map(drop)
    }

    /// Hands over what the broker may lack, as far as it is still here.
    pub(crate) fn hand_over_owed(&self) {
        let owed = std::mem::take(&mut *self.memory.files.restores.owed());
        for k in owed {
            if let Some(fd) = self.listed_file(k)
                && self.hand_over_file(k, fd.as_fd()).is_err()
            {
                self.memory.files.restores.owed().insert(k);
            }
        }
    }

    /// The descriptor of a file that a list would name.
    fn listed_file(&self, k: FileKey) -> Option<Arc<OwnedFd>> {
        let known = match k {
            FileKey::Segment(serial) => self.memory.known_segment(serial).and_then(|s| s.fd()),
            FileKey::Session(_) => None,
        };
        known.or_else(|| self.memory.files.custody.get(k))
    }
}
