//! Allocating: memory that is being filled, until it can be handed over.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::Session;
use super::holding::{Held, Holding, Keeper, One, Storages};
use super::inner::Inner;
use super::shared::Shared;
use super::tensor::{Place, Tensor, View};
use crate::dtype::{DType, Element};
use crate::error::{Code, Error, Result, disagree};
use crate::layout::limits;
use crate::ledger::Storage;
use crate::message::Ref;

impl Inner {
    /// What holds nothing, for a tensor without elements.
    pub(super) fn nothing(self: &Arc<Inner>, view: View) -> Shared {
        Shared::new(|| Holding::new(self, Storages::default(), view))
    }

    /// Allocates a storage of `bytes` > 0, counted once, for a compact tensor.
    // What it returns fits into registers: a tensor that is handed from one function to the next by memory is waited
    // for there.
    pub(crate) fn fill(self: &Arc<Inner>, bytes: u64, dtype: DType, shape: &[i64]) -> Result<Shared> {
        self.check_open()?;
        let at = |reference, offset| self.holding_at(reference, offset, bytes, dtype, shape);
        match if self.traces { None } else { self.pool.warm(bytes, at) } {
            Some(held) => held,
            None => self.fill_by(|fallback| self.pool.alloc(&**self, bytes, fallback), dtype, shape),
        }
    }

    /// As `fill`, from whichever pool `cut` allocates, which is told whether another attempt follows a refusal.
    #[cold]
    pub(super) fn fill_by(
        self: &Arc<Inner>,
        cut: impl Fn(bool) -> Result<Storage>,
        dtype: DType,
        shape: &[i64],
    ) -> Result<Shared> {
        self.check_open()?;
        let mut got = cut(true);
        if got.as_ref().is_err_and(Error::is_full) {
            self.settle(); // withdraw what queues still name, then try once more
            got = cut(false);
        }
        let got = got.map_err(|e| self.refused(e))?;
        if self.traces {
            self.trace(got.reference.index);
        }
        self.holding_of(got, dtype, shape)
    }

    /// What holds a storage that was just handed out, and counted, for a compact tensor.
    pub(super) fn holding_of(self: &Arc<Inner>, s: Storage, dtype: DType, shape: &[i64]) -> Result<Shared> {
        self.holding_at(s.reference, s.offset, s.bytes, dtype, shape)
    }

    #[inline(always)]
    fn holding_at(
        self: &Arc<Inner>,
        reference: Ref,
        offset: u64,
        bytes: u64,
        dtype: DType,
        shape: &[i64],
    ) -> Result<Shared> {
        let at = self.attached.find(reference.index / limits::CHUNK_INDICES, reference.serial);
        let at = at.ok_or_else(not_attached)?;
        let held = Held { reference, at, offset, bytes };
        let one = One { held, dtype, shape: shape.into(), readonly: false };
        Ok(Shared::of_one(self, one, None, || Keeper::Session(self.clone())))
    }
}

#[cold]
fn not_attached() -> Error {
    disagree("an own chunk is not attached")
}

impl Session {
    /// A tensor to fill, C-contiguous, aligned to 256 bytes. Its content is whatever was there
    /// before. Errors: `InvalidArgument` (the shape), `OutOfMemory`, `QuotaExceeded`, `BrokerLost`.
    #[inline]
    pub fn alloc<T: Element>(&self, shape: &[i64]) -> Result<TensorMut<T>> {
        self.alloc_as(T::DTYPE, shape)
    }

    /// As [`alloc`](Session::alloc), all zero.
    pub fn zeros<T: Element>(&self, shape: &[i64]) -> Result<TensorMut<T>> {
        let mut t = self.alloc::<T>(shape)?;
        t.fill(T::default());
        Ok(t)
    }

    /// A tensor to fill with the values of a slice.
    pub fn from_slice<T: Element>(&self, shape: &[i64], values: &[T]) -> Result<TensorMut<T>> {
        let mut t = self.alloc::<T>(shape)?;
        if t.len() != values.len() {
            let what = format!("{} values for shape {shape:?}", values.len());
            return Err(Error::new(Code::InvalidArgument, "give as many values as the shape has", what));
        }
        t.copy_from_slice(values);
        Ok(t)
    }

    /// Bytes to fill of a type that Rust has no type for (`bfloat16`, `float8_e4m3fn`…); the frozen
    /// tensor has the type.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::DType;
    ///
    /// let mut x = session.alloc_raw(DType::UINT4, &[4])?;
    /// x.copy_from_slice(&[0x21, 0x43]); // two to a byte
    /// assert_eq!((x.freeze().num_bytes(), DType::UINT4.item_bits()), (2, 4));
    /// let y = session.alloc_raw_within(DType::BFLOAT16, &[8], std::time::Duration::from_secs(1))?.freeze();
    /// drop(y);
    /// if let Some(warm) = session.alloc_at_hand(DType::BFLOAT16, &[8])? {
    ///     assert_eq!(warm.shape(), [8]);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn alloc_raw(&self, dtype: DType, shape: &[i64]) -> Result<TensorMut<u8>> {
        self.alloc_as(dtype, shape)
    }

    #[inline]
    fn alloc_as<T: Element>(&self, dtype: DType, shape: &[i64]) -> Result<TensorMut<T>> {
        TensorMut::new(self.alloc_dtype(dtype, shape)?)
    }

    #[inline]
    pub(crate) fn alloc_dtype(&self, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        Ok(Tensor::of(match dtype.num_bytes(shape)? {
            0 => self.inner()?.nothing(View::whole(Place::Nowhere, dtype, shape.into())),
            n => self.inner()?.fill(n, dtype, shape)?,
        }))
    }

    /// As [`alloc_raw`](Session::alloc_raw), for a caller that must not wait: `None` where memory of the size is
    /// not free and warm, or a thread is allocating.
    pub fn alloc_at_hand(&self, dtype: DType, shape: &[i64]) -> Result<Option<Tensor>> {
        let n = dtype.num_bytes(shape)?;
        let inner = self.inner()?;
        inner.check_open()?;
        let warm = inner.pool.warm(n, |reference, offset| inner.holding_at(reference, offset, n, dtype, shape));
        Ok(warm.transpose()?.map(Tensor::of))
    }
}

/// A tensor that this process alone has, to be filled as a slice. [`freeze`](TensorMut::freeze) makes
/// it one that can be handed over.
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
#[derive(Debug)]
pub struct TensorMut<T: Element> {
    tensor: Tensor,
    data: NonNull<T>,
    len: usize,
    marker: PhantomData<T>,
}

// SAFETY: it owns its memory as a Vec<T> does, and T is Send.
unsafe impl<T: Element> Send for TensorMut<T> {}
// SAFETY: shared access only reads, and T is Sync.
unsafe impl<T: Element> Sync for TensorMut<T> {}

impl<T: Element> TensorMut<T> {
    /// Takes a freshly allocated tensor, which no place names and nobody else holds.
    #[inline]
    pub(super) fn new(tensor: Tensor) -> Result<TensorMut<T>> {
        let (data, len) = TensorMut::memory(tensor.storage())?;
        Ok(TensorMut { tensor, data, len, marker: PhantomData })
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
    #[cfg(feature = "ndarray")]
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
        // SAFETY: `len` elements lie in a storage that the holding counts, so it stays mapped and is
        // not recycled. Storages are aligned to 256 bytes, every bit pattern is a T. No place has
        // named the storage yet, so the protocol gives it to no other process, and this value is the
        // only one of this process.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for TensorMut<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref; the borrow of self is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}
