//! Tensors on GPUs: making them, reaching them, and copies.

use std::sync::Arc;

use super::Session;
use super::device::Gpu;
use super::tensor::{Place, Tensor, View};
use crate::cuda::{Device, Slab, Stream, named};
use crate::dlpack::{CPU, DLDevice, device};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};

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
        if device == "cpu" {
            return self.alloc_dtype(dtype, shape);
        }
        let n = dtype.num_bytes(shape)?;
        let inner = self.inner()?;
        let gpu = inner.gpu(named(device)?);
        Ok(Tensor::of(match n {
            0 => inner.nothing(View::whole(Place::Nowhere, dtype, shape.into())),
            n => inner.fill_by(|fallback| inner.cut(&gpu, n, fallback), dtype, shape)?,
        }))
    }

    /// As [`alloc_on`](Session::alloc_on), all zero behind the work of a stream.
    pub fn zeros_on(&self, device: &str, dtype: DType, shape: &[i64], stream: Stream) -> Result<Tensor> {
        let t = self.alloc_on(device, dtype, shape)?;
        match t.gpu()? {
            // SAFETY: the bytes were just allocated, and are kept until the stream has passed.
            Some(gpu) => unsafe {
                gpu.device.fill(t.device_address(true)?, 0, t.num_bytes(), ordered(stream)?)?;
                t.written_by(&gpu, stream)?;
            },
            // SAFETY: as many bytes as the elements take, just allocated.
            None => unsafe { t.address(true)?.write_bytes(0, t.num_bytes() as usize) },
        }
        Ok(t)
    }

    /// Bytes of a GPU that are free, and that it has, as its driver counts them for all processes.
    pub fn device_memory(device: &str) -> Result<(u64, u64)> {
        named(device)?.memory()
    }
}

/// Refuses [`Stream::NONE`] for work that needs a stream.
fn ordered(stream: Stream) -> Result<Stream> {
    if stream != Stream::NONE {
        return Ok(stream);
    }
    let what = "a copy on a GPU without a stream";
    Err(Error::new(Code::InvalidArgument, "use the legacy default stream, or a stream of yours", what))
}

impl Tensor {
    pub(crate) fn on_device(&self) -> Option<&Slab> {
        self.storage()?.at.segment.device()
    }

    /// The GPU that it lies on. An error in the child of a fork, where the driver does not work.
    pub(crate) fn gpu(&self) -> Result<Option<Arc<Gpu>>> {
        let Some(d) = self.on_device() else { return Ok(None) };
        self.held.check()?;
        Ok(Some(self.held.inner().gpu(d.device)))
    }

    /// Where the elements are: the GPU as this process numbers it. A tensor without elements is on the
    /// CPU.
    pub fn device(&self) -> DLDevice {
        match self.on_device() {
            Some(d) => DLDevice { device_type: device::CUDA, device_id: d.device.index },
            None => DLDevice { device_type: CPU, device_id: 0 },
        }
    }

    /// Whether streams wait for each other where this tensor is handed over. False: it is memory of the
    /// machine, or the driver of its GPU is too old, and the processor waits in their stead, which is as
    /// right and takes longer.
    pub fn is_ordered_by_streams(&self) -> bool {
        self.on_device().is_some_and(|d| d.device.values())
    }

    /// The device address of the first element of a tensor on a GPU, for kernels that follow
    /// [`use_on`](Tensor::use_on), as long as the tensor or a clone lives. `ReadOnly` when it is to be
    /// written and must not be; `InvalidArgument` for memory of the machine.
    pub fn device_ptr(&self, write: bool) -> Result<u64> {
        if write && self.is_read_only() {
            let what = format!("{}{:?} is read-only", self.dtype(), self.shape());
            return Err(Error::new(Code::ReadOnly, "copy it", what));
        }
        self.device_address(write)
    }

    fn device_address(&self, write: bool) -> Result<u64> {
        self.held.check()?;
        match self.storage().filter(|_| self.on_device().is_some()) {
            Some(h) => {
                self.held.open(h)?;
                Ok(h.device_address(write)? + self.view().offset)
            }
            None => Err(Error::new(Code::InvalidArgument, "use as_ptr", "the tensor is memory of the machine")),
        }
    }

    /// A copy on a device, `cuda:0` or `cpu`; the tensor itself where it is there already. To a GPU it is
    /// made by the stream and not waited for: other streams wait by [`use_on`](Tensor::use_on), and a
    /// send does by itself. To the CPU it is waited for.
    pub fn to_device(&self, device: &str, stream: Stream) -> Result<Tensor> {
        let there = match device {
            "cpu" => self.on_device().is_none(),
            name => {
                let d = named(name)?;
                self.on_device().is_some_and(|s| std::ptr::eq(s.device, d))
            }
        };
        if there {
            return Ok(self.clone());
        }
        let to = self.session().alloc_on(device, self.dtype(), self.shape())?;
        // SAFETY: nobody else has what was just allocated.
        unsafe { to.copy_tensor(self, stream)? };
        if let Some(gpu) = to.gpu()? {
            to.written_by(&gpu, stream)?;
        }
        Ok(to)
    }

    /// Makes the slab that a tensor of the machine's memory lies in known to a GPU's driver, once for each slab: to
    /// other libraries it is pinned, and a copy between it and a GPU runs beside the processor. It is so until this
    /// process lets go of the slab. Errors: `Unsupported` where the driver refuses, `InvalidArgument` for a tensor on a
    /// GPU.
    pub fn pin(&self, device: &str) -> Result<()> {
        let device = named(device)?;
        if let Some(s) = self.on_device() {
            let what = format!("the tensor lies on cuda:{}", s.device.index);
            return Err(Error::new(Code::InvalidArgument, "pin memory of the machine", what));
        }
        let Some(h) = self.storage() else { return Ok(()) }; // nothing has a byte
        self.address(!self.is_read_only())?; // mapped, as its user has it
        match h.at.segment.register(device) {
            true => Ok(()),
            false => {
                let what = format!("{} does not register the memory of this tensor", device.name);
                Err(Error::new(Code::Unsupported, "copy to the GPU without it", what))
            }
        }
    }

    /// A copy on the tensor's own device, by a stream, as [`to_device`](Tensor::to_device) makes one.
    pub fn copied_on(&self, stream: Stream) -> Result<Tensor> {
        let Some(gpu) = self.gpu()? else {
            let what = "a copy by a stream of memory of the machine";
            return Err(Error::new(Code::InvalidArgument, "give a tensor on a GPU", what));
        };
        let to = self.session().alloc_on(&format!("cuda:{}", gpu.device.index), self.dtype(), self.shape())?;
        // SAFETY: nobody else has what was just allocated.
        unsafe { to.copy_tensor(self, stream)? };
        to.written_by(&gpu, stream)?;
        Ok(to)
    }

    /// Copies a tensor of the same type and shape here, at least one of the two on a GPU, behind the work
    /// of a stream. Other streams wait for it by [`use_on`](Tensor::use_on); where the processor is to read
    /// what was copied it is waited for. Errors:
    /// `ReadOnly`; `InvalidArgument` when type or shape differ; `Unsupported` where elements are not
    /// contiguous or lie on two GPUs.
    ///
    /// # Safety
    /// Nobody, in this or another process, uses this tensor's memory until the stream has passed. Where the
    /// other's is written meanwhile the values may be torn, and nothing else.
    ///
    /// ```compile_fail,E0133
    /// # #![forbid(unsafe_code)]
    /// fn overwrite(to: &baton::Tensor, from: &baton::Tensor) {
    ///     let _ = to.copy_tensor(from, baton::Stream::LEGACY);
    /// }
    /// ```
    pub unsafe fn copy_tensor(&self, from: &Tensor, stream: Stream) -> Result<()> {
        if (from.dtype(), from.shape()) != (self.dtype(), self.shape()) {
            let what = format!("{}{:?} is copied to {}{:?}", from.dtype(), from.shape(), self.dtype(), self.shape());
            return Err(Error::new(Code::InvalidArgument, "give the same type and shape", what));
        }
        if self.is_empty() {
            return Ok(());
        }
        for t in [self, from] {
            if !t.is_contiguous() {
                let what = format!("elements of {:?} with strides {:?} are not contiguous", t.shape(), t.strides());
                return Err(Error::new(Code::Unsupported, "copy them where they are first", what));
            }
        }
        let stream = ordered(stream)?;
        let n = self.num_bytes();
        match (self.gpu()?, from.gpu()?) {
            (Some(gpu), None) => self.copy_in(&gpu, from, n, stream),
            (None, Some(gpu)) => {
                let to = self.address(true)?;
                from.used_by(&gpu, stream)?;
                self.reach(&gpu);
                // SAFETY: both are held until the stream has passed, which is waited for.
                unsafe { gpu.device.copy_out(to, from.device_address(false)?, n, stream)? };
                gpu.device.synchronize_stream(stream)
            }
            (Some(gpu), Some(theirs)) if std::ptr::eq(gpu.device, theirs.device) => {
                from.used_by(&theirs, stream)?; // by its own session
                self.used_by(&gpu, stream)?;
                // SAFETY: both holdings are kept until the stream has passed.
                unsafe { gpu.device.copy_within(self.device_ptr(true)?, from.device_address(false)?, n, stream)? };
                self.held.writes(&gpu, stream);
                Ok(())
            }
            _ => Err(Error::new(
                Code::Unsupported,
                "copy it to the cpu and from there",
                "a copy between tensors of which neither, or each on another, lies on a GPU",
            )),
        }
    }

    fn copy_in(&self, gpu: &Arc<Gpu>, from: &Tensor, n: u64, stream: Stream) -> Result<()> {
        let to = self.device_ptr(true)?;
        self.used_by(gpu, stream)?;
        from.used_by(gpu, stream)?;
        from.reach(gpu);
        // SAFETY: both holdings are kept until the stream has passed.
        unsafe { gpu.device.copy_in(to, from.address(false)?, n, stream)? };
        self.held.writes(gpu, stream);
        Ok(())
    }

    /// Copies contiguous elements of the machine's memory to this tensor on a GPU, behind the work of a
    /// stream. Errors as of [`copy_tensor`](Tensor::copy_tensor).
    ///
    /// # Safety
    /// As many bytes as this tensor's elements take may be read at the address until the call returns,
    /// or, where the program itself has registered that memory with the driver, until the stream has
    /// passed.
    pub unsafe fn copy_bytes(&self, from: *const u8, stream: Stream) -> Result<()> {
        let stream = ordered(stream)?;
        let Some(gpu) = self.gpu()?.filter(|_| self.is_contiguous()) else {
            let what = format!("bytes are copied to a {}{:?}", self.dtype(), self.shape());
            return Err(Error::new(Code::Unsupported, "give a contiguous tensor on a GPU", what));
        };
        self.used_by(&gpu, stream)?;
        // SAFETY: as the caller says; this holding is kept until the stream has passed.
        unsafe { gpu.device.copy_in(self.device_ptr(true)?, from, self.num_bytes(), stream)? };
        self.held.writes(&gpu, stream);
        Ok(())
    }

    /// Copies elements that lie contiguous on a GPU here, and waits for it.
    ///
    /// # Safety
    /// As many bytes as this tensor's elements take lie at the device address; the stream comes after
    /// what writes them.
    pub(crate) unsafe fn copy_device(&self, from: &'static Device, at: u64, stream: Stream) -> Result<()> {
        let (stream, n) = (ordered(stream)?, self.num_bytes());
        let there = self.on_device().is_none_or(|s| std::ptr::eq(s.device, from));
        if !self.is_contiguous() || !there {
            let what = format!("a copy from cuda:{} to a {}{:?}", from.index, self.dtype(), self.shape());
            return Err(Error::new(Code::Unsupported, "give a contiguous tensor on that GPU or the cpu", what));
        }
        match self.gpu()? {
            Some(gpu) => {
                self.used_by(&gpu, stream)?;
                // SAFETY: as the caller says; what is copied to is held until it is done.
                unsafe { from.copy_within(self.device_ptr(true)?, at, n, stream)? };
            }
            // SAFETY: as above.
            None => unsafe { from.copy_out(self.address(true)?, at, n, stream)? },
        }
        from.synchronize_stream(stream)
    }

    /// Has the GPU reach the slab that a tensor of the machine lies in, once for each slab, so that copies
    /// run beside the processor. Where the driver refuses they are as right, and slower.
    fn reach(&self, gpu: &Gpu) {
        if let Some(h) = self.storage() {
            let _ = h.at.segment.register(gpu.device);
        }
    }
}
