//! Leases, which hold storages while a handle is on its way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{Opening, Shared};
use crate::error::{Error, Result};
use crate::message::Ref;
use crate::sys;
use crate::wire::Keep;
use crate::wire::ops::{Ignored, LeaseRef, LeaseRequest, StorageRef};

/// How long a handle may take to arrive whose lease was refused.
const IN_FLIGHT: Duration = Duration::from_secs(30);

pub(crate) fn storage_ref(r: Ref) -> StorageRef {
    StorageRef { index: r.index, serial: r.serial, generation: r.generation }
}

/// How long a handle protects its tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lease {
    /// For a time; 30 s is usual.
    For(Duration),
    /// Until this session ends.
    Session,
    /// Until a session has opened it, or 30 s after this session ended.
    Once,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease::For(Duration::from_secs(30))
    }
}

impl Lease {
    fn of(self, lease: u64, refs: Vec<StorageRef>) -> LeaseRequest {
        let (seconds, once) = match self {
            Lease::For(d) => (Some(d.as_secs_f64()), false),
            Lease::Session => (None, false),
            Lease::Once => (None, true),
        };
        LeaseRequest { lease, refs, seconds, once }
    }
}

impl Opening {
    /// Makes a lease; its number. One that ends with its first claim is told to the broker, and not waited for: what
    /// `kept` gives holds the storages until the broker does. Where it could not make one, the next is waited for, and
    /// is the error.
    pub(crate) fn lease(&self, refs: Vec<StorageRef>, lease: Lease, kept: impl FnOnce() -> Vec<Shared>) -> Result<u64> {
        let number = (sys::random()? >> 11).max(1); // JSON keeps 53 bits
        if lease == Lease::Once && !self.refused_leases.tell() {
            let line = self.line();
            self.check_open()?;
            if !line.control.is_far_behind() {
                // What cannot be sent is owed.
                let _ = line.control.tell_keeping("lease", &lease.of(number, refs), Box::new(kept()));
                return Ok(number);
            }
        }
        let made = self.call::<_, Ignored>("lease", &lease.of(number, refs));
        if made.as_ref().is_err_and(Error::is_uncertain) {
            self.tell("lease.release", &LeaseRef { lease: number }); // a broker may have made it
        }
        made.map(|_| number)
    }
}

/// Leases that were sent to a broker without waiting, and that it did not make.
#[derive(Debug, Default)]
pub(super) struct RefusedLeases {
    any: AtomicBool,
    /// What they were to hold, and until when it is held here instead.
    held: Mutex<Vec<(Instant, Keep)>>,
}

impl RefusedLeases {
    /// Whether there was one since this was asked last.
    fn tell(&self) -> bool {
        self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::Relaxed)
    }

    fn held(&self) -> MutexGuard<'_, Vec<(Instant, Keep)>> {
        self.held.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Lets go of what was held long enough for a handle to arrive.
    fn forget_old(&self) {
        let now = Instant::now();
        let old: Vec<_> = self.held().extract_if(.., |(until, _)| *until <= now).collect();
        drop(old); // after the lock: it may be the session's end
    }
}

impl Opening {
    /// The broker has answered a lease that was not waited for: it holds what was kept, or does not.
    pub(crate) fn leased(&self, kept: Keep, failed: Option<Error>) {
        if failed.is_some() {
            self.refused_leases.held().push((Instant::now() + IN_FLIGHT, kept));
            self.refused_leases.any.store(true, Ordering::Relaxed);
        }
    }
}

impl Opening {
    /// Lets go of what was held for refused leases, long enough for a handle to arrive.
    pub(crate) fn forget_old_leases(&self) {
        self.refused_leases.forget_old();
    }
}
