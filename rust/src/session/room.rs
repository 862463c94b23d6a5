//! Waiting for memory where there is none.

use std::time::Duration;

use super::Session;
use crate::cuda::Stream;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::tensor::{Tensor, TensorMut};

impl Session {
    /// As [`alloc`](Session::alloc); where memory is full it waits until some comes free, for ever
    /// without a timeout. After that the error is the last refusal's, `OutOfMemory` or `QuotaExceeded`.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.alloc_within::<f32>(&[1024], std::time::Duration::from_secs(5))?;
    /// # Ok(()) }
    /// ```
    pub fn alloc_within<T: Element>(
        &self,
        shape: &[i64],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<TensorMut<T>> {
        self.inner()?.wait_for_room(timeout.into(), || self.alloc::<T>(shape))
    }

    /// As [`alloc_on`](Session::alloc_on), waiting as [`alloc_within`](Session::alloc_within) does.
    pub fn alloc_on_within(
        &self,
        device: &str,
        dtype: DType,
        shape: &[i64],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Tensor> {
        self.inner()?.wait_for_room(timeout.into(), || self.alloc_on(device, dtype, shape))
    }

    /// As [`zeros_on`](Session::zeros_on), waiting as [`alloc_within`](Session::alloc_within) does.
    pub fn zeros_on_within(
        &self,
        device: &str,
        dtype: DType,
        shape: &[i64],
        stream: Stream,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Tensor> {
        self.inner()?.wait_for_room(timeout.into(), || self.zeros_on(device, dtype, shape, stream))
    }

    /// As [`alloc_raw`](Session::alloc_raw), waiting as [`alloc_within`](Session::alloc_within) does.
    pub fn alloc_raw_within(
        &self,
        dtype: DType,
        shape: &[i64],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<TensorMut<u8>> {
        self.inner()?.wait_for_room(timeout.into(), || self.alloc_raw(dtype, shape))
    }
}
