//! Handles of all tensors of a bundle.

use super::Bundle;
use crate::error::Result;
use crate::handle::Handle;
use crate::holding::{Lease, storage_ref};
use crate::message::Ref;
use crate::tensor::{Tensor, await_written};

impl Bundle {
    /// Handles of all tensors, in their order, under one lease: they are opened together, by
    /// [`Session::open_all`](crate::Session::open_all), which claims it once. Errors as of
    /// [`Tensor::handle`](crate::Tensor::handle).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.zeros::<f32>(&[3])?.freeze();
    /// session.set("state", baton::Payload::named([("w", x.clone()), ("b", x)]))?;
    /// let handles = session.get("state", None)?.handles(baton::Lease::default())?;
    /// assert!(handles.iter().all(|h| !h.is_empty() && h.check().is_ok()));
    /// let opened = session.open_all(&handles)?;
    /// assert_eq!(opened[1].shape(), [3]);
    /// let alone = opened[0].handle(baton::Lease::default())?;
    /// session.release_handle(&alone)?; // nothing will open it
    /// # Ok(()) }
    /// ```
    pub fn handles(&self, lease: Lease) -> Result<Vec<Handle>> {
        await_written(self.tensors.iter())?;
        let mut all = self.tensors.iter().map(Tensor::describe).collect::<Result<Vec<_>>>()?;
        let held = |t: &Tensor| t.storage().map(|s| s.reference);
        let mut refs: Vec<Ref> = self.tensors.iter().filter_map(held).collect();
        refs.sort_by_key(|r| (r.index, r.serial, r.generation));
        refs.dedup();
        let Some(first) = self.tensors.iter().find(|t| held(t).is_some()) else { return Ok(all) };
        let kept = || self.tensors.iter().map(|t| t.held.clone()).collect();
        let lease = first.held.inner().here()?.lease(refs.into_iter().map(storage_ref).collect(), lease, kept)?;
        for (h, t) in all.iter_mut().zip(&*self.tensors) {
            h.lease = held(t).map(|_| lease);
        }
        Ok(all)
    }
}
