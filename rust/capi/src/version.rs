//! Which version of the library runs.

use std::ffi::{CStr, c_char};

const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("a version with a zero in it"),
};

/// A number of the version's text.
const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(n) if n < 1000 => n,
        _ => panic!("a version is three numbers below 1000"),
    }
}

const NUMBER: u32 = 1_000_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 1000 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// The version of the library that runs, such as "0.1.0", while BATON_VERSION is that of the header that
/// the program was compiled with. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_version() -> *const c_char {
    TEXT.as_ptr()
}

/// The same as a number that grows with each version, to be compared with BATON_VERSION_NUMBER: 1000000
/// times the major, 1000 times the minor, and the patch version.
#[unsafe(no_mangle)]
pub extern "C" fn baton_version_number() -> u32 {
    NUMBER
}
