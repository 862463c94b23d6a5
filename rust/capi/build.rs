//! Gives the shared library its name for the loader, and keeps it loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbaton.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    // A session's thread ends by itself after the last release, and what a thread or a fork runs at its end is
    // registered with the C library: after dlclose each would run code that is not there any more.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
