//! The first broker of a session: finding it, and its thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::hello::{greet, greeted, leave, went_away};
use super::thread::Thread;
use super::{Options, start};
use crate::error::Result;
use crate::wire::ops::HelloReply;
use crate::wire::{Control, Frames};

/// How long a broker that listens has at least to greet.
const HELLO: Duration = Duration::from_secs(1);

/// Connects to a broker and says hello; `open` is given what it answers. One that goes away meanwhile is followed by
/// another. What has come after the answer is for the thread.
pub(crate) fn reach<P>(
    o: &Options,
    until: Option<Instant>,
    open: impl Fn(HelloReply, Vec<OwnedFd>) -> Result<P>,
) -> Result<(Arc<Control>, Thread, P)> {
    let mut pause = start::TICK;
    loop {
        let control = Arc::new(Control::new(start::dial(o, until)?));
        let mut frames = Frames::default();
        // A broker that has just been found may take a moment.
        let answers = until.map(|u| u.max(Instant::now() + HELLO));
        let answered = greet(&control, &mut frames, o, answers, &|| Ok(()));
        match answered.and_then(|(json, fds)| Ok((open(greeted(&json)?, fds)?, Thread::new(frames)?))) {
            Ok((opened, thread)) => return Ok((control, thread, opened)),
            Err(e) => {
                leave(&control);
                if !went_away(&e) || until.is_some_and(|u| Instant::now() + pause >= u) {
                    return Err(e);
                }
            }
        }
        start::wait(o, &mut pause)?;
    }
}
