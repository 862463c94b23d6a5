//! Types of elements as Python names them, and as `struct` and the buffer protocol write them.

use std::ffi::CStr;

use baton::DType;
use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyFloat, PyInt, PyString, PyType};

use crate::base::errors::{OrRaise, invalid};
use crate::base::text::Text;

/// Reads a type: a name, a NumPy, torch or ml_dtypes type, or bool, int, float, complex.
pub(crate) fn parse(ob: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = ob.py();
    if ob.is_instance_of::<PyString>() {
        return DType::parse(&ob.extract::<Text<'_>>()?).or_raise(py);
    }
    if let Ok(t) = ob.cast::<PyType>() {
        for (class, dtype) in [
            (PyBool::type_object(py), DType::BOOL),
            (PyInt::type_object(py), DType::INT64),
            (PyFloat::type_object(py), DType::FLOAT64),
            (PyComplex::type_object(py), DType::COMPLEX128),
        ] {
            if t.is(&class) {
                return Ok(dtype);
            }
        }
        let name = t.name()?;
        return DType::parse(&name.extract::<Text<'_>>()?).or_raise(py);
    }
    if ob.getattr_opt("isnative")?.is_some_and(|yes| !yes.is_truthy().unwrap_or(true)) {
        let what = format!("dtype {ob} has its bytes the other way round");
        return Err(invalid(py, "use its native form, dtype.newbyteorder(\"=\")", what));
    }
    if ob.is_instance_of::<PyInt>() {
        let remedy = "extents are one argument, as in empty((2, 3)); a dtype is named, such as \"float32\"";
        return Err(invalid(py, remedy, format!("{ob} is no dtype")));
    }
    // A numpy.dtype has a name, a torch.dtype only its text.
    let text = match ob.getattr_opt("name")? {
        Some(name) => name,
        None => ob.str()?.into_any(),
    };
    if !text.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("dtype must be a name such as \"float32\", or a NumPy or torch type"));
    }
    let text = text.extract::<Text<'_>>()?;
    DType::parse(text.strip_prefix("torch.").unwrap_or(&text)).or_raise(py)
}

/// How `struct` and the buffer protocol write the type.
pub(crate) fn format(d: DType) -> Option<&'static CStr> {
    Some(match d {
        DType::BOOL => c"?",
        DType::INT8 => c"b",
        DType::INT16 => c"h",
        DType::INT32 => c"i",
        DType::INT64 => c"l",
        DType::UINT8 => c"B",
        DType::UINT16 => c"H",
        DType::UINT32 => c"I",
        DType::UINT64 => c"L",
        DType::FLOAT16 => c"e",
        DType::FLOAT32 => c"f",
        DType::FLOAT64 => c"d",
        DType::COMPLEX64 => c"Zf",
        DType::COMPLEX128 => c"Zd",
        _ => return None,
    })
}

/// Reads the format of another object's buffer. Widths come from the item's size: `l` has two.
pub(crate) fn from_format(format: &CStr, item: usize) -> Option<DType> {
    let text = format.to_str().ok()?;
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let text = text.strip_prefix(['@', '=', native]).unwrap_or(text);
    let d = match text {
        "?" => DType::BOOL,
        "c" => DType::UINT8,
        "b" | "h" | "i" | "l" | "q" | "n" => DType { code: 0, bits: bits(item)?, lanes: 1 },
        "B" | "H" | "I" | "L" | "Q" | "N" => DType { code: 1, bits: bits(item)?, lanes: 1 },
        "e" => DType::FLOAT16,
        "f" => DType::FLOAT32,
        "d" => DType::FLOAT64,
        "Zf" => DType::COMPLEX64,
        "Zd" => DType::COMPLEX128,
        _ => return None,
    };
    (d.item_bits() as usize == 8 * item).then_some(d)
}

fn bits(item: usize) -> Option<u8> {
    matches!(item, 1 | 2 | 4 | 8).then_some(8 * item as u8)
}

/// What a consumer of buffers is told where the protocol has no letter.
pub(crate) fn no_format(d: DType) -> PyErr {
    PyBufferError::new_err(format!(
        "the buffer protocol has no {d}: use torch.from_dlpack(x) or x.numpy() with ml_dtypes, or look at the bits by \
         x.view(\"uint8\")"
    ))
}

/// The bytes of one element. Raises TypeError for what is no number, InvalidArgument for one that the type has
/// not.
pub(crate) fn pack(value: &Bound<'_, PyAny>, d: DType) -> PyResult<Vec<u8>> {
    match format(d) {
        None if d != DType::BFLOAT16 => {
            Err(PyTypeError::new_err(format!("no Python number is a {d}: fill the bits by x.view(\"uint8\")")))
        }
        f => element(value, d, f.unwrap_or_default()).map_err(|e| unfit(value, d, e)),
    }
}

fn element(value: &Bound<'_, PyAny>, d: DType, f: &CStr) -> PyResult<Vec<u8>> {
    let py = value.py();
    let pack = py.import("struct")?.getattr("pack")?;
    let packed = |format: &str, v: Bound<'_, PyAny>| -> PyResult<Vec<u8>> {
        Ok(pack.call1((format, v))?.cast::<PyBytes>()?.as_bytes().to_vec())
    };
    if let DType::COMPLEX64 | DType::COMPLEX128 = d {
        let c = PyComplex::type_object(py).call1((value,))?;
        let part = if d == DType::COMPLEX64 { "f" } else { "d" };
        let mut out = packed(part, c.getattr("real")?)?;
        out.extend(packed(part, c.getattr("imag")?)?);
        return Ok(out);
    }
    if d == DType::BFLOAT16 {
        return Ok(bfloat16(value.extract::<f64>()? as f32).to_ne_bytes().to_vec());
    }
    packed(&f.to_string_lossy(), value.clone())
}

/// What is said of a value that is no element of a type.
fn unfit(value: &Bound<'_, PyAny>, d: DType, e: PyErr) -> PyErr {
    let py = value.py();
    let of_struct = py.import("struct").and_then(|m| m.getattr("error")).is_ok_and(|c| e.is_instance(py, &c));
    if !of_struct && !e.is_instance_of::<PyTypeError>(py) && !e.is_instance_of::<PyOverflowError>(py) {
        return e;
    }
    if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyComplex>() || value.extract::<f64>().is_ok() {
        return invalid(py, "give another dtype, or a number that it has", format!("{value} is no {d}"));
    }
    match value.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("a tensor is filled with a number: this is of type {kind}")),
        Err(e) => e,
    }
}

/// The element of some bytes.
pub(crate) fn unpack<'py>(py: Python<'py>, bytes: &[u8], d: DType) -> PyResult<Bound<'py, PyAny>> {
    if d == DType::BFLOAT16
        && let [a, b] = bytes
    {
        let high = u32::from(u16::from_ne_bytes([*a, *b])) << 16;
        return Ok(PyFloat::new(py, f64::from(f32::from_bits(high))).into_any());
    }
    let complex = matches!(d, DType::COMPLEX64 | DType::COMPLEX128);
    let f = match d {
        DType::COMPLEX64 => "ff".into(),
        DType::COMPLEX128 => "dd".into(),
        d => match format(d) {
            Some(f) => f.to_string_lossy(),
            None => {
                return Err(PyTypeError::new_err(format!(
                    "no Python number is a {d}: look at the bits by x.view(\"uint8\")"
                )));
            }
        },
    };
    let parts = py.import("struct")?.call_method1("unpack", (f, PyBytes::new(py, bytes)))?;
    match complex {
        true => Ok(PyComplex::type_object(py).call1((parts.get_item(0)?, parts.get_item(1)?))?),
        false => parts.get_item(0),
    }
}

/// The nearest bfloat16, ties to even.
fn bfloat16(f: f32) -> u16 {
    let bits = f.to_bits();
    if f.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}
