//! The layer alone: its line is a pair of sockets, at whose other end a test answers.

use std::any::Any;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::fixture::{Bare, Broker, LONG, link, link_at};
use super::pending::PendingRequest;
use super::{Broker as Of, Client, Opened, Thread};
use crate::error::{Code, Result};
use crate::layout::bell_file;
use crate::shm::{Bells, Region};
use crate::sys::Mapping;
use crate::wire::ops::{Bye, Ignored, Nothing};
use crate::wire::{Control, Frames, Reply};

fn client() -> (Client, Broker) {
    let bells = Bells::new(Region::new(Arc::new(Mapping::anonymous(bell_file::BYTES as usize).unwrap())));
    let (link, broker) = link(&bells, 7);
    (Client::new(link), broker)
}

/// A pending request that notes what became of it.
#[derive(Debug, Clone, Default)]
struct Noting {
    lost: Arc<AtomicUsize>,
    answers: Arc<Mutex<Vec<Option<Code>>>>,
}

impl PendingRequest for Noting {
    fn ask(&self, control: &Control) -> Result<Receiver<Reply>> {
        control.request("topic.leave", &Nothing {}, &[]).map(|(_, answer)| answer)
    }
    fn unanswered(&mut self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
    fn answered(self: Box<Self>, reply: Reply) {
        self.answers.lock().unwrap().push(reply.err().map(|e| e.code()));
    }
    fn is_done(&self) -> bool {
        false
    }
    fn end(self: Box<Self>) {
        self.answers.lock().unwrap().push(None);
    }
}

#[test]
fn a_caller_reads_its_answer_where_no_thread_does() {
    let (client, mut broker) = client();
    let asks = std::thread::spawn(move || client.call_fds::<_, Ignored>("list", &Nothing {}).map(|(_, fds)| fds.len()));
    let request = broker.next();
    assert_eq!(request["op"], "list");
    broker.answer(&request, &serde_json::json!({}), &[std::io::stdin().as_fd()]);
    assert_eq!(asks.join().unwrap().unwrap(), 1);
}

#[test]
fn a_closed_opening_asks_nothing() {
    let (client, _broker) = client();
    client.closed.set();
    let refused = client.call_of::<_, Ignored>(Of::This, "list", &Nothing {}, &[]);
    assert_eq!(refused.err().map(|e| e.code()), Some(Code::Closed));
}

#[test]
fn another_connection_is_heard_of_though_nothing_comes_by_it() {
    let (client, _broker) = client();
    // A caller that asks by the former connection and finds it lost has read this before.
    let before = client.thread.heard();
    client.relink(&Bare, Broker::connection().0);
    assert_ne!(client.thread.heard(), before);
}

#[test]
fn a_pending_request_is_done_by_the_next_broker_where_the_first_has_not_answered() {
    let (client, mut broker) = client();
    let (noting, (control, mut next)) = (Noting::default(), Broker::connection());
    client.line().send(Box::new(noting.clone()), &*client.thread);
    assert_eq!(broker.next()["op"], "topic.leave");
    drop(broker);
    client.relink(&Bare, control);
    assert_eq!((next.next()["op"].as_str(), noting.lost.load(Ordering::Relaxed)), (Some("topic.leave"), 1));
    assert!(client.end_pending(true) && *noting.answers.lock().unwrap() == [None]);
}

#[test]
fn an_opening_that_is_gone_is_none() {
    let (client, _broker) = client();
    let opening: Arc<dyn Any + Send + Sync> = Arc::new(5);
    client.open(Arc::downgrade(&opening));
    assert!(client.opening().is_some());
    drop(opening);
    assert!(client.opening().is_none());
}

/// A broker refuses the connection of a user that may not use it: it says so, and closes the connection whether
/// the client has said hello or not.
#[test]
fn a_session_whose_user_may_not_come_back_is_over() {
    let dir = std::env::temp_dir().join(format!("baton-denied-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let socket = dir.join("s");
    let next = UnixListener::bind(&socket).unwrap();
    let bells = Bells::new(Region::new(Arc::new(Mapping::anonymous(bell_file::BYTES as usize).unwrap())));
    let (link, broker) = link_at(socket.to_str().unwrap().to_owned(), &bells, 7);
    let opening: Arc<Opened> = Arc::new(5);
    link.open(Arc::downgrade(&opening));
    link.thread.start(&link, Arc::new(Bare)).unwrap();
    drop(broker);
    let refusal = br#"{"id":0,"error":{"code":"PermissionDenied","message":"user 5 may not","remedy":"ask"}}"#;
    let mut frame = (refusal.len() as u32).to_le_bytes().to_vec();
    frame.extend([0; 4]);
    frame.extend(refusal);
    next.accept().unwrap().0.write_all(&frame).unwrap();
    let until = Instant::now() + LONG;
    while link.why_lost().is_none() {
        assert!(Instant::now() < until, "it tries again");
        std::thread::yield_now();
    }
    let lost = link.why_lost().unwrap();
    assert_eq!(
        (lost.code(), lost.message()),
        (Code::PermissionDenied, "session 7 of broker i is over: user 5 may not")
    );
    assert!(lost.is_session_lost() && !link.is_unknown());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn half_an_answer_is_the_loss_of_the_broker() {
    let (ours, mut broker) = UnixStream::pair().unwrap();
    let control = Control::new(ours.into());
    let background = Thread::new(Frames::default()).unwrap();
    let (_, answer) = control.request("bye", &Bye { keep: true }, &[]).unwrap();
    assert!(broker.read(&mut [0; 512]).unwrap() > 0); // else its end is a reset
    broker.write_all(b"\x40\0\0\0\0\0\0\0{\"id\":1,").unwrap();
    drop(broker);
    assert_eq!(background.pump_for(&control, &answer).unwrap_err().code(), Code::BrokerLost);
}
