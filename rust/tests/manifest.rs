//! What Cargo.toml says of the crate.

use std::process::Command;

fn cargo(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The oldest Rust that the crate names is new enough for what it depends on. Whether the crate itself
/// keeps to it, clippy says (`incompatible_msrv`), and `make lint` where rustup has that Rust.
#[test]
fn no_dependency_asks_for_a_newer_rust() {
    let metadata = ["metadata", "--locked", "--offline", "--all-features", "--format-version", "1"];
    let out = cargo(&[&metadata[..], &["--filter-platform", "x86_64-unknown-linux-gnu"]].concat());
    let all: serde_json::Value = serde_json::from_str(&out).unwrap();
    let version = |text: &str| text.split('.').take(2).map(|n| n.parse().unwrap()).collect::<Vec<u32>>();
    let own = version(env!("CARGO_PKG_RUST_VERSION"));
    let packages = all["packages"].as_array().unwrap();
    assert!(packages.len() > 10);
    for p in packages {
        let Some(asks) = p["rust_version"].as_str() else { continue };
        assert!(version(asks) <= own, "{} {} asks for Rust {asks}", p["name"], p["version"]);
    }
}

#[test]
fn the_package_has_its_sources_its_licence_and_nothing_of_the_project() {
    let out = cargo(&["package", "--list", "--allow-dirty", "--locked", "--offline"]);
    let other = ["Cargo.toml", "Cargo.toml.orig", "Cargo.lock", "README.md", "LICENSE", ".cargo_vcs_info.json"];
    let (sources, rest): (Vec<_>, Vec<_>) = out.lines().partition(|f| f.starts_with("src/"));
    assert!(sources.contains(&"src/lib.rs"));
    assert!(rest.iter().all(|f| other.contains(f)), "{rest:?}");
    assert!(["README.md", "LICENSE"].iter().all(|f| rest.contains(f)), "{rest:?}");
}
