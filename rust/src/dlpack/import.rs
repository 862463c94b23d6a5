//! Taking tensors of other libraries of this process.

use std::sync::Arc;

use super::owned::{Managed, Structure};
use super::view::View;
use super::{DLTensor, device};
use crate::cuda::Stream;
use crate::error::{Code, Error, Result};
use crate::holding::Place;
use crate::session::{Session, open_sessions};
use crate::tensor::Tensor;

impl Session {
    /// Takes a tensor of another library over, of either structure: its elements are copied once into shared
    /// memory, unless they lie there already; then the tensor is one more reference to that memory. As of
    /// [`to_vec`](Tensor::to_vec), a copy of what others write meanwhile may be torn. When it
    /// returns the deleter has been called, once, with an error too.
    ///
    /// Of another major version than 1 only the deleter is used (`Unsupported`).
    ///
    /// # Errors
    /// `Unsupported` for memory that the processor cannot read; `InvalidArgument` for what cannot be: negative extents,
    /// elements without memory, sizes that overflow, an unknown type; `OutOfMemory` and the others of
    /// [`alloc`](Session::alloc).
    ///
    /// # Example
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::dlpack::{ExportOptions, Managed};
    ///
    /// let x = session.from_slice(&[3], &[1i32, 2, 3])?.freeze();
    /// let theirs = x.to_dlpack(ExportOptions::default())?.into_raw(); // as another library would give it
    /// let y = session.from_dlpack(unsafe { Managed::from_raw(theirs)? })?;
    /// assert_eq!(y.to_vec::<i32>()?, [1, 2, 3]);
    /// assert_eq!(y.as_ptr()?, x.as_ptr()?); // lies in shared memory already: no copy
    /// # Ok(()) }
    /// ```
    pub fn from_dlpack<M: Structure>(&self, m: Managed<M>) -> Result<Tensor> {
        // SAFETY: a live structure that keeps DLPack's rules, as `Managed::from_raw` asks.
        let (t, flags) = unsafe { M::read(m.as_ptr())? };
        // SAFETY: the structure lives, and with it what it points to.
        unsafe { self.share(&t, flags) }
    }

    /// A tensor with the elements of a view that is lent: they are copied once into shared memory,
    /// unless they lie in this session's already. A view without gaps keeps the order of its dimensions, others become
    /// compact. Memory of a GPU is copied to memory of the same GPU, by
    /// its legacy default stream, after whose work it must be written. `flags` are those of the structure around it, 0 for
    /// none. Errors as for [`from_dlpack`](Session::from_dlpack).
    ///
    /// # Safety
    /// The view is live and its addresses are right: shape and strides have `ndim` numbers, strides
    /// may be null; the elements may be read. They are read by atomic loads: other processes may write them meanwhile,
    /// and so may this one's atomic stores. Then values may be torn. Nothing else writes them.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::dlpack::{CPU, DLDevice, DLTensor, Gather, device};
    ///
    /// let (mut theirs, mut shape) = ([1i32, 2, 3], [3]);
    /// let view = DLTensor {
    ///     data: theirs.as_mut_ptr().cast(),
    ///     device: DLDevice { device_type: CPU, device_id: 0 },
    ///     ndim: 1,
    ///     dtype: baton::DType::INT32,
    ///     shape: shape.as_mut_ptr(),
    ///     strides: std::ptr::null_mut(), // C-contiguous
    ///     byte_offset: 0,
    /// };
    /// assert!(device::is_host(view.device.device_type));
    /// assert!(unsafe { session.share_in_place(&view, 0)? }.is_none()); // in this program's own memory
    /// let x = unsafe { session.share(&view, 0)? };
    /// assert_eq!(x.to_vec::<i32>()?, [1, 2, 3]);
    /// let all = unsafe { session.gather([(&view, 0), (&view, 0)].into_iter(), Gather::Copy)? };
    /// theirs[0] = 9;
    /// unsafe { x.copy_from(&view, 0)? };
    /// assert_eq!((x.to_vec::<i32>()?, all[1].to_vec::<i32>()?), (vec![9, 2, 3], vec![1, 2, 3]));
    /// # Ok(()) }
    /// ```
    pub unsafe fn share(&self, view: &DLTensor, flags: u64) -> Result<Tensor> {
        if view.device.device_type == device::CUDA {
            // SAFETY: as the caller says.
            return unsafe { self.share_device(view, flags) };
        }
        // SAFETY: as the caller says.
        let v = unsafe { View::of(view, flags)? };
        if let Some(t) = self.find(&v) {
            return Ok(t);
        }
        let t = self.alloc_dtype(v.dtype, &v.shape)?.ordered_as(v.order())?;
        // SAFETY: as the caller says; the tensor was just made, of that shape and type.
        unsafe { v.copy_to(t.address(true)?, t.strides()) };
        Ok(t)
    }

    /// The tensor of a view that is lent, if it lies in memory of this session already; `None` for what
    /// [`share`](Session::share) would copy. Errors as of [`share`](Session::share).
    ///
    /// # Safety
    /// As for [`share`](Session::share).
    pub unsafe fn share_in_place(&self, view: &DLTensor, flags: u64) -> Result<Option<Tensor>> {
        // SAFETY: as the caller says.
        Ok(self.find(&unsafe { View::anywhere(view, flags)? }))
    }

    /// The tensor of a view that lies in memory of this session which this process holds.
    pub(super) fn find(&self, v: &View) -> Option<Tensor> {
        if !v.is_plain() {
            return None;
        }
        let (holding, offset, writable) = self.inner().ok()?.holder_of(v.first, v.span)?;
        let (shape, strides) = (v.shape.clone(), v.strides.clone());
        Tensor::checked(holding.into(), Place::Storage(0), offset, v.dtype, shape, strides, v.readonly || !writable)
            .ok()
    }
}

impl<M: Structure> Managed<M> {
    /// The tensor of a structure whose elements lie in memory that a session of this process holds, whichever
    /// session that is; `None` for others, which [`Session::from_dlpack`] copies. Errors as of that.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::dlpack::ExportOptions;
    ///
    /// let x = session.from_slice(&[3], &[1i32, 2, 3])?.freeze();
    /// let theirs = x.to_dlpack(ExportOptions::default())?; // as it comes back from another library
    /// let same = theirs.in_place()?.expect("it is Baton's");
    /// assert_eq!((same.as_ptr()?, same.session().serial()), (x.as_ptr()?, session.serial()));
    /// # Ok(()) }
    /// ```
    pub fn in_place(&self) -> Result<Option<Tensor>> {
        // SAFETY: a live structure that keeps DLPack's rules, as `Managed::from_raw` asks.
        let (t, flags) = unsafe { M::read(self.as_ptr())? };
        // SAFETY: the structure lives, and with it what it points to.
        let view = unsafe { View::anywhere(&t, flags)? };
        Ok(open_sessions().iter().find_map(|s| s.find(&view)))
    }
}

impl Tensor {
    /// Whether a session can send it as it is: it is the session's own, or came to it by a fork.
    #[doc(hidden)]
    pub fn belongs_to(&self, session: &Session) -> Result<bool> {
        let (its, this) = (self.held.inner(), session.inner()?);
        Ok(Arc::ptr_eq(its, this) || its.is_succeeded_by(this))
    }

    /// Copies the elements of a view of the same shape and type into this tensor, whose strides are
    /// followed.
    ///
    /// # Errors
    /// `ReadOnly`; `InvalidArgument` when shapes or types differ, or a sub-byte type would have to go to a place that
    /// is not compact; those of [`Session::share`].
    ///
    /// # Safety
    /// As for [`Session::share`]; and no code, in this or another process, reads or writes this
    /// tensor's memory meanwhile.
    pub unsafe fn copy_from(&self, view: &DLTensor, flags: u64) -> Result<()> {
        if self.on_device().is_some() || view.device.device_type == device::CUDA {
            // SAFETY: as the caller says.
            return unsafe { self.copy_from_on(view, flags, Stream::LEGACY) };
        }
        // SAFETY: as the caller says.
        let v = unsafe { View::of(view, flags)? };
        if v.dtype != self.dtype() || *v.shape != *self.shape() {
            let what = format!("{}{:?} is copied to {}{:?}", v.dtype, v.shape, self.dtype(), self.shape());
            return Err(Error::new(Code::InvalidArgument, "give the same type and shape", what));
        }
        if !v.dtype.item_bits().is_multiple_of(8) && !self.is_contiguous() {
            let what = format!("a {} with strides {:?} is written", v.dtype, self.strides());
            return Err(Error::new(Code::InvalidArgument, "copy to a contiguous tensor", what));
        }
        let to = self.address(true)?;
        // SAFETY: as the caller says; this tensor was checked against its storage.
        unsafe { v.copy_to(to, self.strides()) };
        Ok(())
    }
}
