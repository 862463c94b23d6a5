//! Tensors of other libraries, lent: by the exchange table of their type, else by `__dlpack__`.

use baton::Stream;
use baton::dlpack::{DLManagedTensor, DLManagedTensorVersioned, DLTensor, Managed, device};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::tables::table_for;
use crate::base::capsule::{LEGACY, VERSIONED, content};
use crate::base::errors::OrRaise;
use crate::base::refused::reachable;

/// Another library's tensor, held until it is dropped.
pub(crate) struct Imported {
    tensor: *const DLTensor,
    flags: u64,
    _keep: Keep,
}

#[expect(dead_code, reason = "held for their drop")]
enum Keep {
    /// Looked at and not consumed: its own destructor frees it.
    Capsule(Py<PyAny>),
    Managed(Managed),
}

fn check_version(m: *const DLManagedTensorVersioned) -> PyResult<()> {
    // SAFETY: a live structure; the version stands first in every major version.
    let version = unsafe { (*m).version };
    if version.major == 1 {
        return Ok(());
    }
    Err(PyBufferError::new_err(format!(
        "the array came as DLPack {}.{}; this package reads 1.x",
        version.major, version.minor
    )))
}

impl Imported {
    /// Asks an object for its tensor.
    pub(crate) fn of(ob: &Bound<'_, PyAny>) -> PyResult<Imported> {
        match table_for(ob)? {
            Some(table) if table.managed_tensor_from_py_object_no_sync.is_some() => {
                let found = Imported::by_table(ob, table)?;
                match found.tensor().device.device_type {
                    device::CUDA => Imported::by_method(ob), // which waits for the stream that wrote it
                    _ => Ok(found),
                }
            }
            _ => Imported::by_method(ob),
        }
    }

    fn by_table(ob: &Bound<'_, PyAny>, table: &baton::dlpack::DLPackExchangeAPI) -> PyResult<Imported> {
        let mut m: *mut DLManagedTensorVersioned = std::ptr::null_mut();
        let Some(give) = table.managed_tensor_from_py_object_no_sync else { return Imported::by_method(ob) };
        // SAFETY: a live object and a place for the result; the interpreter is held.
        if unsafe { give(ob.as_ptr().cast(), &mut m) } != 0 || m.is_null() {
            return Err(PyErr::take(ob.py()).unwrap_or_else(|| PyBufferError::new_err("the array gave no tensor")));
        }
        // SAFETY: a live structure that was given to us, and keeps the standard's rules.
        let keep = unsafe { Managed::from_raw(m) }.or_raise(ob.py())?;
        check_version(m)?;
        // SAFETY: a structure of version 1, which `keep` holds.
        let flags = unsafe { (*m).flags };
        // SAFETY: as above.
        let tensor = unsafe { &raw const (*m).dl_tensor };
        Ok(Imported { tensor, flags, _keep: Keep::Managed(keep) })
    }

    /// By `__dlpack__`. Producers older than DLPack 1.0 know no keywords.
    fn by_method(ob: &Bound<'_, PyAny>) -> PyResult<Imported> {
        let py = ob.py();
        let (all, old) = (PyDict::new(py), PyDict::new(py));
        if let Ok(at) = ob.call_method0("__dlpack_device__") {
            let (at, _): (i32, i32) = at.extract()?;
            reachable(py, at)?;
            if at == device::CUDA {
                old.set_item("stream", Stream::LEGACY.as_raw())?; // by which it is copied
                all.update(old.as_mapping())?;
            }
        }
        all.set_item("max_version", (1, 3))?;
        let capsule = match ob.call_method("__dlpack__", (), Some(&all)) {
            Err(e) if e.is_instance_of::<PyTypeError>(py) => ob.call_method("__dlpack__", (), Some(&old))?,
            capsule => capsule?,
        };
        let raw: *mut ffi::PyObject = capsule.as_ptr();
        // SAFETY: a live object; what it points to is read only when it is a capsule of that name.
        let new = unsafe { content::<DLManagedTensorVersioned>(raw, VERSIONED) };
        // SAFETY: as above.
        let old = unsafe { content::<DLManagedTensor>(raw, LEGACY) };
        let (tensor, flags): (*const DLTensor, u64) = if !new.is_null() {
            check_version(new)?;
            // SAFETY: a structure of version 1, alive as long as its capsule.
            unsafe { (&raw const (*new).dl_tensor, (*new).flags) }
        } else if !old.is_null() {
            // SAFETY: a structure before 1.0.
            unsafe { (&raw const (*old).dl_tensor, 0) }
        } else {
            return Err(PyBufferError::new_err("__dlpack__ gave no capsule named dltensor or dltensor_versioned"));
        };
        Ok(Imported { tensor, flags, _keep: Keep::Capsule(capsule.unbind()) })
    }

    /// The tensor.
    pub(crate) fn tensor(&self) -> &DLTensor {
        // SAFETY: it lives as long as what this value keeps.
        unsafe { &*self.tensor }
    }

    /// Its flags; 0 of a structure that has none.
    pub(crate) fn flags(&self) -> u64 {
        self.flags
    }
}
