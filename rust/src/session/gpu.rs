//! Tensors on GPUs.

use super::Session;
use crate::cuda::{Stream, named};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

impl Session {
    /// A tensor on a device, C-contiguous, with whatever was there before: `cuda:0` as this process
    /// counts, `cuda` the first, `cuda:GPU-…` by UUID, `cpu` the machine's memory. Errors: those of
    /// [`alloc`](Session::alloc); `Unsupported` without a driver, or with one too old; `NotFound` for a
    /// GPU that this process does not see; `InvalidArgument` for what names none.
    ///
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
    /// let y = session.alloc_on("cuda", DType::FLOAT32, &[2])?;
    /// drop(session.alloc_on_within("cuda", DType::FLOAT32, &[2], Duration::ZERO)?);
    /// unsafe { y.copy_tensor(&x, stream)? };
    /// unsafe { y.copy_bytes(on_host.as_ptr()?, stream)? };
    /// y.use_on(stream)?; // before a kernel of the stream that works at
    /// assert!(y.device_ptr(true)? > 0 && y.device().device_id == x.device().device_id);
    /// session.queue("work")?.put(Payload::from(&y).stream(stream), None)?;
    /// y.written(Duration::from_secs(60))?;
    /// let _ = y.is_ordered_by_streams();
    /// let z = session.zeros_on("cuda", DType::FLOAT32, &[2], stream)?.copied_on(stream)?;
    /// let w = session.zeros_on_within("cuda", DType::FLOAT32, &[2], stream, Duration::ZERO)?;
    /// assert_eq!(z.to_device_within("cpu", stream, None)?.to_vec::<f32>()?, w.to_device("cpu", stream)?.to_vec::<f32>()?);
    /// let on_it = baton::dlpack::ExportOptions::default().stream(stream);
    /// drop(session.from_dlpack(y.to_dlpack(on_it)?)?);
    /// # Ok(()) }
    /// ```
    pub fn alloc_on(&self, device: &str, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        Tensor::alloc_on(self.inner()?, device, dtype, shape)
    }

    /// As [`alloc_on`](Session::alloc_on), all zero behind the work of a stream.
    pub fn zeros_on(&self, device: &str, dtype: DType, shape: &[i64], stream: Stream) -> Result<Tensor> {
        let t = self.alloc_on(device, dtype, shape)?;
        t.zero_on(stream)?;
        Ok(t)
    }

    /// Bytes of a GPU that are free, and that it has, as its driver counts them for all processes.
    pub fn device_memory(device: &str) -> Result<(u64, u64)> {
        named(device)?.memory()
    }
}
