//! The exchange tables of others.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Mutex;

use baton::dlpack::{DLPackExchangeAPI, DLTensor};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyType};

use crate::base::capsule::content;
use crate::objects::tensor::Tensor;

/// The name of a table's capsule, as DLPack 1.3 has it.
pub(crate) const NAME: &CStr = c"dlpack_exchange_api";

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

/// The type that had a table last, for a call that is about to meet many objects: to ask at each would take a
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
    if let Some(table) = table.filter(|_| !ob.is_instance_of::<Tensor>()) {
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
pub(crate) fn table_of(class: &Bound<'_, PyAny>) -> PyResult<Option<&'static DLPackExchangeAPI>> {
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
