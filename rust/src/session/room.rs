//! Waiting for memory where there is none.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Session;
use super::alloc::TensorMut;
use super::core::Core;
use super::inner::Inner;
use super::tensor::Tensor;
use crate::cuda::Stream;
use crate::deadline::{deadline, within};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};

/// Tells allocations that wait that there may be memory.
#[derive(Debug, Default)]
pub(crate) struct Room {
    waiting: AtomicU32, // allocations
    news: AtomicU64,    // own last references dropped while somebody waits, and what the broker told
}

impl Core {
    /// Notes that memory may have come free.
    #[inline]
    pub(crate) fn room_made(&self) {
        if self.room.waiting.load(Ordering::Relaxed) > 0 {
            self.room.news.fetch_add(1, Ordering::Relaxed);
            self.waiter.wake();
        }
    }
}

impl Inner {
    /// Tries again until the time has passed, without one for ever. A drop here, a reader's ring or the
    /// broker's word make it look again. Nobody tells when the last holder elsewhere lets go, so it
    /// looks once a second as well.
    pub(super) fn wait_for_room<T>(&self, timeout: Option<Duration>, mut make: impl FnMut() -> Result<T>) -> Result<T> {
        if timeout == Some(Duration::ZERO) {
            return make(); // who does not wait for memory gives the broker the time that it takes
        }
        let until = deadline(timeout);
        let mut make = || within(until, &mut make);
        let full = |made: &Result<T>| made.as_ref().is_err_and(Error::is_full);
        let first = make();
        if !full(&first) || until.is_some_and(|u| Instant::now() >= u) {
            return first;
        }
        self.room.waiting.fetch_add(1, Ordering::SeqCst);
        let made = loop {
            let (news, rung) = (self.room.news.load(Ordering::Relaxed), self.waiter.parking.bell());
            let made = make();
            let now = Instant::now();
            if !full(&made) || until.is_some_and(|u| now >= u) {
                break made;
            }
            let look = now + Duration::from_secs(1);
            let changed = || {
                self.room.news.load(Ordering::Relaxed) != news || self.waiter.parking.bell() != rung || self.is_closed()
            };
            if let Err(e) = self.wait(None, None, Some(until.map_or(look, |u| u.min(look))), changed) {
                break Err(e);
            }
        };
        self.room.waiting.fetch_sub(1, Ordering::SeqCst);
        made
    }
}

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

impl Tensor {
    /// As [`to_device`](Tensor::to_device), waiting as [`alloc_within`](Session::alloc_within) does.
    pub fn to_device_within(
        &self,
        device: &str,
        stream: Stream,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Tensor> {
        self.held.inner().wait_for_room(timeout.into(), || self.to_device(device, stream))
    }
}
