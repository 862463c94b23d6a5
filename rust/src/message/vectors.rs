//! Bodies, spills and handles against the golden vectors.

use serde_json::Value;

use super::refs::spill;
use super::{Body, parse_spill};
use crate::error::Code;
use crate::handle::Handle;
use crate::layout::limits;

fn cases(path: &str) -> Vec<Value> {
    let path = format!("{}/../protocol/testdata/v1/{path}", env!("CARGO_MANIFEST_DIR"));
    let v: Value = serde_json::from_slice(&std::fs::read(&path).expect(&path)).expect(&path);
    let all = v["cases"].as_array().cloned().unwrap_or_default();
    assert!(!all.is_empty(), "{path} has no cases");
    all
}

/// `hex` of `bytes` bytes, the rest zero.
fn bytes(case: &Value) -> Vec<u8> {
    let hex = case["hex"].as_str().unwrap_or_default();
    let mut out: Vec<u8> =
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect();
    let whole = case["bytes"].as_u64().or_else(|| case["bytes"].as_str()?.parse().ok());
    out.resize(whole.map_or(out.len(), |n| n as usize), 0);
    out
}

#[test]
fn bodies_of_the_vectors_are_read_and_written_alike() {
    for case in cases("structs/body.json") {
        let b = bytes(&case);
        let body = Body::parse(&b, limits::REFS).unwrap_or_else(|e| panic!("{}: {e}", case["name"]));
        assert_eq!(body.encode().unwrap(), b, "{}", case["name"]);
        let tail = &case["tail"];
        assert_eq!(String::from_utf8_lossy(body.tree), tail["tree"].as_str().unwrap());
        assert_eq!(String::from_utf8_lossy(body.meta), tail["meta"].as_str().unwrap());
        for (t, want) in body.tensors.iter().zip(tail["tensors"].as_array().unwrap()) {
            assert_eq!(t.name, want["name"].as_str().unwrap());
            let shape: Vec<String> = t.shape.iter().map(i64::to_string).collect();
            assert_eq!(serde_json::json!(shape), want["shape"]);
        }
    }
}

#[test]
fn spills_of_the_vectors_are_read_and_written_alike() {
    for case in cases("structs/spill.json") {
        let b = bytes(&case);
        let (refs, body) = parse_spill(b.clone()).unwrap_or_else(|e| panic!("{}: {e}", case["name"]));
        assert!(b.starts_with(&spill(&refs, &body).unwrap()), "{}", case["name"]);
    }
}

#[test]
fn what_the_vectors_refuse_is_refused() {
    for case in cases("reject/body.json") {
        let b = bytes(&case);
        let got = Body::parse(&b, limits::REFS).map_err(|e| e.code());
        assert_eq!(got.unwrap_err(), Code::Protocol, "{}", case["name"]);
    }
    for case in cases("reject/spill.json") {
        let got = parse_spill(bytes(&case)).map_err(|e| e.code());
        assert_eq!(got.unwrap_err(), Code::Protocol, "{}", case["name"]);
    }
    for case in cases("reject/handle.json") {
        // As hex: bytes that are no text, which Rust's types refuse before.
        let raw = case["text"].as_str().map_or_else(|| bytes(&case), |t| t.as_bytes().to_vec());
        let Ok(text) = String::from_utf8(raw) else { continue };
        let got = Handle::from_json(&text).map_err(|e| e.code());
        assert_eq!(got.unwrap_err(), Code::InvalidHandle, "{}", case["name"]);
    }
}

#[test]
fn handles_of_the_vectors_are_read_and_written_alike() {
    for case in cases("messages/handle.json") {
        let text = case["text"].as_str().unwrap();
        let same = case["same"].as_array().cloned().unwrap_or_default();
        for form in same.iter().filter_map(Value::as_str).chain([text]) {
            let h = Handle::from_json(form).unwrap_or_else(|e| panic!("{}: {e}", case["name"]));
            assert_eq!(h.to_json(), text, "{}", case["name"]);
        }
    }
}
