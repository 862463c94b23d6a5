//! Tensors on GPUs: making them, reaching them, and copies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Tensor;
use crate::cuda::{Device, Slab, Stream, named};
use crate::deadline::deadline;
use crate::devices::{Devices, Done, Gpu, OnGpu};
use crate::dlpack::types::{CPU, DLDevice, device};
use crate::error::{Code, Error, Result};

/// Refuses [`Stream::NONE`] for work that needs a stream.
fn ordered(stream: Stream) -> Result<Stream> {
    if stream != Stream::NONE {
        return Ok(stream);
    }
    let what = "a copy on a GPU without a stream";
    Err(Error::new(Code::InvalidArgument, "use the legacy default stream, or a stream of yours", what))
}

impl Tensor {
    /// Fills a tensor that was just allocated with zeros, after the work of a stream.
    pub(crate) fn zero_on(&self, stream: Stream) -> Result<()> {
        match self.gpu()? {
            // SAFETY: the bytes were just allocated, and are kept until the stream has passed.
            Some(gpu) => unsafe {
                gpu.device.fill(self.device_address(true)?, 0, self.num_bytes(), ordered(stream)?)?;
                self.written_by(&gpu, stream)?;
            },
            // SAFETY: as many bytes as the elements take, just allocated.
            None => unsafe { self.address(true)?.write_bytes(0, self.num_bytes() as usize) },
        }
        Ok(())
    }

    pub(crate) fn on_device(&self) -> Option<&Slab> {
        self.storage()?.at.segment.device()
    }

    /// The GPU that it lies on. An error in the child of a fork, where the driver does not work.
    pub(crate) fn gpu(&self) -> Result<Option<Arc<Gpu>>> {
        let Some(d) = self.on_device() else { return Ok(None) };
        self.held.check()?;
        Ok(Some(Devices::gpu(&self.held.inner().memory, d.device)))
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
                OnGpu(&self.held).open(h)?;
                Ok(h.device_address(write)? + self.view().offset)
            }
            None => Err(Error::new(Code::InvalidArgument, "use as_ptr", "the tensor is memory of the machine")),
        }
    }

    /// A copy on a device, `cuda:0` or `cpu`; the tensor itself if it is there already. Elements without
    /// gaps keep the order of their dimensions. To a GPU it is made by the stream and not waited for: other
    /// streams wait by [`use_on`](Tensor::use_on), and a send does by itself. To the CPU it is waited for.
    /// Errors as of [`Allocation::on`](crate::Allocation::on), and `Unsupported` as of
    /// [`copy_tensor`](Tensor::copy_tensor).
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
        let to = Tensor::alloc_on(self.held.inner().here()?, device, self.dtype(), self.shape())?;
        let to = to.ordered_as(self.order())?;
        // SAFETY: what was just allocated has no other owner.
        unsafe { to.copy_tensor(self, stream)? };
        if let Some(gpu) = to.gpu()? {
            to.written_by(&gpu, stream)?;
        }
        Ok(to)
    }

    /// Makes the slab that a tensor of the machine's memory lies in known to a GPU's driver, once for each slab: to
    /// other libraries it is pinned, and a copy between it and a GPU runs beside the processor. It is so until this
    /// process lets go of the slab.
    ///
    /// # Errors
    /// `Unsupported` if the driver refuses, `InvalidArgument` for a tensor on a GPU.
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

    /// A copy on the tensor's own device, by a stream, as [`to_device`](Tensor::to_device) makes one. Errors
    /// as of that.
    pub fn copied_on(&self, stream: Stream) -> Result<Tensor> {
        let Some(gpu) = self.gpu()? else {
            let what = "a copy by a stream of memory of the machine";
            return Err(Error::new(Code::InvalidArgument, "give a tensor on a GPU", what));
        };
        let to = {
            let device = format!("cuda:{}", gpu.device.index);
            Tensor::alloc_on(self.held.inner().here()?, &device, self.dtype(), self.shape())?
        };
        let to = to.ordered_as(self.order())?;
        // SAFETY: what was just allocated has no other owner.
        unsafe { to.copy_tensor(self, stream)? };
        to.written_by(&gpu, stream)?;
        Ok(to)
    }

    /// Copies a tensor of the same type and shape here, at least one of the two on a GPU, after the work
    /// of a stream. Other streams wait for it by [`use_on`](Tensor::use_on); if the processor is to read
    /// what was copied it is waited for. Errors:
    /// `ReadOnly`; `InvalidArgument` when type or shape differ; `Unsupported` if elements are not
    /// contiguous or lie on two GPUs.
    ///
    /// # Safety
    /// No code, in this or another process, uses this tensor's memory until the stream has passed. If the
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
        if self.order().is_some_and(|order| from.order() == Some(order)) {
            // SAFETY: as the caller says, of the same elements.
            return unsafe { self.as_they_lie()?.copy_tensor(&from.as_they_lie()?, stream) };
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
                OnGpu(&self.held).writes(&gpu, stream);
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
        OnGpu(&self.held).writes(gpu, stream);
        Ok(())
    }

    /// Copies contiguous elements of the machine's memory to this tensor on a GPU, after the work of a
    /// stream. Errors as of [`copy_tensor`](Tensor::copy_tensor).
    ///
    /// # Safety
    /// As many bytes as this tensor's elements take may be read at the address until the call returns,
    /// or, if the program itself has registered that memory with the driver, until the stream has
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
        OnGpu(&self.held).writes(&gpu, stream);
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

impl Tensor {
    /// Says that work enqueued on a stream from now on uses the tensor. The stream waits until the tensor
    /// is written. Once the tensor is dropped, its memory is not used anew before the stream has come
    /// past what was enqueued before the drop. Work that follows a send is announced anew. For memory of the
    /// machine, and [`Stream::NONE`], it does nothing. `Expired`: the sender ended before it had
    /// written.
    pub fn use_on(&self, stream: Stream) -> Result<()> {
        let Some(gpu) = self.gpu()?.filter(|_| stream != Stream::NONE) else { return Ok(()) };
        self.held.inner().check_open()?;
        self.used_by(&gpu, stream)
    }

    /// As `use_on`, for memory of the machine too.
    pub(crate) fn used_by(&self, gpu: &Arc<Gpu>, stream: Stream) -> Result<()> {
        OnGpu(&self.held).check_lenders()?;
        OnGpu(&self.held).follow(gpu, stream)?;
        OnGpu(&self.held).note(gpu, stream.seen_by_all(), Done::Open);
        Ok(())
    }

    /// Waits until the sender's stream has written the tensor: without a limit when there is no timeout. `Expired`: the
    /// sender ended before. A stream that waited by [`use_on`](Tensor::use_on) and came through because
    /// the sender died has read what was there before: a reader that must not use that asks here, when the stream
    /// has passed.
    pub fn written(&self, timeout: impl Into<Option<Duration>>) -> Result<()> {
        self.written_until(deadline(timeout))
    }

    pub(super) fn written_until(&self, until: Option<Instant>) -> Result<()> {
        self.held.check()?;
        OnGpu(&self.held).written(None)?.map_or(Ok(()), |p| p.wait(self.held.inner(), until))?;
        OnGpu(&self.held).check_lenders()
    }

    /// Notes that a tensor is written when a stream has come as far as it was told.
    pub(crate) fn written_by(&self, gpu: &Arc<Gpu>, stream: Stream) -> Result<()> {
        let inner = self.held.inner();
        if let Some(p) = Devices::of(&inner.memory).mark(inner, gpu, stream)? {
            OnGpu(&self.held).written_at(p.clone());
            OnGpu(&self.held).note(gpu, stream.seen_by_all(), Done::At(p));
        }
        Ok(())
    }
}

impl Tensor {
    /// As [`to_device`](Tensor::to_device), waiting as an [`Allocation`](crate::Allocation) with a timeout
    /// does. Errors as of [`to_device`](Tensor::to_device).
    pub fn to_device_within(
        &self,
        device: &str,
        stream: Stream,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Tensor> {
        self.held.inner().wait_for_memory(timeout.into(), || self.to_device(device, stream))
    }
}
