//! The file that a broker leaves in its runtime directory, as far as it says whether a client may start
//! the next one (docs/protocol.md, section 1).

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::sys;

/// The first line, with what the others have changed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct State {
    boot_id: String,
    pid_namespace: u64,
    /// An operator runs the broker, or a service manager, and will run the next one.
    supervised: bool,
    socket: PathBuf,
    sessions: Vec<Session>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Session {
    serial: u64,
    pid: i32,
    start_time: u64,
}

#[derive(Deserialize)]
struct Change {
    opened: Option<Session>,
    #[serde(default)]
    ended: u64,
}

/// The process of the broker that has the lock of a runtime directory; `None` where none has, where it serves at
/// another socket, or where this cannot be found out. Whether the process that the lock names has it open is
/// looked at, and the lock not tried: a broker that begins at that moment would be refused.
pub(super) fn owner(dir: &Path, socket: &Path) -> Option<i32> {
    let lock = dir.join("broker.lock");
    let pid = text_of(&lock)?.trim().parse().ok()?;
    let here = sys::opens_file(pid, &lock) && State::read(dir).is_none_or(|s| s.socket == socket);
    here.then_some(pid)
}

/// What a file holds. Something else may stand there: a pipe's writer is not waited for.
fn text_of(path: &Path) -> Option<String> {
    let mut text = String::new();
    sys::open_at_once(path).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

impl State {
    /// Reads the file of a runtime directory; `None` where there is none that can be read.
    pub(super) fn read(dir: &Path) -> Option<State> {
        State::parse(&text_of(&dir.join("state.json"))?)
    }

    /// A last line without an end was being written when its broker died: nothing depends on it.
    fn parse(text: &str) -> Option<State> {
        let mut lines = text.split_inclusive('\n');
        let mut state: State = serde_json::from_str(lines.next()?).ok()?;
        for line in lines.filter(|l| l.ends_with('\n')) {
            match serde_json::from_str::<Change>(line).ok()? {
                Change { opened: Some(s), .. } => {
                    state.sessions.retain(|known| known.serial != s.serial); // what is known of its process now
                    state.sessions.push(s);
                }
                Change { ended, .. } => state.sessions.retain(|s| s.serial != ended),
            }
        }
        Some(state)
    }

    /// Whether a client must leave the next broker to the operator: the last one was the operator's, and
    /// sessions of it may live.
    pub(super) fn awaits(&self) -> bool {
        if !self.supervised || sys::boot_id().is_none_or(|id| id != self.boot_id) {
            return false;
        }
        let same_view = sys::pid_namespace() == Some(self.pid_namespace);
        self.sessions.iter().any(|s| !same_view || s.start_time == 0 || !s.is_over())
    }
}

impl Session {
    /// Whether the process has ended: another one has its number, or none. A process that cannot be looked at
    /// lives.
    fn is_over(&self) -> bool {
        sys::has_ended(self.pid, self.start_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(supervised: bool, pid: u32, start_time: u64, changes: &str) -> String {
        let (boot, ns) = (sys::boot_id().unwrap(), sys::pid_namespace().unwrap());
        let session = format!(r#"{{"slot":1,"serial":7,"pid":{pid},"start_time":{start_time}}}"#);
        let head = format!(r#""boot_id":"{boot}","pid_namespace":{ns},"supervised":{supervised},"settings":[]"#);
        format!("{{{head},\"sessions\":[{session}]}}\n{changes}")
    }

    #[test]
    fn an_operators_broker_is_awaited_while_sessions_of_it_live() {
        let me = std::process::id();
        let began = sys::start_time(me as i32).unwrap();
        let opened = format!("{{\"opened\":{{\"slot\":2,\"serial\":9,\"pid\":{me},\"start_time\":{began}}}}}");
        let no_process = 0x7fff_fff0; // beyond what the kernel gives
        for (text, awaits) in [
            (state(true, me, began, ""), true),
            (state(false, me, began, ""), false),
            (state(true, me, began + 1, ""), false),
            (state(true, no_process, began, ""), false),
            (state(true, no_process, 0, ""), true), // unknown: it may live
            (state(true, me, began, "{\"ended\":7}\n"), false),
            (state(true, no_process, began, &format!("{opened}\n")), true),
            (state(true, no_process, began, &opened), false), // its end is missing
            (state(true, me, began, "").replace("pid_namespace\":", "pid_namespace\":1"), true),
            (state(true, me, began, "").replace("boot_id\":\"", "boot_id\":\"another-"), false),
        ] {
            assert_eq!(State::parse(&text).map(|s| s.awaits()), Some(awaits), "{text}");
        }
        assert!(State::parse("{\"instance\"").is_none());
    }
}
