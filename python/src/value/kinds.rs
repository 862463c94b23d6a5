//! Types of elements and devices as values.

use baton::{DType, Value};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::arguments::plain;
use crate::base::dtype;

/// Kinds of devices, by DLPack's numbers.
const DEVICES: [(&str, i32); 2] = [("cpu", 1), ("cuda", 2)];

/// The number of a kind of devices.
pub(super) fn device_number(name: &str) -> Option<i32> {
    DEVICES.iter().find(|(kind, _)| *kind == name).map(|(_, n)| *n)
}

/// What Python has in the place of a dtype.
pub(super) fn dtype_to_py(d: DType) -> String {
    d.to_string()
}

/// What Python has in the place of a device.
pub(super) fn device_to_py(kind: i32, number: i32) -> String {
    match DEVICES.iter().find(|(_, n)| *n == kind) {
        Some(("cpu", _)) => "cpu".to_owned(),
        Some((name, _)) => format!("{name}:{number}"),
        None => format!("{kind}:{number}"),
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
