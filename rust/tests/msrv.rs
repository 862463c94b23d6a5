//! The oldest Rust that the crate names is new enough for what it depends on. Whether the crate itself
//! keeps to it, clippy says (`incompatible_msrv`): no older compiler is at hand where the tests run.

use std::process::Command;

#[test]
fn no_dependency_asks_for_a_newer_rust() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--all-features", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let all: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let version = |text: &str| text.split('.').take(2).map(|n| n.parse().unwrap()).collect::<Vec<u32>>();
    let own = version(env!("CARGO_PKG_RUST_VERSION"));
    let packages = all["packages"].as_array().unwrap();
    assert!(packages.len() > 10);
    for p in packages {
        let Some(asks) = p["rust_version"].as_str() else { continue };
        assert!(version(asks) <= own, "{} {} asks for Rust {asks}", p["name"], p["version"]);
    }
}
