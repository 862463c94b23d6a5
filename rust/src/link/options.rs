//! How a session is opened.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use super::start::usual_socket;

/// How a session is opened.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) address: Option<String>,
    pub(crate) namespace: String,
    pub(crate) start: bool,
    pub(crate) name: String,
    pub(crate) binary: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) socket: String, // what the address led to when the session was opened
    pub(crate) named: bool,    // by the program or $BATON_ADDRESS
    pub(crate) language: &'static str,
    pub(crate) interrupted: Option<fn() -> bool>,
    /// Tells where the program, in a language of its own, asks for memory.
    pub(crate) place: Option<fn() -> Option<String>>,
}

impl Options {
    /// Whether a session opened with these may be the next opening of one that was opened with others.
    pub(crate) fn is_like(&self, o: &Options) -> bool {
        let place = |o: &Options| (o.socket.clone(), o.address.clone(), o.start, o.binary.clone());
        let identity = |o: &Options| (o.namespace.clone(), o.name.clone(), o.language);
        place(self) == place(o) && identity(self) == identity(o)
    }

    /// Writes a command of baton that is to be typed, as remedies have them: it reaches the broker and the namespace of
    /// the session. Flags are left out for this user's own broker and for the namespace default.
    pub(crate) fn typed(&self, sub: &str, args: &[&str]) -> String {
        let mut command = format!("baton {sub}");
        if self.socket != usual_socket() {
            command += &format!(" --address={}", word(&self.socket));
        }
        if self.namespace != "default" && is_of_namespace(sub, args.first().copied().unwrap_or_default()) {
            command += &format!(" --namespace={}", word(&self.namespace));
        }
        if args.first().is_some_and(|a| a.starts_with('-')) {
            command += " --"; // it is no flag
        }
        args.iter().fold(command, |c, arg| c + " " + &word(arg))
    }
}

/// Whether a command looks at what is of a namespace.
fn is_of_namespace(sub: &str, first: &str) -> bool {
    match sub {
        "ls" | "show" | "why" => {
            !["host", "lease", "segment", "session", "storage"].contains(&first.strip_suffix('s').unwrap_or(first))
        }
        _ => false,
    }
}

/// An argument as a shell takes it for one.
fn word(arg: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !arg.is_empty() && arg.chars().all(is_plain) {
        Cow::Borrowed(arg)
    } else {
        Cow::Owned(format!("'{}'", arg.replace('\'', r"'\''")))
    }
}
