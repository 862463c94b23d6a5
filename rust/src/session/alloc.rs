//! Allocating tensors.

use std::time::Duration;

use super::Session;
use crate::cuda::Stream;
use crate::dtype::{DType, Element};
use crate::error::{Code, Error, Result};
use crate::memory::HugePages;
use crate::tensor::{Tensor, TensorMut};

impl Session {
    /// A tensor to fill, C-contiguous, aligned to 256 bytes. Its content is whatever was there
    /// before. [`allocation`](Session::allocation) has the choices: to wait for memory, huge pages, GPUs, other types.
    ///
    /// # Errors
    /// `InvalidArgument` (the shape), `OutOfMemory`, `QuotaExceeded`, `BrokerLost`.
    #[inline]
    pub fn alloc<T: Element>(&self, shape: &[i64]) -> Result<TensorMut<T>> {
        TensorMut::new(self.alloc_dtype(T::DTYPE, shape)?)
    }

    /// As [`alloc`](Session::alloc), all zero. Errors as of that.
    pub fn zeros<T: Element>(&self, shape: &[i64]) -> Result<TensorMut<T>> {
        let mut t = self.alloc::<T>(shape)?;
        t.fill(T::default());
        Ok(t)
    }

    /// A tensor to fill with the values of a slice. Errors as of [`alloc`](Session::alloc), `InvalidArgument`
    /// also for another number of values than the shape has.
    pub fn from_slice<T: Element>(&self, shape: &[i64], values: &[T]) -> Result<TensorMut<T>> {
        let mut t = self.alloc::<T>(shape)?;
        if t.len() != values.len() {
            let what = format!("{} values for shape {shape:?}", values.len());
            return Err(Error::new(Code::InvalidArgument, "give as many values as the shape has", what));
        }
        t.copy_from_slice(values);
        Ok(t)
    }

    /// An allocation with choices, made by one of the functions that end it.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::{Code, DType, HugePages};
    /// use std::time::Duration;
    ///
    /// // Where memory is full it waits.
    /// let x = session.allocation(&[1024]).timeout(Duration::from_secs(5)).of::<f32>()?;
    /// // Of a type that Rust has no type for, as bytes: two elements to each.
    /// let mut y = session.allocation(&[4]).raw(DType::UINT4)?;
    /// y.copy_from_slice(&[0x21, 0x43]);
    /// assert_eq!((y.freeze().num_bytes(), DType::UINT4.item_bits()), (2, 4));
    /// // In huge pages, of those that the machine has reserved.
    /// match session.allocation(&[1024, 1024]).pages(HugePages::MiB2).of::<f32>() {
    ///     Ok(mut x) => x.fill(1.0),
    ///     Err(e) if e.code() == Code::OutOfMemory => println!("{e}"), // it says how to reserve them
    ///     Err(e) => return Err(e),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn allocation<'a>(&'a self, shape: &'a [i64]) -> Allocation<'a> {
        Allocation { session: self, shape, timeout: Some(Duration::ZERO), pages: None }
    }

    #[inline]
    pub(crate) fn alloc_dtype(&self, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        Tensor::alloc(self.inner()?, dtype, shape)
    }

    /// For bindings that must not wait: `None` if memory of the size is not free and warm, or a thread is
    /// allocating.
    #[doc(hidden)]
    pub fn alloc_at_hand(&self, dtype: DType, shape: &[i64]) -> Result<Option<Tensor>> {
        let n = dtype.num_bytes(shape)?;
        let inner = self.inner()?;
        inner.check_open()?;
        let warm = inner.memory.pool.warm(n, |reference, offset| inner.holding_at(reference, offset, n, dtype, shape));
        Ok(warm.transpose()?.map(Tensor::of))
    }
}

/// What [`Session::allocation`] makes: a tensor that is C-contiguous and has whatever was there before.
#[derive(Clone, Copy)]
#[must_use = "nothing is allocated before `of`, `raw`, `on` or `zeros_on`"]
pub struct Allocation<'a> {
    session: &'a Session,
    pub(super) shape: &'a [i64],
    timeout: Option<Duration>,
    pages: Option<HugePages>,
}

impl Allocation<'_> {
    /// How long to wait if memory is full; without a limit when there is no timeout. Then the error is the last
    /// refusal's, `OutOfMemory` or `QuotaExceeded`. The default is not to wait.
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// In huge pages, of those that the machine has reserved. Whole pages are taken from the machine at a time,
    /// and shared by small tensors. `Unsupported` if the kernel has none of the size, or memory lies in files.
    pub fn pages(mut self, pages: HugePages) -> Self {
        self.pages = Some(pages);
        self
    }

    /// A tensor to fill.
    ///
    /// # Errors
    /// Those of [`Session::alloc`] and of the choices.
    pub fn of<T: Element>(self) -> Result<TensorMut<T>> {
        TensorMut::new(self.on_host(T::DTYPE)?)
    }

    /// Bytes to fill of a type that Rust has no type for (`bfloat16` without the feature `half`, `float8_e4m3fn`,
    /// …); the frozen tensor has the type. Errors as of [`of`](Allocation::of).
    pub fn raw(self, dtype: DType) -> Result<TensorMut<u8>> {
        TensorMut::new(self.on_host(dtype)?)
    }

    /// A tensor on a device: `cuda:0` as this process counts, `cuda` the first, `cuda:GPU-…` by UUID, `cpu` the
    /// machine's memory.
    ///
    /// # Errors
    /// Those of [`of`](Allocation::of); `Unsupported` without a driver, or with one too old; `NotFound` for a GPU that
    /// this process does not see; `InvalidArgument` for what names none, and for huge pages of a GPU.
    ///
    /// # Example
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::{Code, DType, Payload, Stream};
    /// use std::time::Duration;
    ///
    /// let on_host = session.from_slice(&[2], &[1f32, 2.0])?.freeze();
    /// if let Err(e) = baton::Session::device_memory("cuda") {
    ///     assert!(matches!(e.code(), Code::Unsupported | Code::NotFound), "{e}");
    ///     return Ok(()); // without a GPU there is no more to see
    /// }
    /// let stream = unsafe { Stream::from_raw(2)? }; // a CUstream or cudaStream_t as a number: here that of the thread
    /// assert_eq!((stream.as_raw(), stream), (2, Stream::PER_THREAD));
    /// on_host.pin("cuda")?;
    /// let x = on_host.to_device("cuda", stream)?;
    /// let y = session.allocation(&[2]).on("cuda", DType::FLOAT32)?;
    /// unsafe { y.copy_tensor(&x, stream)? };
    /// unsafe { y.copy_bytes(on_host.as_ptr()?, stream)? };
    /// y.use_on(stream)?; // before a kernel of the stream that works at
    /// assert!(y.device_ptr(true)? > 0 && y.device().device_id == x.device().device_id);
    /// session.queue("work")?.put(Payload::from(&y).stream(stream), None)?;
    /// y.written(Duration::from_secs(60))?;
    /// let _ = y.is_ordered_by_streams();
    /// let z = session.allocation(&[2]).timeout(None).zeros_on("cuda", DType::FLOAT32, stream)?.copied_on(stream)?;
    /// assert_eq!(z.to_device_within("cpu", stream, None)?.to_vec::<f32>()?, [0.0, 0.0]);
    /// let on_it = baton::dlpack::ExportOptions::default().stream(stream);
    /// drop(session.from_dlpack(y.to_dlpack(on_it)?)?);
    /// # Ok(()) }
    /// ```
    pub fn on(self, device: &str, dtype: DType) -> Result<Tensor> {
        if device == "cpu" {
            return self.on_host(dtype);
        }
        if self.pages.is_some() {
            let what = format!("memory on {device} has no huge pages");
            return Err(Error::new(Code::InvalidArgument, "leave the pages out", what));
        }
        let inner = self.session.inner()?;
        inner.wait_for_memory(self.timeout, || Tensor::alloc_on(inner, device, dtype, self.shape))
    }

    /// As [`on`](Allocation::on), all zero after the work of a stream. Errors as of that.
    pub fn zeros_on(self, device: &str, dtype: DType, stream: Stream) -> Result<Tensor> {
        let t = self.on(device, dtype)?;
        t.zero_on(stream)?;
        Ok(t)
    }

    fn on_host(self, dtype: DType) -> Result<Tensor> {
        let (inner, n) = (self.session.inner()?, dtype.num_bytes(self.shape)?);
        match self.pages {
            Some(pages) if n > 0 => inner.wait_for_memory(self.timeout, || {
                inner.fill_by(|fallback| inner.cut_huge(pages, n, fallback), dtype, self.shape).map(Tensor::of)
            }),
            _ => inner.wait_for_memory(self.timeout, || self.session.alloc_dtype(dtype, self.shape)),
        }
    }
}
