//! Opening handles.

use super::Session;
use crate::crash_point;
use crate::error::Result;
use crate::handle::Handle;
use crate::tensor::Tensor;
use crate::wire::ops::{Ignored, LeaseRef};

impl Session {
    /// Ends a handle's lease before its time; only the session that made it may (`PermissionDenied`).
    pub fn release_handle(&self, h: &Handle) -> Result<()> {
        match h.lease {
            Some(lease) => self.inner()?.call::<_, Ignored>("lease.release", &LeaseRef { lease }).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The tensor of a handle, writable where the handle is. With a lease it redeems it; a handle out
    /// of a tuple is opened while its topic keeps the message. No round trip is made where the memory
    /// is mapped already.
    ///
    /// # Errors
    /// `Expired`, `InvalidHandle`.
    pub fn open(&self, h: &Handle) -> Result<Tensor> {
        let t = Tensor::open_unclaimed(self.inner()?, h)?;
        crash_point::at("open-held");
        self.claim(h.lease)?;
        Ok(t)
    }

    /// The tensors of handles that were made together, or none. Errors as of [`open`](Session::open).
    pub fn open_all(&self, handles: &[Handle]) -> Result<Vec<Tensor>> {
        let all = handles.iter().map(|h| Tensor::open_unclaimed(self.inner()?, h)).collect::<Result<Vec<_>>>()?;
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
