//! Taking tensors of other libraries that lie on a GPU, and copies between them and Baton's.

use super::view::View;
use super::{DLTensor, device};
use crate::cuda::{Stream, driver};
use crate::devices::Devices;
use crate::error::{Code, Error, Result};
use crate::holding::Place;
use crate::session::Session;
use crate::tensor::Tensor;

/// Refuses elements that no single copy reaches.
fn contiguous(v: &View) -> Result<()> {
    if v.strides.is_none() && v.is_plain() {
        return Ok(());
    }
    let what = format!("a {}{:?} with strides {:?} on a GPU", v.dtype, v.shape, v.strides);
    Err(Error::new(Code::Unsupported, "make it contiguous first, as by torch's contiguous()", what))
}

impl Session {
    /// As `share`, of a view on a GPU.
    ///
    /// # Safety
    /// As of `share`; the legacy default stream comes after what writes the elements.
    pub(super) unsafe fn share_device(&self, view: &DLTensor, flags: u64) -> Result<Tensor> {
        // SAFETY: as the caller says.
        let v = unsafe { View::anywhere(view, flags)? };
        if let Some(t) = self.find(&v) {
            return Ok(t);
        }
        let name = format!("cuda:{}", view.device.device_id);
        // SAFETY: as the caller says.
        unsafe { self.share_on(&name, view, flags, Stream::LEGACY) }
    }

    /// A tensor on a device with the elements of a view that is lent, copied after the work of a stream. A view without
    /// gaps keeps the order of its dimensions.
    /// Errors as of [`Allocation::on`](crate::Allocation::on) and [`copy_from_on`](Tensor::copy_from_on).
    ///
    /// # Safety
    /// As of [`copy_from_on`](Tensor::copy_from_on).
    pub unsafe fn share_on(&self, name: &str, view: &DLTensor, flags: u64, stream: Stream) -> Result<Tensor> {
        // SAFETY: as the caller says.
        let v = unsafe { View::anywhere(view, flags)? };
        let t = self.allocation(&v.shape).on(name, v.dtype)?.ordered_as(v.order())?;
        // SAFETY: as the caller says; on the CPU the tensor has no other owner.
        unsafe { t.copy_from_on(view, flags, stream)? };
        if let Some(gpu) = t.gpu()? {
            t.written_by(&gpu, stream)?;
        }
        Ok(t)
    }

    /// The elements of a view on a GPU as they lie, not copied: in memory that a framework allocated by
    /// cudaMalloc, or has from a [`DeviceAllocator`](crate::DeviceAllocator). Others open it while they hold
    /// it, and in cudaMalloc's memory only as long as this session lives: then, and if they come late, they
    /// get `Expired`. `keep` is dropped, on a thread of the session's, when the tensor has no holder any more,
    /// and at once with an error; what is still held when the session is closed is kept to the end of the
    /// process. `Unsupported` for memory that the driver cannot lend: virtual memory of a framework's own
    /// (expandable segments) and that of asynchronous pools.
    ///
    /// # Safety
    /// As of [`share`](Session::share), and the elements stay where they are until `keep` is dropped. Work of
    /// the stream comes after what writes them.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::dlpack::{DLDevice, DLTensor, device};
    /// use baton::{DType, DeviceAllocator, Stream};
    ///
    /// if baton::Session::device_memory("cuda").is_err() {
    ///     return Ok(()); // without a GPU there is no more to see
    /// }
    /// let rented = DeviceAllocator::new(&session); // or memory of cudaMalloc
    /// assert!(rented.is_of(&session));
    /// let (at, mut shape) = (rented.alloc(0, 8)?, [2]);
    /// let view = DLTensor {
    ///     data: at as *mut _,
    ///     device: DLDevice { device_type: device::CUDA, device_id: 0 },
    ///     ndim: 1,
    ///     dtype: DType::FLOAT32,
    ///     shape: shape.as_mut_ptr(),
    ///     strides: std::ptr::null_mut(),
    ///     byte_offset: 0,
    /// };
    /// assert!(unsafe { session.is_rented(&view, 0)? });
    /// let copy = unsafe { session.share_on("cuda:0", &view, 0, Stream::LEGACY)? };
    /// unsafe { copy.copy_from_on(&view, 0, Stream::LEGACY)? };
    /// // The allocator goes when the tensor has no holder any more, and its memory with it.
    /// let lent = unsafe { session.lend(&view, 0, Stream::LEGACY, Box::new(rented))? };
    /// assert_eq!(lent.device_ptr(false)?, at);
    /// # Ok(()) }
    /// ```
    pub unsafe fn lend(
        &self,
        view: &DLTensor,
        flags: u64,
        stream: Stream,
        keep: Box<dyn std::any::Any + Send>,
    ) -> Result<Tensor> {
        // SAFETY: as the caller says.
        let v = unsafe { View::anywhere(view, flags)? };
        if view.device.device_type != device::CUDA || !v.is_plain() || v.first.is_null() {
            let what = format!("a {}{:?} on device type {} is to be lent", v.dtype, v.shape, view.device.device_type);
            return Err(Error::new(Code::Unsupported, "give elements on a GPU, or share a copy", what));
        }
        let inner = self.inner()?;
        let gpu = Devices::gpu(&inner.memory, driver()?.numbered(view.device.device_id)?);
        let (held, offset) = Devices::lend(inner, &gpu, v.first.addr() as u64, v.span, keep)?;
        let t = Tensor::checked(held, Place::Storage(0), offset, v.dtype, v.shape, v.strides, v.readonly)?;
        if stream != Stream::NONE {
            t.written_by(&gpu, stream)?;
        }
        Ok(t)
    }

    /// Whether a view on a GPU lies in memory that a framework has from a
    /// [`DeviceAllocator`](crate::DeviceAllocator) of this session, so that [`lend`](Session::lend) is the
    /// cheapest way to hand it over. Errors: `InvalidArgument` for a view that DLPack does not allow.
    ///
    /// # Safety
    /// As of [`share`](Session::share).
    pub unsafe fn is_rented(&self, view: &DLTensor, flags: u64) -> Result<bool> {
        // SAFETY: as the caller says.
        let v = unsafe { View::anywhere(view, flags)? };
        let beside = self.inner()?.memory.beside();
        Ok(beside.is_some_and(|b| b.is_rented(v.first.addr() as u64, v.span.max(1))))
    }
}

impl Tensor {
    /// As [`copy_from`](Tensor::copy_from), after the work of a stream, if one of the two lies on a
    /// GPU. From memory of the machine to a GPU the copy is not waited for; otherwise it is, since the
    /// view is given back, or the processor reads what was copied. `Unsupported` if elements are not
    /// contiguous on a GPU, or lie on two of them.
    ///
    /// # Safety
    /// As of [`copy_from`](Tensor::copy_from). The stream comes after what writes the view, and nothing
    /// but work of that stream uses this tensor until it has passed. Memory of the machine that the
    /// program has registered with the driver stays as it is until then.
    pub unsafe fn copy_from_on(&self, view: &DLTensor, flags: u64, stream: Stream) -> Result<()> {
        // SAFETY: as the caller says.
        let v = unsafe { View::anywhere(view, flags)? };
        if v.dtype != self.dtype() || *v.shape != *self.shape() {
            let what = format!("{}{:?} is copied to {}{:?}", v.dtype, v.shape, self.dtype(), self.shape());
            return Err(Error::new(Code::InvalidArgument, "give the same type and shape", what));
        }
        if v.first.is_null() {
            return Ok(()); // no elements
        }
        if self.on_device().is_none() && device::is_host(view.device.device_type) {
            // SAFETY: as the caller says.
            return unsafe { self.copy_from(view, flags) };
        }
        if v.order().is_some_and(|order| self.order() == Some(order)) {
            let (shape, t) = ([self.len() as i64], self.as_they_lie()?);
            let view = DLTensor { ndim: 1, shape: shape.as_ptr().cast_mut(), strides: std::ptr::null_mut(), ..*view };
            // SAFETY: as the caller says, of the same elements.
            return unsafe { t.copy_from_on(&view, flags, stream) };
        }
        if view.device.device_type == device::CUDA {
            contiguous(&v)?;
            let from = driver()?.numbered(view.device.device_id)?;
            // SAFETY: as the caller says.
            return unsafe { self.copy_device(from, v.first.addr() as u64, stream) };
        }
        if !device::is_host(view.device.device_type) {
            let what = format!("DLPack: a tensor on device type {}", view.device.device_type);
            return Err(Error::new(Code::Unsupported, "copy it to the host first", what));
        }
        if contiguous(&v).is_ok() {
            // SAFETY: as the caller says.
            return unsafe { self.copy_bytes(v.first, stream) };
        }
        // Gathered first, in memory that no driver has registered: it is read before the call returns.
        let mut gathered = vec![0u8; self.num_bytes() as usize];
        // SAFETY: the copy is compact and has the view's shape and type.
        unsafe {
            v.copy_to(gathered.as_mut_ptr(), None);
            self.copy_bytes(gathered.as_ptr(), stream)
        }
    }
}
