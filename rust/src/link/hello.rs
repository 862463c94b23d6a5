//! The first request of a connection, and what a broker answers.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use serde_json::value::RawValue;

use super::Options;
use super::client::NOTICE;
use crate::error::{Code, Error, Result, interrupted, unanswered};
use crate::layout::{LAYOUT, PROTOCOL};
use crate::sys;
use crate::wire::ops::{ClientInfo, Hello, HelloReply, Nothing, Resume};
use crate::wire::{Control, Frames, Reply, decode};

/// Whether a hello failed because its broker ended: another may be there soon.
pub(crate) fn went_away(e: &Error) -> bool {
    matches!(e.code(), Code::BrokerLost | Code::NoBroker)
}

/// Says hello and reads the answer. `look` as of [`answered`].
pub(crate) fn greet(
    control: &Control,
    frames: &mut Frames,
    o: &Options,
    until: Option<Instant>,
    look: &dyn Fn() -> Result<()>,
) -> Reply {
    let look = &|| if o.interrupted.is_some_and(|hook| hook()) { Err(interrupted()) } else { look() };
    match control.request("hello", &hello(o, None), &[sys::alive()?]) {
        Ok((_, from)) => answered(control, frames, &from, until, look),
        // A broker that refuses the connection has said why.
        Err(e) => {
            answered(control, frames, &sync_channel(0).1, until, look).map_err(|_| control.refusal().unwrap_or(e))
        }
    }
}

/// Ends a session that came to nothing, which would stay until this process ends.
pub(crate) fn leave(control: &Control) {
    let _ = control.tell("bye", &Nothing {});
}

/// The answer to hello, of a broker that this client understands.
pub(crate) fn greeted(json: &RawValue) -> Result<HelloReply> {
    let reply: HelloReply = decode("hello", json)?;
    check_broker(&reply)?;
    Ok(reply)
}

/// Reads the answer to a request of a connection that no other thread reads yet. Events that come before it
/// are of no use to a session that has nothing yet. The wait ends with an error of `look`, which is asked now and then.
pub(crate) fn answered(
    control: &Control,
    frames: &mut Frames,
    from: &Receiver<Reply>,
    until: Option<Instant>,
    look: &dyn Fn() -> Result<()>,
) -> Reply {
    loop {
        if let Ok(reply) = from.try_recv() {
            return reply;
        }
        if let Some((json, fds)) = frames.next()? {
            control.deliver(json, fds)?;
            continue;
        }
        if let Some(refused) = control.refusal() {
            return Err(refused);
        }
        let notice = Instant::now() + NOTICE;
        let socket = control.socket()?;
        let come = sys::readable_by(&*socket, until.map_or(notice, |u| u.min(notice)));
        if matches!(come, Ok(false)) && until.is_none_or(|u| u > notice) {
            look()?;
            continue;
        }
        if matches!(come, Ok(false)) {
            return Err(unanswered("hello")); // it listens: that is not the same as none
        }
        if come.is_err() || !frames.receive(&socket)? {
            return Err(Error::new(Code::NoBroker, "try again", "the broker was gone before it had answered"));
        }
    }
}

/// Refuses a broker of another protocol or layout: its pages would be misread without a sign.
fn check_broker(b: &HelloReply) -> Result<()> {
    let (theirs, ours) = ((b.protocol, b.layout), (PROTOCOL, LAYOUT));
    let remedy = match theirs.cmp(&ours) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => format!(
            "the broker is the older of the two: end it (baton stop), and start version {} (protocol {PROTOCOL}, layout {LAYOUT}), which the program has",
            env!("CARGO_PKG_VERSION")
        ),
        std::cmp::Ordering::Greater => format!(
            "the client is the older of the two: update it to version {} (protocol {}, layout {}), which the broker has",
            b.version, b.protocol, b.layout
        ),
    };
    let what = format!(
        "the broker ({}) speaks protocol {} with layout {}, this client ({}) protocol {PROTOCOL} with layout {LAYOUT}",
        b.version,
        b.protocol,
        b.layout,
        env!("CARGO_PKG_VERSION")
    );
    Err(Error::new(Code::Version, remedy, what))
}

pub(super) fn hello(o: &Options, resume: Option<Resume>) -> Hello<'_> {
    Hello {
        protocol: PROTOCOL,
        layout: LAYOUT,
        // Whether there is a driver is seen when a tensor on a GPU is met.
        features: if cfg!(feature = "cuda") { &["cuda"] } else { &[] },
        client: ClientInfo { name: &o.name, language: o.language, version: env!("CARGO_PKG_VERSION") },
        namespace: &o.namespace,
        pid: std::process::id(),
        alive: true,
        resume,
    }
}
