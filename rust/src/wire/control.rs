//! The connection to the broker: requests from any thread, replies and events read by one.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::frame;
use super::ops::WireError;
use crate::error::{Code, Error, Result};
use crate::sys::{self, Waker};

/// What to do where no more files may be open.
pub(crate) const NO_DESCRIPTORS: &str = "raise the limit of open files (ulimit -n), or close some: a queue or topic that is in use has one, and so has each process whose memory is mapped";

/// An answer: its JSON and descriptors, or why there is none.
pub(crate) type Reply = Result<(Box<RawValue>, Vec<OwnedFd>)>;

/// What a frame from the broker was, when it was no reply.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) name: String,
}

/// What became of a received frame.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A reply, which was given to its caller.
    Answered,
    /// An event.
    Event(Event),
    /// The broker did something for nothing.
    Orphaned(OrphanedReply),
    /// What was told with something to be kept until then was answered, maybe with an error.
    Kept(Keep, Option<Error>),
}

/// What is kept until a broker has done what it was told.
pub(crate) type Keep = Box<dyn Any + Send>;

/// A request that was carried out after its caller had given it up, or whose answer came with
/// descriptors that this process could not have.
#[derive(Debug)]
pub(crate) struct OrphanedReply {
    pub(crate) op: &'static str,
    /// What was answered.
    pub(crate) ok: Box<RawValue>,
}

/// The sending half of a connection, and the requests that wait for replies.
#[derive(Debug)]
pub(crate) struct Control {
    /// `None` once the connection was lost and put away: a process at its limit of open files has no other
    /// descriptor for the next one.
    socket: RwLock<Option<Arc<sys::CheckedFd>>>,
    /// What the socket had no room for; it goes before all else. One thread writes at a time, and none
    /// waits meanwhile.
    unsent: Mutex<VecDeque<Unsent>>,
    waker: OnceLock<Arc<Waker>>,
    state: Mutex<State>,
}

/// The rest of a frame, and descriptors that travel with its first byte.
type Unsent = (Vec<u8>, Vec<OwnedFd>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    pending: HashMap<u64, Asked>,
    /// Why the broker will not serve this connection, which it closes.
    refused: Option<Error>,
    lost: Option<Error>,
    /// What was told and no broker has done: it ended, or the connection was lost before the answer.
    owed: Vec<Owed>,
}

/// What a broker was told that may not have come to it: the op, the request's fields, and what is kept until it
/// has done it.
pub(crate) type Owed = (&'static str, Value, Option<Keep>);

#[derive(Debug)]
struct Asked {
    op: &'static str,
    body: Value,
    by: By,
}

/// The asking side.
#[derive(Debug)]
enum By {
    Caller(SyncSender<Reply>),
    /// A caller that has given it up.
    Abandoned,
    /// A caller that needs no answer, but a broker to do it: the next one, where this one has not.
    Teller(Option<Keep>),
}

/// How many answers may be awaited before a caller that could do without an answer waits for it.
const MOST_AWAITED: usize = 1024;

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

impl State {
    /// Notes a request, and writes it.
    fn ask(&mut self, op: &'static str, mut body: Value, by: By) -> Result<(u64, Vec<u8>)> {
        let id = self.next + 1;
        if let Value::Object(m) = &mut body {
            m.insert("id".to_owned(), id.into());
            m.insert("op".to_owned(), op.into());
        }
        let json = serde_json::to_vec(&body).map_err(|e| unencodable(op, &e))?;
        self.next = id;
        self.pending.insert(id, Asked { op, body, by });
        Ok((id, json))
    }
}

impl Control {
    pub(crate) fn new(socket: OwnedFd) -> Control {
        Control {
            socket: RwLock::new(Some(Arc::new(sys::CheckedFd::new(socket)))),
            unsent: Mutex::default(),
            waker: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    /// The socket, which stays open while the caller has it. `BrokerLost` once it was put away.
    pub(crate) fn socket(&self) -> Result<Arc<sys::CheckedFd>> {
        let put_away =
            || Error::new(Code::BrokerLost, "it reconnects by itself; try again", "the connection has ended");
        self.socket.read().unwrap_or_else(|p| p.into_inner()).clone().ok_or_else(put_away)
    }

    /// Closes the socket of a connection that is lost.
    pub(crate) fn put_away(&self) {
        let socket = self.socket.write().unwrap_or_else(|p| p.into_inner()).take();
        drop(socket);
        self.unsent().clear();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Sends a request, whose fields beside id and op are those of `body`. The reply comes by the
    /// receiver. It does not wait: what an unresponsive broker leaves no room for is sent later.
    pub(crate) fn request<B: Serialize>(
        &self,
        op: &'static str,
        body: &B,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(u64, Receiver<Reply>)> {
        let (to, from) = sync_channel(1);
        let body = serde_json::to_value(body).map_err(|e| unencodable(op, &e))?;
        let mut s = self.state();
        if let Some(e) = &s.lost {
            return Err(e.clone());
        }
        let (id, json) = s.ask(op, body, By::Caller(to))?;
        drop(s);
        let sent = frame::encode(&json, fds.len()).and_then(|frame| self.send(frame, fds));
        sent.inspect_err(|_| self.forget(id))?;
        Ok((id, from))
    }

    fn send(&self, frame: Vec<u8>, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let socket = self.socket()?;
        let mut unsent = self.unsent();
        let sent = match send_first(&socket, &mut unsent)? {
            true => sys::send_some(&socket, &frame, fds).map_err(unsendable)?,
            false => 0,
        };
        if sent == frame.len() {
            return Ok(());
        }
        let fds = if sent == 0 { fds } else { &[] };
        let fds = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>().map_err(unsendable)?;
        unsent.push_back((frame[sent..].to_vec(), fds));
        drop(unsent);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
        Ok(())
    }

    /// Sends what there was no room for, as far as there is room.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let socket = self.socket()?;
        send_first(&socket, &mut self.unsent()).map(|_| ())
    }

    /// Whether something waits for room, which the thread that reads looks for.
    pub(crate) fn is_behind(&self) -> bool {
        !self.unsent().is_empty()
    }

    /// What to wake when something begins to wait for room.
    pub(crate) fn wakes(&self, waker: &Arc<Waker>) {
        let _ = self.waker.set(waker.clone());
    }

    fn unsent(&self) -> std::sync::MutexGuard<'_, VecDeque<Unsent>> {
        self.unsent.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Sends a request whose reply is not awaited. Where the connection is lost before the reply it is owed.
    pub(crate) fn tell<B: Serialize>(&self, op: &'static str, body: &B) -> Result<()> {
        self.tell_value((op, serde_json::to_value(body).map_err(|e| unencodable(op, &e))?, None))
    }

    /// As `tell`, with what is kept until a broker has done it: [`Incoming::Kept`] then.
    pub(crate) fn tell_keeping<B: Serialize>(&self, op: &'static str, body: &B, keep: Keep) -> Result<()> {
        self.tell_value((op, serde_json::to_value(body).map_err(|e| unencodable(op, &e))?, Some(keep)))
    }

    /// Whether the broker is so far behind that a caller that could do without an answer is to wait for it.
    pub(crate) fn is_far_behind(&self) -> bool {
        self.state().pending.len() >= MOST_AWAITED
    }

    /// As `tell`, of what is owed by an earlier connection.
    pub(crate) fn tell_value(&self, (op, body, keep): Owed) -> Result<()> {
        let mut s = self.state();
        if s.lost.is_some() {
            s.owed.push((op, body, keep));
            return Ok(());
        }
        let (_, json) = s.ask(op, body, By::Teller(keep))?;
        drop(s);
        // What cannot be sent is owed once the thread that reads has found the connection lost.
        frame::encode(&json, 0).and_then(|frame| self.send(frame, &[]))
    }

    /// What was told by this connection, which is lost, and that no broker may have done.
    pub(crate) fn take_owed(&self) -> Vec<Owed> {
        std::mem::take(&mut self.state().owed)
    }

    fn forget(&self, id: u64) {
        self.state().pending.remove(&id);
    }

    /// Gives a reply up: what it says was done is [`OrphanedReply`]. If it has come meanwhile, here it is.
    pub(crate) fn give_up(&self, id: u64, from: &Receiver<Reply>) -> Option<Reply> {
        if let Some(asked) = self.state().pending.get_mut(&id) {
            asked.by = By::Abandoned;
            return None;
        }
        from.recv().ok()
    }

    /// Gives a reply up in the place of what waits for it, which has an error instead, unless the reply has come.
    pub(crate) fn abandon(&self, id: u64, why: Error) {
        if let Some(asked) = self.state().pending.get_mut(&id)
            && let By::Caller(to) = &asked.by
        {
            let _ = to.send(Err(why));
            asked.by = By::Abandoned;
        }
    }

    /// Takes a received frame: a reply goes to its caller, all else back to ours. Descriptors are `None`
    /// where this process could have no more files open: the request failed, and the connection goes on.
    pub(crate) fn deliver(&self, json: Vec<u8>, fds: Option<Vec<OwnedFd>>) -> Result<Incoming> {
        let e: Envelope = serde_json::from_slice(&json).map_err(|e| {
            Error::new(
                Code::Protocol,
                "stop the broker and start one of this client's version",
                format!("a frame of the broker is no message: {e}"),
            )
        })?;
        if let Some(name) = e.event {
            return Ok(Incoming::Event(Event { name }));
        }
        let answer = e.error.map_or_else(|| Ok(e.ok.unwrap_or_else(empty)), |e| Err(e.into()));
        if e.id == 0 {
            self.state().refused = answer.err();
            return Ok(Incoming::Answered);
        }
        let mut s = self.state();
        let Some(Asked { op, body, by }) = s.pending.remove(&e.id) else { return Ok(Incoming::Answered) };
        match (by, answer, fds) {
            // It ends, and has done nothing: the next broker is told.
            (By::Teller(keep), Err(e), _) if e.code() == Code::BrokerLost => s.owed.push((op, body, keep)),
            (By::Teller(Some(keep)), answer, _) => return Ok(Incoming::Kept(keep, answer.err())),
            (By::Teller(None), ..) | (By::Abandoned, Err(_), _) => {}
            (By::Caller(to), Ok(ok), Some(fds)) => drop(to.send(Ok((ok, fds)))),
            (By::Caller(to), Err(e), _) => drop(to.send(Err(e))),
            (by, Ok(ok), _) => {
                if let By::Caller(to) = by {
                    let _ = to.send(Err(no_descriptors()));
                }
                return Ok(Incoming::Orphaned(OrphanedReply { op, ok }));
            }
        }
        Ok(Incoming::Answered)
    }

    /// Why the broker refused the connection.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.state().refused.clone()
    }

    /// Ends the connection: all that wait fail with `BrokerLost`.
    pub(crate) fn fail(&self, why: &Error) {
        self.refuse(why);
        self.shut();
    }

    /// Ends the waiting for replies as `fail` does; what was asked before still goes out.
    pub(crate) fn refuse(&self, why: &Error) {
        let lost = Error::new(
            Code::BrokerLost,
            "it reconnects by itself; try again",
            format!("the connection to the broker ended: {}", why.message()),
        );
        let mut s = self.state();
        let lost = s.refused.clone().unwrap_or(lost);
        let mut asked: Vec<_> = s.pending.drain().collect();
        asked.sort_unstable_by_key(|(id, _)| *id); // what is owed is told again in its order
        for (_, Asked { op, body, by }) in asked {
            match by {
                By::Caller(to) => drop(to.send(Err(lost.clone()))),
                By::Teller(keep) => s.owed.push((op, body, keep)),
                By::Abandoned => {}
            }
        }
        s.lost.get_or_insert(lost);
    }

    /// Ends the connection for good, with the error of all that wait and of all that comes.
    pub(crate) fn end(&self, why: Error) {
        let mut s = self.state();
        let (pending, owed) = (std::mem::take(&mut s.pending), std::mem::take(&mut s.owed));
        for asked in pending.values() {
            if let By::Caller(to) = &asked.by {
                let _ = to.send(Err(why.clone()));
            }
        }
        s.lost = Some(why);
        drop(s);
        drop((pending, owed)); // with what was kept, whose end may come back here
        self.shut();
    }

    /// Says nothing more, and goes on reading until the broker ends the connection.
    pub(crate) fn end_writing(&self) {
        if let Ok(socket) = self.socket() {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
        }
    }

    /// Ends the connection from this side; the reading thread notices.
    pub(crate) fn shut(&self) {
        if let Ok(socket) = self.socket() {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
    }

    /// Whether the connection has ended.
    pub(crate) fn is_lost(&self) -> bool {
        self.state().lost.is_some()
    }
}

/// Whether all that waited has been sent.
fn send_first(socket: &OwnedFd, unsent: &mut VecDeque<Unsent>) -> Result<bool> {
    while let Some((frame, fds)) = unsent.front_mut() {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        match sys::send_some(socket, frame, &borrowed).map_err(unsendable)? {
            0 => return Ok(false),
            n if n < frame.len() => {
                frame.drain(..n);
                fds.clear();
            }
            _ => drop(unsent.pop_front()),
        }
    }
    Ok(true)
}

fn empty() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_default()
}

fn unsendable(e: io::Error) -> Error {
    Error::new(Code::BrokerLost, "it reconnects by itself; try again", format!("send to the broker: {e}"))
}

fn unencodable(op: &str, e: &serde_json::Error) -> Error {
    Error::new(Code::InvalidArgument, "use values that JSON can hold", format!("encode {op}: {e}"))
}

/// Descriptors were sent to this process, which may have no more files open.
fn no_descriptors() -> Error {
    let most = sys::most_open_files();
    let what = format!(
        "descriptors were sent and could not be received: this process has too many open files, of {most} at most"
    );
    Error::new(Code::TooMany, NO_DESCRIPTORS, what)
}

impl From<WireError> for Error {
    fn from(e: WireError) -> Error {
        let code = Code::parse(&e.code);
        let message = if code.is_some() { e.message } else { format!("{}: {}", e.code, e.message) };
        Error::new(code.unwrap_or(Code::Internal), e.remedy, message).with_detail(e.detail.unwrap_or_default())
    }
}

/// Reads a reply as what the op answers.
pub(crate) fn decode<R: DeserializeOwned>(op: &str, json: &RawValue) -> Result<R> {
    serde_json::from_str(json.get()).map_err(|e| {
        Error::new(
            Code::Protocol,
            "stop the broker and start one of this client's version",
            format!("reply to {op}: {e}"),
        )
        .caused_by(e)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    fn control() -> (Control, UnixStream) {
        let (ours, broker) = UnixStream::pair().unwrap();
        (Control::new(ours.into()), broker)
    }

    fn answer(id: u64) -> Vec<u8> {
        format!("{{\"id\":{id},\"ok\":{{\"lease\":7}}}}").into_bytes()
    }

    #[test]
    fn what_was_done_for_nothing_is_told() {
        let (c, _broker) = control();
        let (id, from) = c.request("lease", &serde_json::json!({"seconds": 1}), &[]).unwrap();
        assert!(c.give_up(id, &from).is_none());
        match c.deliver(answer(id), Some(Vec::new())).unwrap() {
            Incoming::Orphaned(reply) => assert_eq!((reply.op, reply.ok.get()), ("lease", "{\"lease\":7}")),
            other => panic!("{other:?}"),
        }
        let (id, from) = c.request("grant", &serde_json::json!({}), &[]).unwrap();
        assert!(matches!(c.deliver(answer(id), None).unwrap(), Incoming::Orphaned(reply) if reply.op == "grant"));
        assert_eq!(from.recv().unwrap().unwrap_err().code(), Code::TooMany);
        let (id, from) = c.request("bye", &serde_json::json!({}), &[]).unwrap();
        c.deliver(answer(id), Some(Vec::new())).unwrap();
        assert!(c.give_up(id, &from).unwrap().is_ok(), "it had come before it was given up");
    }

    #[test]
    fn what_the_socket_has_no_room_for_is_sent_later_and_in_order() {
        let (c, broker) = control();
        let waker = Arc::new(Waker::new().unwrap());
        c.wakes(&waker);
        let mut asked = 0;
        while !c.is_behind() {
            c.request("peer", &serde_json::json!({}), &[]).unwrap();
            asked += 1;
        }
        assert!(sys::readable_by(waker.fd(), Instant::now()).unwrap(), "the reading side is notified");
        // Longer than there is ever room for, so that it is cut.
        let file = std::fs::File::open("/dev/null").unwrap();
        let long = serde_json::json!({"name": "n".repeat(1 << 20)});
        c.tell("bye", &serde_json::json!({})).unwrap();
        c.request("name.delete", &long, &[file.as_fd()]).unwrap();
        c.tell("collect", &serde_json::json!({})).unwrap();

        let (broker, mut frames, mut ops) = (OwnedFd::from(broker), super::super::Frames::default(), Vec::new());
        while ops.last().is_none_or(|op| op != "collect") {
            assert!(frames.receive(&broker).unwrap());
            while let Some((json, fds)) = frames.next().unwrap() {
                let request: Value = serde_json::from_slice(&json).unwrap();
                assert_eq!(fds.unwrap().len(), usize::from(request["op"] == "name.delete"));
                ops.push(request["op"].as_str().unwrap().to_owned());
            }
            c.catch_up().unwrap();
        }
        assert_eq!(ops.iter().filter(|op| *op == "peer").count(), asked);
        assert_eq!(ops[asked..], ["bye", "name.delete", "collect"]);
    }

    #[test]
    fn what_was_told_and_not_answered_is_owed() {
        let (c, _broker) = control();
        let leave = |reader: u32| serde_json::json!({"reader": reader});
        let owed = |c: &Control| c.take_owed().iter().map(|(op, b, _)| (*op, b["reader"].as_u64())).collect::<Vec<_>>();
        (0..=3).for_each(|reader| c.tell("topic.leave", &leave(reader)).unwrap());
        c.deliver(answer(1), Some(Vec::new())).unwrap();
        let ending = br#"{"id":2,"error":{"code":"BrokerLost","message":"the broker is ending","remedy":""}}"#;
        c.deliver(ending.to_vec(), Some(Vec::new())).unwrap();
        let (_, from) = c.request("grant", &serde_json::json!({}), &[]).unwrap();
        c.fail(&Error::new(Code::BrokerLost, "", "the broker closed it"));
        assert_eq!(from.recv().unwrap().unwrap_err().code(), Code::BrokerLost);
        c.tell("topic.leave", &leave(4)).unwrap();
        assert_eq!(owed(&c), [1, 2, 3, 4].map(|reader| ("topic.leave", Some(reader))));
        let (next, _broker) = control();
        next.tell_value(("topic.leave", leave(2), None)).unwrap();
        next.fail(&Error::new(Code::BrokerLost, "", "the broker closed it"));
        assert_eq!(owed(&next), [("topic.leave", Some(2))]);
    }

    #[test]
    fn what_is_kept_comes_back_with_the_answer_or_is_owed() {
        let (c, _broker) = control();
        (0..3u8).for_each(|k| c.tell_keeping("lease", &serde_json::json!({}), Box::new(k)).unwrap());
        let kept = |json: Vec<u8>| match c.deliver(json, Some(Vec::new())).unwrap() {
            Incoming::Kept(keep, failed) => (keep.downcast_ref::<u8>().copied(), failed.map(|e| e.code())),
            other => panic!("{other:?}"),
        };
        assert_eq!(kept(answer(1)), (Some(0), None));
        let full = br#"{"id":2,"error":{"code":"TooMany","message":"full","remedy":""}}"#;
        assert_eq!(kept(full.to_vec()), (Some(1), Some(Code::TooMany)));
        c.fail(&Error::new(Code::BrokerLost, "", "the broker closed it"));
        let owed = c.take_owed();
        assert!(matches!(&owed[..], [("lease", _, Some(keep))] if keep.downcast_ref::<u8>() == Some(&2)));
    }

    #[test]
    fn a_refused_connection_says_why() {
        let (c, _broker) = control();
        let (_, from) = c.request("hello", &serde_json::json!({}), &[]).unwrap();
        let refusal = br#"{"id":0,"error":{"code":"TooMany","message":"full","remedy":"close sessions"}}"#;
        c.deliver(refusal.to_vec(), Some(Vec::new())).unwrap();
        c.fail(&Error::new(Code::BrokerLost, "", "the broker closed it"));
        assert_eq!(from.recv().unwrap().unwrap_err().code(), Code::TooMany);
        assert_eq!(c.refusal().unwrap().message(), "full");
    }
}
