//! A tensor's addresses, its file, and views of another type, for bindings of other languages.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Tensor;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};

impl Tensor {
    /// The address of the first element, to be read; dangling without elements. It is valid as long as this
    /// tensor or a clone lives. Others may write there. `Unsupported` on a GPU.
    pub fn as_ptr(&self) -> Result<*const u8> {
        self.address(false).map(<*mut u8>::cast_const)
    }

    /// The writable file that its storage lies in, the bytes of that, and where in it this tensor begins;
    /// `None` without elements. A caller that maps it counts no reference: it keeps this tensor. `ReadOnly`
    /// when the tensor must not be written.
    ///
    /// # Safety
    /// The file holds other tensors too, those of this process's `TensorMut`s among them: nothing outside
    /// of this tensor is written through it, by any process that it is given to.
    ///
    /// ```compile_fail,E0133
    /// # #![forbid(unsafe_code)]
    /// fn write_what_others_own(x: &baton::Tensor) {
    ///     let _ = x.file();
    /// }
    /// ```
    pub unsafe fn file(&self) -> Result<Option<(Arc<OwnedFd>, u64, u64)>> {
        self.check_shared()?;
        self.address(true)?;
        let Some(h) = self.storage() else { return Ok(None) };
        let s = self.held.segment(h, true)?;
        self.held.inner().open_file(&s, true)?;
        Ok(s.fd().map(|fd| (fd, s.bytes, h.offset + self.view().offset)))
    }

    /// The address of the first element, to be written. `ReadOnly` when it must not be.
    pub fn as_mut_ptr(&self) -> Result<*mut u8> {
        self.address(true)
    }

    /// The view of another type, shape and strides (in elements of that type, `None` for
    /// C-contiguous), `offset` bytes from this one's first element. `InvalidArgument` when it reaches
    /// past the storage or is not aligned.
    pub fn view_as(&self, dtype: DType, shape: &[i64], strides: Option<&[i64]>, offset: u64) -> Result<Tensor> {
        let Some(at) = self.view().offset.checked_add(offset) else {
            let what = format!("view at byte {offset} of {}{:?}", self.dtype(), self.shape());
            return Err(Error::new(Code::InvalidArgument, "use an offset inside the storage", what));
        };
        self.viewed(dtype, shape, strides, at)
    }
}
