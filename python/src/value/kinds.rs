//! Types of elements and devices as values.

use baton::DType;

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
