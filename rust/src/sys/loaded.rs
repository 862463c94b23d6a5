//! Keeps the code of this crate in memory, in whichever library it was linked.

use std::ffi::{CStr, c_char, c_int, c_void};

/// What the C library says of an address.
#[repr(C)]
struct Found {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    symbol_at: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, found: *mut Found) -> c_int;
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
}

const RTLD_LAZY: c_int = 0x1;
const RTLD_NOLOAD: c_int = 0x4;
const RTLD_NODELETE: c_int = 0x1000;

/// Pins the library that this code is in until the process ends: a plug-in that contains the crate may be closed while
/// a session's thread is still at its end, and the hooks of a fork are called later. The program itself is never unloaded.
pub(crate) fn stay_loaded() {
    static HERE: u8 = 0;
    let mut found = Found {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        symbol: std::ptr::null(),
        symbol_at: std::ptr::null_mut(),
    };
    // SAFETY: an address of this library, and a place for what is found.
    if unsafe { dladdr((&raw const HERE).cast(), &raw mut found) } == 0 || found.file.is_null() {
        return; // a program without a loader
    }
    // SAFETY: the loader's name of what is loaded here, which stays as long as this code does.
    let file = unsafe { CStr::from_ptr(found.file) };
    // A program that was found on PATH has a bare name, which dlopen would look for among libraries.
    if !file.to_bytes().contains(&b'/') {
        return;
    }
    // SAFETY: with NOLOAD nothing is loaded and no code runs. The handle is kept: it is never closed.
    unsafe { dlopen(file.as_ptr(), RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) };
}
