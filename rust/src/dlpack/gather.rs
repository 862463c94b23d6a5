//! Many tensors of other libraries at once: one storage for all that must be copied.

use super::DLTensor;
use super::view::View;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::session::{Place, Session, Tensor};
use crate::shm::prefetch;

/// Where tensors begin in a storage that they share.
const ALIGN: u64 = 256;

/// So many views before its turn the fetch of a view's first line begins: others may lie anywhere.
const AHEAD: usize = 3;

/// What becomes of views of other libraries' tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gather {
    /// Those in memory of the session are referenced, the others copied.
    Reference,
    /// All are copied.
    Copy,
    /// All get room, whose content is whatever was there before.
    Room,
}

/// What is done about one view.
enum Plan {
    There(Tensor),
    /// It gets room in the common storage, from an offset on.
    Make(View, u64),
}

impl Session {
    /// The tensors of views that are lent, in their order, as by [`share`](Session::share) for each; but
    /// what is made new lies in one storage together. `Unsupported` for memory of a GPU.
    ///
    /// # Safety
    /// As for [`share`](Session::share), for each.
    pub unsafe fn gather<'a>(
        &self,
        views: impl Iterator<Item = (&'a DLTensor, u64)>,
        how: Gather,
    ) -> Result<Vec<Tensor>> {
        let segments = match how {
            Gather::Reference => self.inner()?.all_segments(),
            Gather::Copy | Gather::Room => Vec::new(),
        };
        let (mut plans, mut total) = (Vec::with_capacity(views.size_hint().1.unwrap_or(0)), 0u64);
        for (view, flags) in views {
            // SAFETY: as the caller says.
            let v = unsafe { View::of(view, flags)? };
            let near = segments.iter().any(|s| s.offset_of(v.first, v.span).is_some());
            if let Some(t) = near.then(|| self.find(&v)).flatten() {
                plans.push(Plan::There(t));
                continue;
            }
            let (at, n) = (total, v.bytes.next_multiple_of(ALIGN)); // at most 2^63
            total = at.checked_add(n).filter(|n| *n <= i64::MAX as u64).ok_or_else(|| {
                let what = "the tensors together have more bytes than 63 bits count";
                Error::new(Code::InvalidArgument, "give fewer at once", what)
            })?;
            plans.push(Plan::Make(v, at));
        }
        let room = self.alloc_dtype(DType::UINT8, &[total as i64])?;
        let base = room.address(true)?;
        let mut made = Vec::with_capacity(plans.len());
        let mut plans = plans.into_iter();
        while let Some(plan) = plans.next() {
            if let Some(Plan::Make(v, _)) = plans.as_slice().get(AHEAD) {
                prefetch(v.first);
            }
            let (v, at) = match plan {
                Plan::There(t) => {
                    made.push(t);
                    continue;
                }
                Plan::Make(v, at) => (v, at),
            };
            if how != Gather::Room {
                // SAFETY: as the caller says; the storage was just made and has room for it there.
                unsafe { v.copy_to(base.wrapping_add(at as usize), None) };
            }
            let (place, at) = if v.bytes > 0 { (Place::Storage(0), at) } else { (Place::Nowhere, 0) };
            made.push(Tensor::laid_out(room.held.clone(), place, at, v.dtype, v.shape));
        }
        Ok(made)
    }
}
