//! Allocating tensors.

use super::Session;
use crate::dtype::{DType, Element};
use crate::error::{Code, Error, Result};
use crate::tensor::{Tensor, TensorMut};

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
        Tensor::alloc(self.inner()?, dtype, shape)
    }

    /// As [`alloc_raw`](Session::alloc_raw), for a caller that must not wait: `None` where memory of the size is
    /// not free and warm, or a thread is allocating.
    pub fn alloc_at_hand(&self, dtype: DType, shape: &[i64]) -> Result<Option<Tensor>> {
        let n = dtype.num_bytes(shape)?;
        let inner = self.inner()?;
        inner.check_open()?;
        let warm = inner.memory.pool.warm(n, |reference, offset| inner.holding_at(reference, offset, n, dtype, shape));
        Ok(warm.transpose()?.map(Tensor::of))
    }
}
