//! Types of elements and devices as values.

use baton::{DType, Value};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::numbers::number;
use crate::base::dtype;

/// Kinds of devices, by DLPack's numbers.
const DEVICES: [(&str, i32); 2] = [("cpu", 1), ("cuda", 2)];

/// The number of a kind of devices.
fn device_number(name: &str) -> Option<i32> {
    DEVICES.iter().find(|(kind, _)| *kind == name).map(|(_, n)| *n)
}

/// What Python has in the place of a dtype.
pub(super) fn dtype_to_py(d: DType) -> String {
    d.to_string()
}

/// What Python has in the place of a device.
pub(super) fn device_to_py(kind: i32, number: i32) -> String {
    match DEVICES.iter().find(|(_, n)| *n == kind) {
        Some(("cpu", _)) if number == 0 => "cpu".to_owned(),
        Some((name, _)) => format!("{name}:{number}"),
        None => format!("{kind}:{number}"),
    }
}

/// The value of a device of a kind.
fn device(kind: &str, number: i32) -> PyResult<Option<Value>> {
    device_number(kind).map(|n| Some(Value::Device(n, number))).ok_or_else(|| {
        PyTypeError::new_err(format!("a device of the kind {kind} has no number: give its name as a text"))
    })
}

/// A scalar of NumPy's or ml_dtypes', a dtype, or a device, of torch's or tvm-ffi's.
pub(super) fn plain(v: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let class = v.get_type();
    let (module, name) = (class.module()?, class.name()?);
    let (module, name) = (module.to_str()?, name.to_str()?);
    let package = module.split('.').next().unwrap_or_default();
    match (package, name) {
        ("torch", "device") => {
            let kind: String = v.getattr("type")?.extract()?;
            let number: Option<i32> = v.getattr("index")?.extract()?;
            let number = number.or((kind == "cpu" || device_number(&kind).is_none()).then_some(0)).ok_or_else(|| {
                PyTypeError::new_err(format!(
                    "torch.device({kind:?}) is the current device of this process: give its number, as in \"{kind}:0\""
                ))
            })?;
            device(&kind, number)
        }
        ("tvm_ffi", "Device") => device(v.getattr("type")?.extract()?, v.getattr("index")?.extract()?),
        ("torch" | "tvm_ffi", "dtype") => dtype::parse(v).map(|d| Some(Value::DType(d))),
        ("numpy", name) if module == "numpy.dtypes" || name == "dtype" => {
            dtype::parse(v).map(|d| Some(Value::DType(d)))
        }
        ("numpy" | "ml_dtypes", _) => number(v),
        _ => Ok(None),
    }
}

/// What to give in the place of a dtype, a class of NumPy's that stands for one, or a device, where it can be no value; None
/// of anything else.
pub(super) fn instead(v: &Bound<'_, PyAny>, is_argument: bool) -> Option<String> {
    if let Ok(class) = v.cast::<PyType>() {
        let (module, name) = (class.module().ok()?.to_string(), class.name().ok()?.to_string());
        let prefix = match module.as_str() {
            "numpy" => "np.",
            "ml_dtypes" => "ml_dtypes.",
            "builtins" => "",
            _ => return None,
        };
        let d = dtype::parse(v).ok()?;
        return Some(match is_argument {
            true => format!("give a dtype as np.dtype({prefix}{name})"),
            false => named(d, true),
        });
    }
    match plain(v).ok()?? {
        Value::DType(d) => Some(named(d, v.get_type().module().is_ok_and(|m| m.to_string().starts_with("numpy")))),
        Value::Device(kind, number) => Some(format!("give a device by its name, {:?}", device_to_py(kind, number))),
        _ => None,
    }
}

fn named(d: DType, of_numpy: bool) -> String {
    let made = if of_numpy { format!(", of which np.dtype(\"{d}\") makes one") } else { String::new() };
    format!("give a dtype by its name, \"{d}\"{made}")
}
