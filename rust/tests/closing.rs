//! A session that is closed while other threads use it: what they were told is done is done, and the
//! others are told that it is closed.

mod kit;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use baton::{Code, Lease, Payload, QueueOptions, Result, Session, Start, TopicOptions};
use kit::{Broker, until};

const SOON: Duration = Duration::from_secs(90);
const CLIENTS: i64 = 150;

/// Puts numbers until the session is closed; those of which it was told that they are put.
fn puts(s: &Session, first: i64, done: &AtomicUsize) -> Vec<i64> {
    let queue = s.queue("work").unwrap();
    let mut put = Vec::new();
    for i in first.. {
        let sent = s.from_slice(&[1], &[i]).and_then(|x| queue.put(x.freeze(), SOON));
        match sent {
            Ok(()) => put.push(i),
            Err(e) if e.code() == Code::Closed => break,
            Err(e) => panic!("{e}"),
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    put
}

/// Takes numbers until the queue or the session is closed.
fn takes(s: &Session, done: &AtomicUsize) -> Vec<i64> {
    let queue = s.queue("work").unwrap();
    let mut taken = Vec::new();
    loop {
        match queue.get(SOON) {
            Ok(m) => taken.extend(m.into_tensor().unwrap().to_vec::<i64>().unwrap()),
            Err(e) if e.code() == Code::Closed => return taken,
            Err(e) => panic!("{e}"),
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn what_was_put_before_a_close_is_taken() {
    let Some(b) = Broker::start() else { return };
    let staying = b.session();
    let queue = staying.queue_with("work", &QueueOptions::default().depth(4)).unwrap();
    thread::scope(|all| {
        let taker = all.spawn(|| takes(&staying, &AtomicUsize::new(0)));
        let mut put = Vec::new();
        for client in 0..CLIENTS {
            let (s, done) = (b.session(), AtomicUsize::new(0));
            put.extend(close_beside(&s, &done, || puts(&s, client << 32, &done)));
        }
        queue.end().unwrap();
        check(&put, taker.join().unwrap());
    });
}

#[test]
fn a_reader_and_a_watch_are_closed_by_another_thread() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &TopicOptions::default().overwrite(false)).unwrap();
    for round in 0..200 {
        let (mut reader, mut watch) = (topic.reader(Start::New).unwrap(), s.watch("w").unwrap());
        let closers = [reader.closer(), watch.closer()];
        let (received, watched) = thread::scope(|all| {
            let receives = all.spawn(|| (0..).map(|_| reader.recv(None).map(drop)).find(Result::is_err));
            let watches = all.spawn(|| watch.next(None).map(drop));
            for _ in 0..round % 4 {
                topic.send(Payload::default()).unwrap();
            }
            closers.iter().for_each(baton::Closer::close);
            (receives.join().unwrap(), watches.join().unwrap())
        });
        for (end, what) in [(received.unwrap(), "the reader was closed"), (watched, "the watch was closed")] {
            let e = end.unwrap_err();
            assert_eq!((e.code(), e.message()), (Code::Closed, what));
            assert!(!e.is_end(), "the topic is open");
        }
        assert_eq!(reader.try_recv().unwrap_err().code(), Code::Closed);
    }
}

#[test]
fn a_session_that_is_dropped_is_over() {
    let Some(b) = Broker::start() else { return };
    let brief = TopicOptions::default().linger(Duration::ZERO);
    for _ in 0..300 {
        let s = b.session();
        let topic = s.topic_with("t", &brief).unwrap();
        let mut reader = topic.reader(Start::New).unwrap();
        topic.send(s.from_slice(&[1], &[1u8]).unwrap().freeze()).unwrap();
        // The broker has yet to answer the leaving of each when the last reference goes.
        let m = reader.recv(SOON).unwrap();
        drop((s.topic("t/2").unwrap(), topic, reader, m, s));
    }
    let ours = || b.rust_sessions().len();
    until("all sessions are over", || ours() == 0);
    b.nothing_is_held();
}

#[test]
fn what_was_sent_before_a_topic_was_closed_is_received_or_counted() {
    let Some(b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    for round in 0..200 {
        let o = TopicOptions::default().depth(64).overwrite(round % 2 == 0).linger(Duration::ZERO);
        let name = format!("t/{round}");
        let topic = theirs.topic_with(&name, &o).unwrap();
        let mut reader = topic.reader(Start::New).unwrap();
        let (s, o, name) = (&s, &o, &name);
        let sends = || {
            let topic = s.topic_with(name, o).unwrap();
            let mut sent = 0u64;
            loop {
                match topic.send_timeout(Payload::default(), SOON) {
                    Ok(()) => sent += 1,
                    Err(e) if e.code() == Code::Closed => return sent,
                    Err(e) => panic!("{e}"),
                }
            }
        };
        let (sent, seen) = thread::scope(|all| {
            let senders = [all.spawn(sends), all.spawn(sends)];
            let mut seen = 0;
            let closed = loop {
                match reader.recv(SOON) {
                    Ok(m) => {
                        if seen == 0 {
                            let topic = topic.clone();
                            all.spawn(move || topic.end().unwrap());
                        }
                        seen += 1 + m.lost();
                    }
                    Err(e) => break e,
                }
            };
            assert_eq!(closed.code(), Code::Closed, "{closed}");
            seen += reader.lost();
            (senders.map(|t| t.join().unwrap()).iter().sum::<u64>(), seen)
        });
        assert!(sent <= seen, "round {round}: {sent} were sent, {seen} received or counted as lost");
    }
}

#[test]
fn what_a_closed_session_had_taken_and_not_released_goes_to_another() {
    let Some(b) = Broker::start() else { return };
    let staying = b.session();
    let queue = staying.queue_with("work", &QueueOptions::default().depth(4).redeliver(true)).unwrap();
    let over = AtomicUsize::new(0);
    thread::scope(|all| {
        let putter = all.spawn(|| {
            let mut put = Vec::new();
            while over.load(Ordering::Relaxed) == 0 {
                let i = put.len() as i64;
                queue.put(staying.from_slice(&[1], &[i]).unwrap().freeze(), SOON).unwrap();
                put.push(i);
            }
            put
        });
        let mut taken = Vec::new();
        for _ in 0..CLIENTS {
            let (s, done) = (b.session(), AtomicUsize::new(0));
            taken.extend(close_beside(&s, &done, || takes(&s, &done)));
        }
        let rest = all.spawn(|| takes(&staying, &AtomicUsize::new(0)));
        over.store(1, Ordering::Relaxed);
        let put = putter.join().unwrap();
        queue.end().unwrap();
        taken.extend(rest.join().unwrap());
        check(&put, taken);
    });
}

/// Closes a session when something has been done by what runs beside, whose result it returns.
fn close_beside<R: Send>(s: &Session, done: &AtomicUsize, work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|both| {
        let worker = both.spawn(work);
        until("something is done", || done.load(Ordering::Relaxed) >= 5);
        s.clone().close();
        worker.join().unwrap()
    })
}

fn check(put: &[i64], taken: Vec<i64>) {
    let taken: HashSet<i64> = taken.into_iter().collect();
    let lost: Vec<_> = put.iter().filter(|i| !taken.contains(i)).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), put.len());
    assert!(!taken.is_empty());
}

/// What threads do with a session over and over, until an error says that it is closed.
const WORK: [fn(&Session, &Session) -> Result<()>; 8] = [
    |s, _| {
        let mut x = s.alloc::<u64>(&[100_000])?;
        x[99_999] = 1;
        Ok(())
    },
    |s, _| s.topic("t")?.send(Payload::named([("x", s.zeros::<u8>(&[9])?.freeze())]).meta(&vec![1; 2000])?),
    |s, _| {
        let mut reader = s.topic("t")?.reader(Start::All)?;
        while let Some(m) = reader.try_recv()? {
            m.bundle()?;
        }
        Ok(())
    },
    |s, _| s.queue("q")?.put(s.zeros::<u8>(&[9])?.freeze(), SOON),
    |s, _| s.queue("q")?.get(SOON)?.into_tensor().map(drop),
    |s, _| {
        s.set("name", s.zeros::<u8>(&[9])?.freeze())?;
        s.get("name", Duration::ZERO).map(drop)
    },
    |s, other| {
        let (mine, x) = (s.zeros::<u8>(&[9])?.freeze(), other.zeros::<u8>(&[9])?.freeze());
        s.open(&mine.handle(Lease::default())?)?;
        let y = s.open(&x.handle(Lease::default())?)?;
        y.to_vec::<u8>()?;
        Ok(())
    },
    |s, _| {
        s.stats();
        s.collect();
        s.names("*").map(drop)
    },
];

#[test]
fn a_session_is_closed_in_the_midst_of_everything() {
    let Some(b) = Broker::start() else { return };
    let other = b.session();
    let _queue = other.queue("q").unwrap();
    for round in 0..30 {
        let (s, done) = (b.session(), AtomicUsize::new(0));
        thread::scope(|all| {
            let threads: Vec<_> = WORK
                .iter()
                .map(|work| {
                    let (s, other, done) = (&s, &other, &done);
                    all.spawn(move || {
                        loop {
                            match work(s, other) {
                                Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                                Err(e) => return e,
                            };
                        }
                    })
                })
                .collect();
            until("something is done", || done.load(Ordering::Relaxed) >= 7 * round);
            s.clone().close();
            for (i, t) in threads.into_iter().enumerate() {
                let e = t.join().unwrap();
                assert_eq!(e.code(), Code::Closed, "work {i}: {e}");
            }
        });
        for (i, work) in WORK.iter().enumerate() {
            assert_eq!(work(&s, &other).unwrap_err().code(), Code::Closed, "work {i}");
        }
    }
}

#[test]
fn a_closed_session_opens_no_handle() {
    let Some(b) = Broker::start() else { return };
    let (s, other) = (b.session(), b.session());
    let h = other.zeros::<u8>(&[9]).unwrap().freeze().handle(Lease::default()).unwrap();
    let mut gone = h.clone();
    gone.generation += 2;
    drop(s.open(&h).unwrap()); // its memory stays mapped
    assert_eq!(s.open(&gone).unwrap_err().code(), Code::Expired);
    s.clone().close();
    for h in [h, gone] {
        assert_eq!(s.open(&h).unwrap_err().code(), Code::Closed);
    }
}

/// Whatever a thread is about when another one closes the session: a request that is made, is under way or is being
/// answered is ended by that, and says so.
#[test]
fn whatever_is_under_way_when_a_session_is_closed_says_that_it_is() {
    let Some(b) = Broker::start() else { return };
    for i in 0..CLIENTS * 4 {
        let s = b.session();
        let theirs = s.queue_with("none", &QueueOptions::default().linger(Duration::ZERO)).unwrap();
        let begun = AtomicUsize::new(0);
        let found = thread::scope(|all| {
            let taker = all.spawn(|| {
                begun.store(1, Ordering::Relaxed);
                theirs.get(None).map(drop)
            });
            while begun.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
            // The taker joins meanwhile: it is stopped at another step each time.
            for _ in 0..i * 40 {
                std::hint::spin_loop();
            }
            s.close();
            taker.join().unwrap()
        });
        let e = found.expect_err("nothing was put");
        assert_eq!(e.code(), Code::Closed, "round {i}: {e}");
    }
}
