//! Files that come with an answer while another broker takes the instance over: it asks for what this session has,
//! and what is not mapped yet is in no list. It gets such a file behind its list.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use super::inner::Inner;
use crate::wire::ops::{Ignored, Restore, RestoreItem};

/// How many brokers had asked for this session's files before a request was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arriving(u64);

impl Inner {
    /// Before a request whose answer brings a file.
    pub(super) fn arriving(&self) -> Arriving {
        Arriving(self.pages.restores.load(Ordering::SeqCst))
    }

    /// Hands a file over, once it would be listed, to each broker that has asked since. One that goes away before
    /// it has the file is followed by one that gets the list.
    ///
    /// SYNC restores: the file is listed first and the count read second; the list is made behind the count. So
    /// the one or the other has it.
    pub(super) fn arrived(&self, before: Arriving, role: &'static str, serial: u64, fd: BorrowedFd<'_>) {
        let Arriving(mut asked) = before;
        loop {
            let now = self.pages.restores.load(Ordering::SeqCst);
            if now == asked {
                return;
            }
            asked = now;
            let items = &[RestoreItem { role, serial }];
            let _ = self.call_with::<_, Ignored>("restore", &Restore { items }, &[fd]);
        }
    }
}
