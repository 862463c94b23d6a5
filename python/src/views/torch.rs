//! Tensors of torch of the same memory.

use std::ffi::c_void;

use baton::dlpack::{DLManagedTensor, DLPackExchangeAPI, ExportOptions, Managed, Structure};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::arrays::tables::table_of;
use crate::base::capsule::capsule;
use crate::base::cuda::on_gpu;
use crate::base::errors::OrRaise;
use crate::objects::tensor::Tensor;

/// An export of either structure. An older torch, such as 2.9, has no table, and takes capsules of the old one.
pub(crate) trait Exports {
    fn versioned(&self) -> baton::Result<Vec<Managed>>;
    fn legacy(&self) -> baton::Result<Vec<Managed<DLManagedTensor>>>;
}

/// As what a consumer writes into stays its own, where it must not write.
fn private() -> ExportOptions {
    ExportOptions::default().private(true)
}

/// Of each by itself.
impl Exports for [baton::Tensor] {
    fn versioned(&self) -> baton::Result<Vec<Managed>> {
        self.iter().map(|t| t.to_dlpack(private())).collect()
    }

    fn legacy(&self) -> baton::Result<Vec<Managed<DLManagedTensor>>> {
        self.iter().map(|t| t.to_dlpack_legacy(private())).collect()
    }
}

/// Those of one storage share what is written.
impl Exports for baton::Bundle {
    fn versioned(&self) -> baton::Result<Vec<Managed>> {
        self.to_dlpack(private())
    }

    fn legacy(&self) -> baton::Result<Vec<Managed<DLManagedTensor>>> {
        self.to_dlpack_legacy(private())
    }
}

/// For a caller that only reads: nothing is copied when it is written.
pub(crate) struct ToRead<'a>(pub(crate) &'a baton::Tensor);

impl Exports for ToRead<'_> {
    fn versioned(&self) -> baton::Result<Vec<Managed>> {
        Ok(vec![self.0.to_dlpack(ExportOptions::default())?])
    }

    fn legacy(&self) -> baton::Result<Vec<Managed<DLManagedTensor>>> {
        Ok(vec![self.0.to_dlpack_legacy(ExportOptions::default())?])
    }
}

/// The torch tensor of a tensor's object.
pub(crate) fn of<'py>(x: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let py = x.py();
    let t = x.get().tensor(py)?;
    if !on_gpu(&t)
        && let Ok(seen) = torch(py, std::slice::from_ref(&t))
    {
        return Ok(seen);
    }
    // On a GPU torch names its stream there; elsewhere its error names a way out.
    py.import("baton._views")?.call_method1("torch", (x,))
}

/// The torch tensor of a tensor.
pub(crate) fn torch<'py>(py: Python<'py>, export: &(impl Exports + ?Sized)) -> PyResult<Bound<'py, PyAny>> {
    let one = torch_all(py, export)?.pop();
    one.ok_or_else(|| PyBufferError::new_err("the library took no tensor"))
}

/// The torch tensors of what is exported, in its order: by torch's table where there is one.
pub(crate) fn torch_all<'py>(py: Python<'py>, export: &(impl Exports + ?Sized)) -> PyResult<Vec<Bound<'py, PyAny>>> {
    static TORCH: PyOnceLock<Option<&'static DLPackExchangeAPI>> = PyOnceLock::new();
    let table = *TORCH.get_or_try_init(py, || {
        // From here on torch is to know what lies in this memory, so that its own queues leave it there.
        py.import("baton.torch._install")?.call_method0("recognise")?;
        table_of(&py.import("torch")?.getattr("Tensor")?)
    })?;
    match table.and_then(|t| t.managed_tensor_to_py_object_no_sync) {
        Some(take) => all(export.versioned().or_raise(py)?, |m| {
            let mut out: *mut c_void = std::ptr::null_mut();
            // SAFETY: it steals the export, with an error too as far as it took it; the interpreter is held.
            if unsafe { take(m.into_raw(), &mut out) } != 0 || out.is_null() {
                return Err(PyErr::take(py).unwrap_or_else(|| PyBufferError::new_err("the library took no tensor")));
            }
            // SAFETY: a new reference.
            Ok(unsafe { Bound::from_owned_ptr(py, out.cast()) })
        }),
        None => {
            let take = py.import("torch.utils.dlpack")?.getattr("from_dlpack")?;
            all(export.legacy().or_raise(py)?, |m| take.call1((capsule(py, m)?,)))
        }
    }
}

/// What a library makes of each export. Behind one that it does not take the others are given back.
fn all<M: Structure, T>(exports: Vec<Managed<M>>, take: impl FnMut(Managed<M>) -> PyResult<T>) -> PyResult<Vec<T>> {
    exports.into_iter().map(take).collect()
}
