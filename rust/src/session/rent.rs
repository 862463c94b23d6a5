//! Memory of Baton's on a GPU that a framework's allocator has, to make its own tensors there: those are
//! lent without a copy, since others can map the slab that they lie in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::Session;
use crate::cuda::Stream;
use crate::devices::Devices;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::tensor::Tensor;

/// An allocator for a framework on a GPU: what it hands out lies in slabs that other processes map, so
/// tensors there are lent by [`lend`](Session::lend) without a copy and without a handle of their own.
///
/// ```no_run
/// let session = baton::Session::connect()?;
/// let allocator = baton::DeviceAllocator::new(&session);
/// let at = allocator.alloc(0, 1 << 20)?; // on cuda:0
/// allocator.free(at, baton::Stream::LEGACY);
/// # Ok::<(), baton::Error>(())
/// ```
pub struct DeviceAllocator {
    session: Session,
    pub(super) blocks: Mutex<HashMap<u64, Tensor>>,
}

impl DeviceAllocator {
    /// An allocator of memory of a session.
    pub fn new(session: &Session) -> DeviceAllocator {
        DeviceAllocator { session: session.clone(), blocks: Mutex::default() }
    }

    /// Whether it allocates in this session's slabs.
    pub fn is_of(&self, session: &Session) -> bool {
        Arc::ptr_eq(&self.session.inner, &session.inner)
    }

    /// Memory of a GPU, as this process counts them; no stream works on it any more. Errors as of
    /// [`Allocation::on`](crate::Allocation::on).
    pub fn alloc(&self, device: i32, bytes: u64) -> Result<u64> {
        let n = i64::try_from(bytes).ok().filter(|n| *n > 0).ok_or_else(|| {
            Error::new(Code::OutOfMemory, "ask for less", format!("{bytes} bytes cannot be allocated"))
        })?;
        let t = self.session.allocation(&[n]).on(&format!("cuda:{device}"), DType::UINT8)?;
        let at = t.device_ptr(true)?;
        let inner = t.held.inner();
        if let Some(h) = t.storage() {
            Devices::of(&inner.memory).rented.begin(at, bytes, &h.at.segment);
        }
        self.blocks.lock().unwrap_or_else(|p| p.into_inner()).insert(at, t);
        Ok(at)
    }

    /// Takes memory of [`alloc`](DeviceAllocator::alloc) back; it is used anew when the stream has come past
    /// what was enqueued. Nothing may be lent of it any more. False for what was not allocated here.
    pub fn free(&self, at: u64, stream: Stream) -> bool {
        let Some(t) = self.blocks.lock().unwrap_or_else(|p| p.into_inner()).remove(&at) else { return false };
        Devices::of(&t.held.inner().memory).rented.end(at);
        if t.use_on(stream).is_err() {
            // A session that cannot tell what still runs keeps it, to the end of the process.
            std::mem::forget(t);
        }
        true
    }
}
