//! Gives the shared library its name for the loader.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbaton.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
}
