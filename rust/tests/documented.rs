//! What the compiler does not ask of the documentation. That everything public has some it does
//! (`missing_docs`), and the examples are run as tests.

use std::path::{Path, PathBuf};

fn sources(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, all),
            false => all.push(path),
        }
    }
}

/// The name of a public function that a line declares.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start().strip_prefix("pub ")?;
    while let Some(r) = ["async ", "unsafe ", "const "].iter().find_map(|word| rest.strip_prefix(word)) {
        rest = r;
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn each_public_function_is_called_in_an_example() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let (mut examples, mut functions) = (String::new(), Vec::new());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut inside = false;
        for line in text.lines() {
            match line.trim_start().strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
                Some(doc) if doc.trim_start().starts_with("```") => inside = !inside,
                Some(doc) if inside => examples += doc,
                _ => {}
            }
        }
        // Public for the tests, the measurements and the bindings alone, and hidden from the documentation.
        let hidden = ["layout.rs", "step.rs", "value/tree.rs", "functions/sending.rs", "functions/taken.rs"];
        if !hidden.iter().any(|f| path.ends_with(f)) {
            let mut hides = false;
            for line in text.lines().map(str::trim) {
                match function(line) {
                    Some(name) if !hides => functions.push(name.to_owned()),
                    _ => {}
                }
                hides = line.starts_with("#[") && (hides || line == "#[doc(hidden)]");
            }
        }
    }
    assert!(functions.len() > 200, "{}", functions.len());
    let called = |name: &String| {
        examples.match_indices(name.as_str()).any(|(at, _)| {
            let before = examples[..at].ends_with(['.', ':']);
            before && examples[at + name.len()..].starts_with(['(', ':'])
        })
    };
    let missing: Vec<_> = functions.iter().filter(|f| !called(f)).collect();
    assert!(missing.is_empty(), "in no example: {missing:?}");
}
