//! The exchange tables: ours, by which libraries take and make tensors without calling Python, and
//! those of others.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;

use baton::dlpack::{
    DLManagedTensor, DLManagedTensorVersioned, DLPackExchangeAPI, DLTensor, ExportOptions, Managed, Structure, exchange_api,
};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyType};

use crate::capsule::{capsule, content};
use crate::errors::OrRaise;
use crate::tensor::Tensor;

const NAME: &CStr = c"dlpack_exchange_api";

/// The table of `baton.Tensor`. Its allocator needs no interpreter.
static TABLE: DLPackExchangeAPI = exchange_api(from_py, to_py, Some(borrow));

/// The capsule of the table, as DLPack 1.3 names it.
pub(crate) fn table_capsule(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let table = (&raw const TABLE).cast_mut().cast::<c_void>();
    // SAFETY: table and name are static, and there is nothing to destroy.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(table, NAME.as_ptr(), None)) };
    Ok(made?.unbind())
}

/// The address of the table, as DLPack 1.2 had it.
pub(crate) fn table_address() -> usize {
    &raw const TABLE as usize
}

/// A type that has a table.
pub(crate) struct Known(Py<PyType>, &'static DLPackExchangeAPI);

impl Known {
    /// The table, if it is that of an object's type. It costs next to nothing.
    #[inline]
    pub(crate) fn table(&self, ob: &Bound<'_, PyAny>) -> Option<&'static DLPackExchangeAPI> {
        (self.0.as_ptr() == ob.get_type_ptr().cast()).then_some(self.1)
    }
}

/// The type, other than this package's own, that had a table last.
static LAST: Mutex<Option<Known>> = Mutex::new(None);

/// The type that had a table last, for one who is about to meet many objects: to ask at each would take a
/// lock at each.
pub(crate) fn last(py: Python<'_>) -> Option<Known> {
    let last = LAST.lock().unwrap_or_else(|p| p.into_inner());
    last.as_ref().map(|Known(class, table)| Known(class.clone_ref(py), table))
}

/// The table of an object's type.
pub(crate) fn table_for(ob: &Bound<'_, PyAny>) -> PyResult<Option<&'static DLPackExchangeAPI>> {
    let last = LAST.lock().unwrap_or_else(|p| p.into_inner()).as_ref().and_then(|k| k.table(ob));
    if last.is_some() {
        return Ok(last);
    }
    let class = ob.get_type();
    let table = table_of(class.as_any())?;
    if let Some(table) = table.filter(|t| !std::ptr::eq(*t, &TABLE)) {
        let last = LAST.lock().unwrap_or_else(|p| p.into_inner()).replace(Known(class.unbind(), table));
        drop(last); // outside of the lock: the end of a type may run anything
    }
    Ok(table)
}

/// A tensor's own view, lent as long as the object is there and is not resized, written where it is to stay.
/// False, and nothing is there, where the table has no function for that, or refuses.
#[inline(always)]
pub(crate) fn borrow_to(ob: &Bound<'_, PyAny>, table: &DLPackExchangeAPI, at: &mut MaybeUninit<DLTensor>) -> bool {
    let Some(lend) = table.dltensor_from_py_object_no_sync else { return false };
    // SAFETY: a live object and a place for the view; the interpreter is held.
    let lent = unsafe { lend(ob.as_ptr().cast(), at.as_mut_ptr()) } == 0;
    if !lent {
        drop(PyErr::take(ob.py()));
    }
    lent
}

/// The table that a type publishes, under either name.
fn table_of(class: &Bound<'_, PyAny>) -> PyResult<Option<&'static DLPackExchangeAPI>> {
    let mut at: *const DLPackExchangeAPI = std::ptr::null();
    if let Some(c) = class.getattr_opt("__dlpack_c_exchange_api__")? {
        // SAFETY: a live object; the pointer is read only from a capsule of that name.
        at = unsafe { content(c.as_ptr(), NAME) };
    } else if let Some(n) = class.getattr_opt("__c_dlpack_exchange_api__")?.filter(|n| n.is_instance_of::<PyInt>()) {
        at = std::ptr::with_exposed_provenance(n.extract::<usize>()?);
    }
    // SAFETY: the standard says that a published table is static for the process.
    Ok(unsafe { at.as_ref() }.filter(|t| t.header.version.major == 1))
}

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

/// Runs what may raise in a function of the table: the error is set as the exception, and -1 returned.
///
/// # Safety
/// The interpreter is held, as the standard says of functions that meet Python objects.
unsafe fn raising(f: impl FnOnce(Python<'_>) -> PyResult<()>) -> c_int {
    // SAFETY: as the caller says.
    let py = unsafe { Python::assume_attached() };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(py))) {
        Ok(Ok(())) => 0,
        Ok(Err(e)) => {
            e.restore(py);
            -1
        }
        Err(_) => {
            PyBufferError::new_err("the exchange table failed: report this").restore(py);
            -1
        }
    }
}

/// The tensor of an object.
///
/// # Safety
/// A live object.
unsafe fn tensor_of(py: Python<'_>, ob: *mut c_void) -> PyResult<baton::Tensor> {
    // SAFETY: as the caller says.
    let ob = unsafe { Bound::from_borrowed_ptr(py, ob.cast()) };
    ob.cast::<Tensor>()?.get().tensor(py)
}

/// # Safety
/// As the DLPack header says: a live object, a place for the result, the interpreter held.
unsafe extern "C" fn from_py(ob: *mut c_void, out: *mut *mut DLManagedTensorVersioned) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        raising(|py| {
            *out = tensor_of(py, ob)?.to_dlpack(private()).or_raise(py)?.into_raw();
            Ok(())
        })
    }
}

/// # Safety
/// As the DLPack header says: a tensor to be taken over, a place for the result, the interpreter held.
unsafe extern "C" fn to_py(m: *mut DLManagedTensorVersioned, out: *mut *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        raising(|py| {
            let m = Managed::from_raw(m).or_raise(py)?;
            let t = crate::session::default(py)?.from_dlpack(m).or_raise(py)?;
            *out = Tensor::object(py, t)?.into_ptr().cast();
            Ok(())
        })
    }
}

/// # Safety
/// As the DLPack header says: a live object, a place for the view, the interpreter held.
unsafe extern "C" fn borrow(ob: *mut c_void, out: *mut DLTensor) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        raising(|py| {
            let object = Bound::from_borrowed_ptr(py, ob.cast());
            *out = object.cast::<Tensor>()?.get().lent(py)?;
            Ok(())
        })
    }
}
