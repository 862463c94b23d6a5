//! `BATON_TRACE=1`: beside each storage stands the line of the program that asked for it, for `baton ls storages`.

use std::backtrace::Backtrace;

use super::Access;
use crate::layout::session_file;

impl Access {
    /// Notes where the program asked for a storage, where that is wanted.
    #[cold]
    pub(crate) fn trace(&self, index: u32) {
        let place = self.options.place.and_then(|of_binding| of_binding());
        let place = place.unwrap_or_else(|| caller(&Backtrace::force_capture().to_string()));
        let at = session_file::TRACES + u64::from(index) * session_file::TRACE_BYTES as u64;
        let mut text = [0; session_file::TRACE_BYTES];
        let short = shortened(&place);
        text[..short.len()].copy_from_slice(short.as_bytes());
        for (word, off) in text.as_chunks::<8>().0.iter().zip((at..).step_by(8)) {
            self.memory.files.session.store(off, u64::from_le_bytes(*word));
        }
    }
}

/// File and line of the first frame of a backtrace that is the program's: behind those of this library. Its name where
/// the program has no lines for debuggers.
fn caller(backtrace: &str) -> String {
    // "  7: name", and where lines are known "at file:line:column" below it.
    let mut frames: Vec<(&str, &str)> = Vec::new();
    for line in backtrace.lines().map(str::trim) {
        match (line.strip_prefix("at "), frames.last_mut()) {
            (Some(at), Some(frame)) => frame.1 = at.rsplit_once(':').map_or(at, |(place, _)| place),
            _ => frames.extend(line.split_once(": ").map(|(_, name)| (name, ""))),
        }
    }
    // Names have no paths where debuggers have only lines; then the folder tells, of which this file is one.
    let root = frames.iter().find_map(|(_, at)| at.split_once("src/memory/trace.rs")).map(|(root, _)| root);
    let is_ours = |(name, at): &(&str, &str)| {
        let in_folder = root.and_then(|root| at.strip_prefix(root));
        in_folder.is_some_and(|at| at.starts_with("src/") || at.starts_with("capi/src/"))
            || ["baton::", "<baton::", "<&baton::", "baton_"].iter().any(|p| name.starts_with(p))
    };
    let is_rusts = |(name, at): &(&str, &str)| {
        at.starts_with("/rustc/")
            || ["core::", "std::", "alloc::", "<core::", "<alloc::"].iter().any(|p| name.starts_with(p))
    };
    let behind: Vec<_> = frames.iter().skip_while(|f| !is_ours(f)).filter(|f| !is_rusts(f)).collect();
    // What the compiler merged has no line, also in this library: such a frame in front of one of ours is ours.
    let known = behind.iter().position(|f| !is_ours(f) && !f.1.is_empty()).unwrap_or(behind.len());
    let ours = behind[..known].iter().rposition(|f| is_ours(f));
    let found = ours.and_then(|last| behind.get(last + 1));
    found.map_or_else(String::new, |(name, at)| if at.is_empty() { name } else { at }.to_string())
}

/// The last folder, file and line, as much as there is room for.
fn shortened(place: &str) -> &str {
    let folder = place.rmatch_indices('/').nth(1).map_or(0, |(k, _)| k + 1);
    let from = folder.max(place.len().saturating_sub(session_file::TRACE_BYTES));
    let from = (from..=place.len()).find(|k| place.is_char_boundary(*k)).unwrap_or(place.len());
    &place[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_of_the_program_is_found() {
        let with_lines = "   0: std::backtrace::Backtrace::create\n             at /rustc/x.rs:331:13\n   \
            1: baton::memory::trace::<impl baton::memory::Access>::trace\n             at ./src/t.rs:13:5\n   \
            2: baton_alloc\n   3: core::ops::function::FnOnce::call_once\n             at /rustc/f.rs:250:5\n   \
            4: worker::main\n             at /home/me/worker/src/main.rs:12:20\n   5: main\n";
        assert_eq!(caller(with_lines), "/home/me/worker/src/main.rs:12");
        assert_eq!(shortened("/home/me/worker/src/main.rs:12"), "src/main.rs:12");
        assert_eq!(caller("   0: baton::x\n   1: step\n   2: main\n"), "step");
        let without_paths = "   0: trace\n             at ./rust/src/memory/trace.rs:13:64\n   1: fill\n             \
            at ./rust/src/holding/alloc.rs:33:26\n   2: call_once<()>\n             at /rustc/f.rs:250:5\n   \
            3: baton_alloc\n             at ./rust/capi/src/alloc.rs:9:5\n   4: filled\n             at ./c/a.c:63:34\n";
        assert_eq!(caller(without_paths), "./c/a.c:63");
        let merged = "   0: trace\n             at ./rust/src/memory/trace.rs:13:64\n   1: chosen\n   2: call_once<()>\n             \
            at /rustc/f.rs:250:5\n   3: baton_alloc\n   4: filled\n             at ./c/a.c:63:34\n   5: main\n";
        assert_eq!(caller(merged), "./c/a.c:63");
        assert_eq!(caller("disabled backtrace"), "");
        assert_eq!(caller("   0: baton::x\n   1: last"), "last");
        assert_eq!(shortened(&"é".repeat(40)).len(), 64);
    }
}
