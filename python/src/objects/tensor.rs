//! The class of tensors. Its methods stand in `face`.

use std::sync::Mutex;

use baton::Code;
use baton::dlpack::{DLTensor, ExportOptions, Managed};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::base::errors::{OrRaise, error};

/// A view of shared memory: shape, strides in elements, dtype. Slices and reshapes are views of the
/// same storage. np.asarray(x), memoryview(x) and torch.from_dlpack(x) look at the memory itself.
///
/// Published names and topic messages arrive read-only; queue items, live names and opened handles may
/// be written where the handle may. What was sent is not written any more by its sender.
///
/// >>> x = baton.share(np.arange(6, dtype="float32").reshape(2, 3))
/// >>> x.shape, x.strides, x.ndim, x.size, x.nbytes
/// ((2, 3), (3, 1), 2, 6, 24)
/// >>> x.dtype, x.device, x.readonly
/// ('float32', 'cpu', False)
/// >>> np.asarray(x)[0, 0] = 9.0
/// >>> x[0].tolist(), x.T.shape
/// ([9.0, 1.0, 2.0], (3, 2))
#[pyclass(frozen, module = "baton", weakref, freelist = 1024)]
pub(crate) struct Tensor {
    held: Mutex<Option<baton::Tensor>>,
    /// An export that others look at while they hold the object.
    lent: Mutex<Option<Managed>>,
}

impl From<baton::Tensor> for Tensor {
    fn from(t: baton::Tensor) -> Tensor {
        Tensor { held: Mutex::new(Some(t)), lent: Mutex::default() }
    }
}

impl Tensor {
    /// The object of a tensor. It refers to no object of Python, so the collector of cycles need not look
    /// at it: values may have thousands of them.
    pub(crate) fn object(py: Python<'_>, t: baton::Tensor) -> PyResult<Bound<'_, Tensor>> {
        let made = Bound::new(py, Tensor::from(t))?;
        // SAFETY: a live object, which its class made as one that is tracked.
        unsafe { ffi::PyObject_GC_UnTrack(made.as_ptr().cast()) };
        Ok(made)
    }

    /// The client's tensor. Raises Closed after release.
    pub(crate) fn tensor(&self, py: Python<'_>) -> PyResult<baton::Tensor> {
        self.look(py, baton::Tensor::clone)
    }

    /// The client's tensor; None after release.
    pub(crate) fn held(&self) -> Option<baton::Tensor> {
        self.held.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Ends the object.
    pub(crate) fn let_go(&self) {
        let held = self.held.lock().unwrap_or_else(|p| p.into_inner()).take();
        let lent = self.lent.lock().unwrap_or_else(|p| p.into_inner()).take();
        drop((held, lent)); // outside of the locks
    }

    /// What is seen of the client's tensor. Raises Closed after release. Others wait meanwhile with the
    /// interpreter held, so what looks must not let it go: it makes no objects and raises nothing.
    pub(crate) fn look<T>(&self, py: Python<'_>, see: impl FnOnce(&baton::Tensor) -> T) -> PyResult<T> {
        let seen = self.held.lock().unwrap_or_else(|p| p.into_inner()).as_ref().map(see);
        let remedy = "arrays made from it before keep the memory";
        seen.ok_or_else(|| error(py, Code::Closed, remedy, "the tensor was released"))
    }
}

impl Tensor {
    /// The view for borrowers of the object: valid as long as it is neither released nor gone.
    pub(crate) fn lent(&self, py: Python<'_>) -> PyResult<DLTensor> {
        let t = self.tensor(py)?;
        let view = {
            let mut lent = self.lent.lock().unwrap_or_else(|p| p.into_inner());
            let export = match &mut *lent {
                Some(e) => Ok(e),
                none => t.to_dlpack(ExportOptions::default().private(true)).map(|m| none.insert(m)),
            };
            // SAFETY: a live export.
            export.map(|e| unsafe { (*e.as_ptr()).dl_tensor })
        };
        view.or_raise(py)
    }
}
