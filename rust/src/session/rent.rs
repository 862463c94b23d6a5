//! Memory of Baton's on a GPU that a framework's allocator has, to make its own tensors there: those are
//! lent without a copy, since others can map the slab that they lie in.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};

use super::Session;
use super::inner::Inner;
use super::tensor::Tensor;
use crate::cuda::Stream;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::shm::Segment;

/// Ranges of device addresses that frameworks have of a session: first to end, with their segments.
#[derive(Debug, Default)]
pub(crate) struct Rented(RwLock<BTreeMap<u64, (u64, Arc<Segment>)>>);

impl Inner {
    /// The segment of rented memory in which `n` bytes at an address lie.
    pub(crate) fn rented_segment(&self, at: u64, n: u64) -> Option<Arc<Segment>> {
        let all = self.devices.get()?.rented.0.read().unwrap_or_else(|p| p.into_inner());
        let (_, (end, segment)) = all.range(..=at).next_back()?;
        (at <= *end && n <= end - at).then(|| segment.clone())
    }
}

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
#[derive(Debug)]
pub struct DeviceAllocator {
    session: Session,
    blocks: Mutex<HashMap<u64, Tensor>>,
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
    /// [`alloc_on`](Session::alloc_on).
    pub fn alloc(&self, device: i32, bytes: u64) -> Result<u64> {
        let n = i64::try_from(bytes).ok().filter(|n| *n > 0).ok_or_else(|| {
            Error::new(Code::OutOfMemory, "ask for less", format!("{bytes} bytes cannot be allocated"))
        })?;
        let t = self.session.alloc_on(&format!("cuda:{device}"), DType::UINT8, &[n])?;
        let at = t.device_ptr(true)?;
        let inner = t.held.inner();
        if let Some(h) = t.storage() {
            let mut all = inner.devices().rented.0.write().unwrap_or_else(|p| p.into_inner());
            all.insert(at, (at + bytes, h.at.segment.clone()));
        }
        self.blocks.lock().unwrap_or_else(|p| p.into_inner()).insert(at, t);
        Ok(at)
    }

    /// Takes memory of [`alloc`](DeviceAllocator::alloc) back; it is used anew when the stream has come past
    /// what was enqueued. Nothing may be lent of it any more. False for what was not allocated here.
    pub fn free(&self, at: u64, stream: Stream) -> bool {
        let Some(t) = self.blocks.lock().unwrap_or_else(|p| p.into_inner()).remove(&at) else { return false };
        let mut all = t.held.inner().devices().rented.0.write().unwrap_or_else(|p| p.into_inner());
        all.remove(&at);
        drop(all);
        if t.use_on(stream).is_err() {
            // Who cannot tell what still runs keeps it, to the end of the process.
            std::mem::forget(t);
        }
        true
    }
}
