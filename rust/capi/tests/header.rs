//! `include/baton.h` is what cbindgen makes of the sources. `make header` writes it anew.

use std::path::Path;

const FIRST: &str = "\
// The C library of Baton: hands tensors to other processes of this machine without copying them.
// Generated from rust/capi by `make header`; do not edit. docs/c.md has the whole story.
//
// Ownership: what a function gives through an out pointer is the caller's, who gives it back once to
// the release function of its type, in any order and on any thread. On failure an out pointer is set
// to NULL or zero. Arguments are lent for the call. Texts end with a zero and are UTF-8; those of an
// object are the object's.
//
// Threads: any thread may use any object beside others; its release is its last use.
//
// Errors: every call that can fail gives a baton_status; baton_last_error says what happened, to what,
// and what to do. NULL where an object is needed is BATON_INVALID_ARGUMENT and never a crash.
//
// Tensors are DLPack's: element i of a tensor t begins at (char *)t->dl_tensor.data +
// t->dl_tensor.byte_offset, then by its strides. Any consumer of DLPack may take one and calls its
// deleter once; baton_tensor_release does the same.

#include <stddef.h>
#include <stdint.h>
";

fn generated() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let dlpack = std::fs::read_to_string(here.join("dlpack.h")).unwrap();
    config.after_includes = Some(format!("{FIRST}\n{dlpack}"));
    let mut text = Vec::new();
    cbindgen::Builder::new().with_crate(here).with_config(config).generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_header_is_what_the_sources_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/baton.h");
    let made = generated();
    if std::env::var_os("BATON_WRITE_HEADER").is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = made.lines().zip(kept.lines()).position(|(a, b)| a != b);
    assert!(made == kept, "{} is stale from line {:?} on: run make header", file.display(), differs.map(|n| n + 1));
}

#[test]
fn the_header_has_every_status_of_the_protocol() {
    let errors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol/testdata/errors.json");
    let errors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(errors).unwrap()).unwrap();
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/baton.h")).unwrap();
    let errors = errors["errors"].as_array().unwrap();
    assert!(!errors.is_empty());
    for e in errors {
        let line = format!("  {} = {},\n", e["c"].as_str().unwrap(), e["c_value"]);
        assert!(header.contains(&line), "{line}");
    }
}
