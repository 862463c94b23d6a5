//! Memory that is being filled, until it can be handed over.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Tensor;
use crate::dtype::Element;
use crate::error::{Result, disagree};
use crate::memory::Held;
use crate::sys::{is_process, process_number};

/// A tensor that this process alone has, to be filled as a slice. [`freeze`](TensorMut::freeze) makes
/// it one that can be handed over. In the child of a fork by a bare system call, which counts nothing of it, asking for
/// its elements panics.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let mut x = session.alloc::<u16>(&[2, 2])?;
/// x.copy_from_slice(&[1, 2, 3, 4]);
/// x[3] = 9;
/// let x = x.freeze();
/// assert_eq!((x.shape(), x.dtype(), x.num_bytes()), (&[2, 2][..], baton::DType::UINT16, 8));
/// # Ok(()) }
/// ```
pub struct TensorMut<T: Element> {
    tensor: Tensor,
    data: NonNull<T>,
    len: usize,
    /// The process that may use the elements without a further look.
    of: AtomicU32,
    marker: PhantomData<T>,
}

// SAFETY: it owns its memory as a Vec<T> does, and T is Send.
unsafe impl<T: Element> Send for TensorMut<T> {}
// SAFETY: shared access only reads, and T is Sync.
unsafe impl<T: Element> Sync for TensorMut<T> {}

impl<T: Element> TensorMut<T> {
    /// Takes a freshly allocated tensor, which no place names and no other holder counts.
    #[inline]
    pub(crate) fn new(tensor: Tensor) -> Result<TensorMut<T>> {
        let (data, len) = TensorMut::memory(tensor.storage())?;
        let of = AtomicU32::new(tensor.held.inner().link.process());
        Ok(TensorMut { tensor, data, len, of, marker: PhantomData })
    }

    /// Where the elements are, in a process that counts them.
    #[inline]
    fn first(&self) -> *mut T {
        if !is_process(self.of.load(Ordering::Relaxed)) {
            self.inherited();
        }
        self.data.as_ptr()
    }

    /// Stops the child of a fork that has not counted them. One that has is not asked again.
    #[cold]
    #[inline(never)]
    fn inherited(&self) {
        let checked = self.tensor.held.check().and_then(|()| process_number());
        let of = checked.unwrap_or_else(|e| panic!("a TensorMut that this process has not inherited: {e}"));
        self.of.store(of, Ordering::Relaxed);
    }

    #[inline]
    fn memory(held: Option<&Held>) -> Result<(NonNull<T>, usize)> {
        let Some(h) = held else { return Ok((NonNull::dangling(), 0)) };
        let at = NonNull::new(h.address(true)?.cast::<T>()).ok_or_else(|| disagree("memory at address 0"))?;
        Ok((at, h.bytes as usize / size_of::<T>()))
    }

    /// The extents.
    pub fn shape(&self) -> &[i64] {
        self.tensor.shape()
    }

    /// What it will be when it is frozen.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Ends the writing: a tensor that can be sent, cloned and read.
    #[inline]
    pub fn freeze(self) -> Tensor {
        self.tensor
    }
}

impl<T: Element> Deref for TensorMut<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements lie in a storage that the holding counts in this process, so it stays mapped and is
        // not recycled. Storages are aligned to 256 bytes, every bit pattern is a T. No place has
        // named the storage yet, so the protocol gives it to no other process, and this value is the
        // only one of this process.
        unsafe { std::slice::from_raw_parts(self.first(), self.len) }
    }
}

impl<T: Element> DerefMut for TensorMut<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref; the borrow of self is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.len) }
    }
}
