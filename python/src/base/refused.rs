//! Arrays whose elements would not arrive as what they are, and the way out that their owners are told.

use std::sync::atomic::{AtomicPtr, Ordering};

use baton::dlpack::{DLTensor, device};
use baton::{Code, DType};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};

use super::errors::error;

/// Refuses NumPy's masked arrays: what lends the elements does not tell which of them count.
pub(crate) fn refuse_mask(ob: &Bound<'_, PyAny>) -> PyResult<()> {
    /// numpy.ndarray, which lives as long as the process. Nothing is asked of its own arrays.
    static PLAIN: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
    if PLAIN.load(Ordering::Relaxed) == ob.get_type_ptr() {
        return Ok(());
    }
    let py = ob.py();
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(numpy) = modules.get_item("numpy")? else { return Ok(()) };
    if numpy.getattr("ndarray")?.is(ob.get_type()) {
        PLAIN.store(ob.get_type_ptr(), Ordering::Relaxed);
        return Ok(());
    }
    // Where it was not imported there are none.
    let Some(ma) = modules.get_item("numpy.ma")? else { return Ok(()) };
    if !ob.is_instance(&ma.getattr("MaskedArray")?)? || ob.getattr("mask")?.is(ma.getattr("nomask")?) {
        return Ok(());
    }
    let remedy = "give a.filled(value), or the two arrays {\"data\": a.data, \"mask\": a.mask}";
    Err(PyTypeError::new_err(format!("a masked array would lose its mask: {remedy}")))
}

/// Refuses torch's integers of one to seven bits, which it lends as if they were of eight: what they are would
/// not arrive, and how many of them lie in a byte is known to their owner alone.
pub(crate) fn refuse_narrow(ob: &Bound<'_, PyAny>, t: &DLTensor) -> PyResult<()> {
    /// torch.uint8 and torch.int8, which live as long as the process. Nothing more is asked of these.
    static PLAIN: [AtomicPtr<ffi::PyObject>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
    let plain = match t.dtype {
        DType::UINT8 => &PLAIN[0],
        DType::INT8 => &PLAIN[1],
        _ => return Ok(()),
    };
    let Some(dtype) = ob.getattr_opt("dtype")? else { return Ok(()) };
    if plain.load(Ordering::Relaxed) == dtype.as_ptr() {
        return Ok(());
    }
    let text = dtype.str()?;
    let Some(name) = text.to_str()?.strip_prefix("torch.") else { return Ok(()) };
    match name.trim_start_matches(|c: char| c.is_ascii_alphabetic()) {
        "8" => plain.store(dtype.as_ptr(), Ordering::Relaxed),
        "1" | "2" | "3" | "4" | "5" | "6" | "7" => {
            let remedy =
                format!("give its bytes, a.view(torch.uint8), which the receiver sees by x.torch().view({text})");
            let what = format!("a tensor of {text} is nothing that other libraries know: {remedy}");
            return Err(PyTypeError::new_err(what));
        }
        _ => {}
    }
    Ok(())
}

/// What is said of a NumPy array whose elements are no numbers that others know; `None` where they are.
pub(crate) fn of_no_dtype(ob: &Bound<'_, PyAny>) -> Option<PyErr> {
    let dtype = ob.getattr("dtype").ok()?;
    let kind = dtype.getattr("kind").ok()?.extract::<char>().ok()?;
    let bytes = dtype.getattr("itemsize").ok()?.extract::<usize>().ok()?;
    let remedy = match kind {
        'O' => "make it an array of numbers, or give a list",
        'S' | 'T' | 'U' => "give strings as a list: a.tolist()",
        'M' | 'm' => "give its numbers: a.view(\"int64\")",
        'V' if dtype.getattr("names").ok()?.is_none() => "give its bytes: a.view(\"uint8\")",
        'V' => "give its fields one by one: a[name]",
        // ml_dtypes' own letter of complex numbers.
        'W' => "give what others know: a.astype(\"complex64\")",
        'f' if bytes > 8 => "give what fits: a.astype(\"float64\")",
        'c' if bytes > 16 => "give what fits: a.astype(\"complex128\")",
        _ if !dtype.getattr("isnative").ok()?.extract::<bool>().ok()? => {
            "turn its bytes round: a.astype(a.dtype.newbyteorder(\"=\"))"
        }
        _ => return None,
    };
    Some(PyTypeError::new_err(format!("an array of dtype {dtype} is nothing that other libraries know: {remedy}")))
}

/// Refuses tensors of TensorFlow's without numbers, which end the process when they are asked for DLPack.
pub(crate) fn refuse_strings(ob: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(dtype) = ob.getattr_opt("dtype")? else { return Ok(()) };
    let Some(name) = dtype.getattr_opt("name")? else { return Ok(()) };
    let Ok(name) = name.extract::<&str>() else { return Ok(()) };
    let remedy = match name {
        "string" => "give strings as a list: a.numpy().tolist()",
        "resource" | "variant" => "give the value that it leads to",
        _ => return Ok(()),
    };
    Err(PyTypeError::new_err(format!("a tensor of {name} is nothing that other libraries know: {remedy}")))
}

/// What is said of a tensor of torch's whose elements do not lie in memory one by one; `None` where they do.
pub(crate) fn of_no_memory(ob: &Bound<'_, PyAny>) -> Option<PyErr> {
    let is = |what: &str| ob.getattr(what).is_ok_and(|yes| yes.is_truthy().unwrap_or(false));
    if is_traced_by_jax(ob) {
        let remedy = "hand it over outside of jit, grad and vmap, or in a function for jax.debug.callback";
        return Some(PyTypeError::new_err(format!("an array that JAX is tracing has no elements yet: {remedy}")));
    }
    let layout = ob.getattr("layout").ok()?.to_string();
    let layout = layout.strip_prefix("torch.")?;
    let (kind, remedy) = if is("is_nested") {
        ("nested", "give its parts as a list: list(a.unbind())")
    } else if is("is_quantized") {
        ("quantized", "give its numbers, a.int_repr(), with a.q_scale() and a.q_zero_point(), or a.dequantize()")
    } else if is("is_meta") {
        ("meta", "make one that has elements: torch.empty_like(a, device=\"cpu\")")
    } else if layout != "strided" {
        (layout, "give a.to_dense(), or its indices and values one by one")
    } else if ob.call_method0("data_ptr").is_err() {
        ("traced or wrapped", "hand it over outside of torch.func, torch.compile and the like, or give what it wraps")
    } else {
        let dtype = ob.getattr("dtype").ok()?;
        let what = format!("a tensor of {dtype} is nothing that other libraries know: give a.view(torch.uint8)");
        return Some(PyTypeError::new_err(what));
    };
    Some(PyTypeError::new_err(format!("a {kind} tensor is nothing that other libraries know: {remedy}")))
}

fn is_traced_by_jax(ob: &Bound<'_, PyAny>) -> bool {
    let tracer = || -> PyResult<bool> {
        let modules = ob.py().import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
        let Some(core) = modules.get_item("jax.core")? else { return Ok(false) };
        ob.is_instance(&core.getattr("Tracer")?)
    };
    tracer().unwrap_or(false)
}

/// What is said of a buffer whose elements are no numbers that others know.
pub(crate) fn of_no_format(ob: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let format = PyMemoryView::from(ob)?.getattr("format")?;
    Ok(PyTypeError::new_err(format!(
        "a buffer of format {format} is nothing that other libraries know: give an array of numbers"
    )))
}

/// Refuses what lies where neither the processor nor CUDA looks.
pub(crate) fn reachable(py: Python<'_>, device_type: i32) -> PyResult<()> {
    if device::is_host(device_type) || device_type == device::CUDA {
        return Ok(());
    }
    let what = format!("the array lies on DLPack device type {device_type}");
    Err(error(py, Code::Unsupported, "copy it to the host first, as by .cpu()", what))
}
