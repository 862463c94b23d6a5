//! A tensor of a closed session keeps its bytes until the program drops it.

#![forbid(unsafe_code)]

mod kit;

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use baton::dlpack::ExportOptions;
use baton::{Code, Lease, Session, Start, Tensor, TopicOptions};
use kit::{Broker, check, numbers, until};

/// A topic that is over with its last user.
fn brief() -> TopicOptions {
    TopicOptions::default().linger(Duration::ZERO)
}

/// Waits for a new broker. A session would not tell: it may be what is left of a closed one, which waits too.
fn serves(b: &Broker) {
    until("the broker serves", || UnixStream::connect(b.dir.path().join("b.sock")).is_ok());
}

fn sessions(b: &Broker) -> usize {
    b.rust_sessions().len()
}

#[test]
fn a_slice_stays_when_another_thread_closes_the_session() {
    let Some(b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    let topic = theirs.topic_with("t", &brief()).unwrap();
    let mut reader = s.topic_with("t", &brief()).unwrap().reader(Start::New).unwrap();
    topic.send(numbers(&theirs, 5)).unwrap();
    let received = reader.recv(None).unwrap().into_tensor().unwrap();
    let opened = s.open(&numbers(&theirs, 6).handle(Lease::Once).unwrap()).unwrap();
    theirs.close();
    let mut x = s.alloc::<u64>(&[1 << 16]).unwrap();
    x.fill(7);
    let own = numbers(&s, 8);
    thread::scope(|both| {
        both.spawn(|| s.clone().close()).join().unwrap();
    });
    assert_eq!(s.alloc::<u8>(&[1]).unwrap_err().code(), Code::Closed);
    assert_eq!(reader.try_recv().unwrap_err().code(), Code::Closed);
    assert_eq!(own.handle(Lease::default()).unwrap_err().code(), Code::Closed);
    // Memory that is not held is the broker's by now.
    until("the lists are short", || sessions(&b) <= 1);
    let other = b.session();
    for i in 0..100 {
        drop(numbers(&other, i));
    }
    assert!(x.iter().all(|v| *v == 7));
    x.fill(9);
    assert!(x.iter().all(|v| *v == 9), "it is written on");
    check(&received, 5);
    check(&opened, 6);
    check(&own, 8);
    drop((x, received, opened, own, reader, topic, other));
    b.nothing_is_held();
    drop(s);
    until("all sessions are over", || sessions(&b) == 0);
}

/// The text of the error names what the program did: the sessions alone may have one number.
#[test]
fn a_tensor_of_a_closed_session_is_refused_by_the_next_one() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let (x, number) = (numbers(&s, 1), s.serial());
    let refused = |by: &Session| by.queue("q").unwrap().try_put(&x).unwrap_err();
    let other = b.session();
    let told = format!("the tensor belongs to another session: to {number}, and this is {}", other.serial());
    assert_eq!(refused(&other).message(), told);
    let remedy = refused(&other).remedy().to_owned();
    assert!(remedy.starts_with("send it in its own session, or open its handle in this one, or copy"), "{remedy}");
    let copied = other.from_dlpack(x.to_dlpack(ExportOptions::default()).unwrap()).unwrap();
    assert_eq!(
        (copied.to_vec::<u64>().unwrap(), copied.belongs_to(&other).unwrap()),
        (x.to_vec::<u64>().unwrap(), true)
    );
    s.close();
    let told = format!("the tensor belongs to a session that was closed: to {number}, and this is {}", other.serial());
    assert_eq!(refused(&other).message(), told);
    let next = b.session();
    assert_eq!(next.serial(), number);
    let told = format!(
        "the tensor belongs to a session that was closed before this one was opened, which has its number {number}"
    );
    assert!(refused(&next).to_string().starts_with(&format!("{told} (copy its elements into this session")));
    check(&x, 1);
    let copied = next.from_slice(x.shape(), &x.to_vec::<u64>().unwrap()).unwrap();
    assert!(next.queue("q").unwrap().try_put(copied.freeze()).unwrap());
    assert_eq!(refused(&next).code(), Code::InvalidArgument);
}

#[test]
fn a_session_that_holds_nothing_is_over_at_once() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    drop(numbers(&s, 1));
    s.topic_with("t", &brief()).unwrap().send(numbers(&s, 2)).unwrap();
    s.clone().close();
    until("it is over", || sessions(&b) == 0);
    assert!(s.is_ended());
    b.nothing_is_held();
}

#[test]
fn threads_drop_while_others_close() {
    let Some(b) = Broker::start() else { return };
    let over = AtomicBool::new(false);
    let (to, from) = std::sync::mpsc::channel::<(Tensor, u64)>();
    let from = std::sync::Mutex::new(from);
    thread::scope(|all| {
        for _ in 0..2 {
            all.spawn(|| {
                while let Ok((x, i)) = { from.lock().unwrap().recv() } {
                    check(&x, i);
                }
            });
        }
        let opens: Vec<_> = (0..2u64)
            .map(|k| {
                let (to, b, over) = (to.clone(), &b, &over);
                all.spawn(move || {
                    for i in 0..300 {
                        let s = b.session();
                        for j in 0..5 {
                            let first = k << 32 | i << 8 | j;
                            to.send((numbers(&s, first), first)).unwrap();
                        }
                        s.close();
                    }
                    over.store(true, Ordering::Relaxed);
                })
            })
            .collect();
        opens.into_iter().for_each(|t| t.join().unwrap());
        drop(to);
    });
    until("all sessions are over", || sessions(&b) == 0);
    b.nothing_is_held();
}

#[test]
fn tensors_of_a_closed_session_outlive_its_broker() {
    let Some(mut b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    let topic = theirs.topic_with("t", &brief()).unwrap();
    let mut reader = s.topic_with("t", &brief()).unwrap().reader(Start::New).unwrap();
    topic.send(numbers(&theirs, 5)).unwrap();
    let received = reader.recv(None).unwrap().into_tensor().unwrap();
    drop(topic);
    theirs.close();
    let own = numbers(&s, 8);
    s.clone().close();
    b.kill();
    b.restart();
    serves(&b);
    until("the session is back", || sessions(&b) >= 1);
    let other = b.session();
    for i in 0..1000 {
        drop(numbers(&other, i));
    }
    check(&received, 5);
    check(&own, 8);
    drop(other);
    drop((received, own));
    until("all sessions are over", || sessions(&b) == 0);
    b.nothing_is_held();
}

#[test]
fn a_session_that_is_closed_without_a_broker_is_closed_at_the_next_one() {
    let Some(mut b) = Broker::start() else { return };
    let s = b.session();
    let kept = numbers(&s, 3);
    s.topic_with("t", &brief()).unwrap().send(&kept).unwrap();
    b.kill();
    s.clone().close();
    b.restart();
    serves(&b);
    until("the topic has lost its writer", || {
        b.listed("topics").iter().all(|t| t["lanes"].as_array().is_none_or(Vec::is_empty)) && sessions(&b) == 1
    });
    check(&kept, 3);
    drop(kept);
    until("all sessions are over", || sessions(&b) == 0);
}

/// The word that it holds nothing came to no broker: it is said to the next one, though the program has its clones
/// yet.
#[test]
fn a_session_that_is_closed_while_its_broker_stands_still_is_over_at_the_next_one() {
    let Some(mut b) = Broker::start() else { return };
    let (s, _other) = (b.session(), b.session());
    drop(numbers(&s, 1));
    b.pause();
    s.clone().close();
    b.kill();
    b.restart();
    serves(&b);
    until("it is over", || sessions(&b) == 1);
    assert!(s.is_ended());
    b.nothing_is_held();
}

#[test]
fn an_iterator_tells_once_that_the_session_is_over_and_ends() {
    let Some(b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    let topic = theirs.topic_with("t", &brief()).unwrap();
    let reader = || s.topic_with("t", &brief()).unwrap().reader(Start::New).unwrap();
    let (mut readers, mut closed) = ([reader(), reader()], reader());
    topic.send(numbers(&theirs, 5)).unwrap();
    closed.closer().close();
    let told = |r: &mut baton::Reader| r.next().map(|m| m.map(drop).map_err(|e| e.code()));
    assert_eq!(told(&mut closed), Some(Err(Code::Closed)));
    assert!(told(&mut closed).is_none() && closed.recv(None).is_err());
    assert!(readers.iter_mut().all(|r| told(r) == Some(Ok(()))));
    let [ended, mut open] = readers;
    s.close();
    assert_eq!(ended.map(|m| m.unwrap_err().code()).collect::<Vec<_>>(), [Code::Closed]);
    assert_eq!((told(&mut open), told(&mut open)), (Some(Err(Code::Closed)), None));
}
