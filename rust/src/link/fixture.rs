//! A link for tests of its own and of higher layers: over a pair of sockets, at whose other end a test answers.

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Ending, Job, Link, Opened, Options, Pools, Served, Thread};
use crate::error::Result;
use crate::shm::Bells;
use crate::sys;
use crate::waits::Waiter;
use crate::wire::ops::Resume;
use crate::wire::{Control, Frames};

/// How long a test that has gone wrong waits for a request.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// The broker's end of a connection.
pub(crate) struct Broker {
    socket: OwnedFd,
    frames: Frames,
}

impl Broker {
    /// A connection, and its other end.
    pub(crate) fn connection() -> (Arc<Control>, Broker) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(LONG)).unwrap();
        (Arc::new(Control::new(ours.into())), Broker { socket: theirs.into(), frames: Frames::default() })
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Value {
        let until = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < until, "nothing was asked");
            if let Some((json, _)) = self.frames.next().unwrap() {
                return serde_json::from_slice(&json).unwrap();
            }
            assert!(self.frames.receive(&self.socket).unwrap(), "the connection ended");
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&self, request: &Value, ok: &Value, fds: &[BorrowedFd<'_>]) {
        let json = serde_json::json!({"id": request["id"], "ok": ok}).to_string();
        let mut frame = (json.len() as u32).to_le_bytes().to_vec();
        frame.extend((fds.len() as u16).to_le_bytes());
        frame.extend([0, 0]);
        frame.write_all(json.as_bytes()).unwrap();
        assert_eq!(sys::send_some(&self.socket, &frame, fds).unwrap(), frame.len());
    }
}

/// A link whose thread does not run: callers read their answers themselves.
pub(crate) fn link(bells: &Bells, slot: u32) -> (Arc<Link>, Broker) {
    link_at(String::new(), bells, slot)
}

/// As `link`, of a session that looks for the next broker at a socket.
pub(super) fn link_at(socket: String, bells: &Bells, slot: u32) -> (Arc<Link>, Broker) {
    let (control, broker) = Broker::connection();
    let options = Options {
        address: None,
        namespace: "default".into(),
        start: false,
        name: "test".into(),
        binary: None,
        timeout: LONG,
        socket,
        named: true,
        language: "rust",
        interrupted: None,
        place: None,
    };
    let known_as = Resume { instance: "i".into(), serial: 7, secret: String::new() };
    let thread = Arc::new(Thread::new(Frames::default()).unwrap());
    (Arc::new(Link::new(options, known_as, control, thread, Waiter::new(bells, slot, false)).unwrap()), broker)
}

/// A session of which nothing is there.
pub(super) struct Bare;

impl Served for Bare {
    fn work(self: Arc<Self>, _: Job) {}
    fn tick(&self) {}
    fn lets_go_at(&self) -> Option<Instant> {
        None
    }
    fn is_watched(&self) -> bool {
        false
    }
    fn counts_any(&self) -> bool {
        false
    }
    fn empties(&self) -> bool {
        true
    }
    fn ending(&self) -> Option<Ending> {
        None
    }
    fn restore(&self, _: &Control) -> Result<()> {
        Ok(())
    }
    fn relinked(&self) {}
    fn pools(&self, _: Pools) {}
    fn lost(&self, _: &Opened) {}
    fn gives_up(&self, _: &Opened) -> bool {
        true
    }
    fn over(&self) {}
}

/// Ends a session as a broker does that is stopped.
pub(crate) fn lose(link: &Link) {
    link.lose(&Bare, link.lost_by("the broker was stopped"), false);
}
