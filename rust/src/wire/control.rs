//! The connection to the broker: requests from any thread, replies and events read by one.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::frame;
use super::ops::WireError;
use crate::error::{Code, Error, Result};

/// An answer: its JSON and descriptors, or why there is none.
pub(crate) type Reply = Result<(Box<RawValue>, Vec<OwnedFd>)>;

/// What a frame from the broker was, when it was no reply.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) json: Vec<u8>,
}

/// What became of a received frame.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A reply, which was given to its caller.
    Answered,
    /// An event.
    Event(Event),
}

/// The sending half of a connection, and who waits for replies.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    turn: Mutex<()>, // one writes at a time
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    pending: HashMap<u64, SyncSender<Reply>>,
    lost: Option<Error>,
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    id: u64,
    #[serde(default)]
    ok: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<WireError>,
    #[serde(default)]
    event: Option<String>,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd) -> Control {
        Control { socket, turn: Mutex::new(()), state: Mutex::default() }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Sends a request, whose fields beside id and op are those of `body`. The reply comes by the
    /// receiver; dropping it gives the answer up.
    pub(crate) fn request<B: Serialize>(
        &self,
        op: &str,
        body: &B,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(u64, Receiver<Reply>)> {
        let (to, from) = sync_channel(1);
        let id = {
            let mut s = self.state();
            if let Some(e) = &s.lost {
                return Err(e.clone());
            }
            s.next += 1;
            let id = s.next;
            s.pending.insert(id, to);
            id
        };
        let sent = encode(id, op, body).and_then(|json| {
            let _turn = self.turn.lock().unwrap_or_else(|p| p.into_inner());
            frame::send(&self.socket, &json, fds)
        });
        match sent {
            Ok(()) => Ok((id, from)),
            Err(e) => {
                self.forget(id);
                Err(e)
            }
        }
    }

    /// Sends a request whose reply nobody waits for.
    pub(crate) fn tell<B: Serialize>(&self, op: &str, body: &B) -> Result<()> {
        self.request(op, body, &[]).map(|(id, _)| self.forget(id))
    }

    /// Gives a reply up.
    pub(crate) fn forget(&self, id: u64) {
        self.state().pending.remove(&id);
    }

    /// Takes a received frame: a reply goes to its caller, an event back to ours.
    pub(crate) fn deliver(&self, json: Vec<u8>, fds: Vec<OwnedFd>) -> Result<Incoming> {
        let e: Envelope = serde_json::from_slice(&json).map_err(|e| {
            Error::new(
                Code::Protocol,
                "use a broker of this version",
                format!("a frame of the broker is no message: {e}"),
            )
        })?;
        if let Some(name) = e.event {
            return Ok(Incoming::Event(Event { name, json }));
        }
        let to = self.state().pending.remove(&e.id);
        let reply = match (e.error, e.ok) {
            (Some(e), _) => Err(from_wire(e)),
            (None, Some(ok)) => Ok((ok, fds)),
            (None, None) => Ok((empty(), fds)),
        };
        if let Some(to) = to {
            let _ = to.send(reply);
        }
        Ok(Incoming::Answered)
    }

    /// Ends the connection: all that wait fail with `BrokerLost`.
    pub(crate) fn fail(&self, why: &Error) {
        let lost = Error::new(
            Code::BrokerLost,
            "it reconnects by itself; try again",
            format!("the connection to the broker ended: {}", why.message()),
        );
        let mut s = self.state();
        for (_, to) in s.pending.drain() {
            let _ = to.send(Err(lost.clone()));
        }
        s.lost.get_or_insert(lost);
        drop(s);
        self.shut();
    }

    /// Ends the connection from this side; the reading thread notices.
    pub(crate) fn shut(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Whether the connection has ended.
    pub(crate) fn is_lost(&self) -> bool {
        self.state().lost.is_some()
    }
}

fn empty() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_default()
}

fn encode<B: Serialize>(id: u64, op: &str, body: &B) -> Result<Vec<u8>> {
    let made = serde_json::to_value(body).and_then(|mut v| {
        if let Value::Object(m) = &mut v {
            m.insert("id".to_owned(), id.into());
            m.insert("op".to_owned(), op.into());
        }
        serde_json::to_vec(&v)
    });
    made.map_err(|e| Error::new(Code::InvalidArgument, "use values that JSON can hold", format!("encode {op}: {e}")))
}

fn from_wire(e: WireError) -> Error {
    let code = Code::parse(&e.code);
    let message = if code.is_some() { e.message } else { format!("{}: {}", e.code, e.message) };
    Error::new(code.unwrap_or(Code::Internal), e.remedy, message).with_detail(e.detail.unwrap_or_default())
}

/// Reads a reply as what the op answers.
pub(crate) fn decode<R: DeserializeOwned>(op: &str, json: &RawValue) -> Result<R> {
    serde_json::from_str(json.get())
        .map_err(|e| Error::new(Code::Protocol, "use a broker of this version", format!("reply to {op}: {e}")))
}
