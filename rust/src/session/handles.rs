//! Opening handles.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Session;
use crate::crash_point;
use crate::deadline;
use crate::error::Result;
use crate::handle::Handle;
use crate::holding::Opening;
use crate::tensor::Tensor;
use crate::wire::ops::{Ignored, LeaseRef};

/// How long the bytes of a handle of another host may take by default.
const FETCH: Duration = Duration::from_secs(30);
/// How long the answer of the broker is waited for when that time is over: it tells why.
const AFTER_FETCH: Duration = Duration::from_secs(2);

/// The handle of this host for the same bytes: of a handle of another host the broker brings them here.
fn near<'a>(inner: &Arc<Opening>, h: &'a Handle, time: Duration) -> Result<Cow<'a, Handle>> {
    h.check()?;
    inner.check_open()?;
    if h.host == inner.memory.files.instance {
        return Ok(Cow::Borrowed(h));
    }
    let time = time.min(LONGEST);
    let ask = HandleFetch { handle: h, seconds: time.as_secs_f64().max(0.001) };
    let fetched: HandleFetched =
        deadline::long(Instant::now() + time + AFTER_FETCH, || inner.call("handle.fetch", &ask))?;
    Ok(Cow::Owned(fetched.handle))
}

#[derive(Serialize)]
struct HandleFetch<'a> {
    handle: &'a Handle,
    seconds: f64,
}

#[derive(Deserialize)]
struct HandleFetched {
    handle: Handle,
}

/// More than a broker takes.
const LONGEST: Duration = Duration::from_secs(3600);

impl Session {
    /// Ends a handle's lease before its time; only the session that made it may (`PermissionDenied`).
    pub fn release_handle(&self, h: &Handle) -> Result<()> {
        match h.lease {
            Some(lease) => self.inner()?.call::<_, Ignored>("lease.release", &LeaseRef { lease }).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The tensor of a handle, writable if the handle is. With a lease it redeems it; a handle out
    /// of a tuple is opened while its topic keeps the message. No round trip is made if the memory
    /// is mapped already.
    ///
    /// The bytes of a handle of another host are brought here first, where both brokers run with `--span`, and
    /// opened for reading; that takes 30 s at most ([`open_within`](Session::open_within) says otherwise).
    ///
    /// # Errors
    /// `Expired`, `InvalidHandle`; of handles of other hosts also `Unreachable`, `HostLost`, `Unsupported`,
    /// `OutOfMemory`.
    pub fn open(&self, h: &Handle) -> Result<Tensor> {
        self.open_within(h, FETCH)
    }

    /// As [`open`](Session::open), with the time that the bytes of a handle of another host may take to be here.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    ///
    /// let h = session.from_slice(&[2], &[1.5f32, 2.5])?.freeze().handle(baton::Lease::Once)?;
    /// let x = session.open_within(&h, Duration::from_secs(5))?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.5, 2.5]);
    /// # Ok(()) }
    /// ```
    pub fn open_within(&self, h: &Handle, time: Duration) -> Result<Tensor> {
        let inner = self.inner()?;
        let h = near(inner, h, time)?;
        let t = Tensor::open_unclaimed(inner, &h)?;
        crash_point::at("open-held");
        self.claim(h.lease)?;
        Ok(t)
    }

    /// The tensors of handles that were made together, or none. Errors as of [`open`](Session::open).
    pub fn open_all(&self, handles: &[Handle]) -> Result<Vec<Tensor>> {
        let inner = self.inner()?;
        let handles = handles.iter().map(|h| near(inner, h, FETCH)).collect::<Result<Vec<_>>>()?;
        let all = handles.iter().map(|h| Tensor::open_unclaimed(inner, h)).collect::<Result<Vec<_>>>()?;
        let mut leases: Vec<u64> = handles.iter().filter_map(|h| h.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        leases.into_iter().try_for_each(|lease| self.claim(Some(lease)))?;
        Ok(all)
    }

    fn claim(&self, lease: Option<u64>) -> Result<()> {
        if let Some(lease) = lease {
            self.inner()?.tell("lease.claim", &LeaseRef { lease });
        }
        Ok(())
    }
}
