//! How a session is opened.

use std::path::PathBuf;
use std::time::Duration;

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
}
