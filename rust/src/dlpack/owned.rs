//! Structures that were handed over: their deleter is called once.

use std::ffi::c_void;

use super::{DLManagedTensor, DLManagedTensorVersioned};
use crate::error::{Code, Error, Result};

/// What versioned and legacy structures have in common.
pub(super) trait Managed: Sized {
    /// Fills in what only its final place knows.
    fn fill(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64);
    /// The producer's pointer.
    fn context(&self) -> *mut c_void;
    /// Calls the deleter, if there is one.
    ///
    /// # Safety
    /// Nobody uses the structure any more, and nobody else calls it.
    unsafe fn delete(this: *mut Self);
}

macro_rules! managed {
    ($($t:ty),*) => { $(
        impl Managed for $t {
            fn fill(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64) {
                (self.manager_ctx, self.dl_tensor.shape, self.dl_tensor.strides) = (context, shape, strides);
            }

            fn context(&self) -> *mut c_void {
                self.manager_ctx
            }

            unsafe fn delete(this: *mut Self) {
                // SAFETY: a live structure; of another major version this field alone is read.
                if let Some(delete) = unsafe { (&raw const (*this).deleter).read() } {
                    // SAFETY: once, as the caller says.
                    unsafe { delete(this) }
                }
            }
        }
    )* };
}

managed!(DLManagedTensor, DLManagedTensorVersioned);

/// A structure of another library that is this crate's to delete.
pub(super) struct Owned<M: Managed>(*mut M);

impl<M: Managed> Owned<M> {
    /// Takes a structure over. One at an impossible address is refused and nothing of it touched.
    ///
    /// # Safety
    /// It is live and nobody else's, unless it is null.
    pub(super) unsafe fn take(m: *mut M) -> Result<Owned<M>> {
        if m.is_null() || !m.is_aligned() {
            let what = format!("DLPack: a managed tensor at {m:p}");
            return Err(Error::new(Code::InvalidArgument, "give what to_dlpack returned", what));
        }
        Ok(Owned(m))
    }

    pub(super) fn get(&self) -> *mut M {
        self.0
    }
}

impl<M: Managed> Drop for Owned<M> {
    fn drop(&mut self) {
        // SAFETY: it was taken over, and this is the one place that gives it back.
        unsafe { M::delete(self.0) }
    }
}
