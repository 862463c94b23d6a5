//! Async tasks that wait: for messages, and for room.
#![cfg(feature = "tokio")]

mod kit;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use baton::{Code, QueueOptions, Session, Start, TopicOptions};
use tokio::runtime::{Builder, Runtime};

const LONG: Duration = Duration::from_secs(90);

/// One thread for all tasks: a wait that blocks it would hang the test.
fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn tensor(s: &Session, k: i64) -> baton::Tensor {
    s.from_slice(&[1], &[k]).unwrap().freeze()
}

fn number(m: &baton::Message) -> i64 {
    m.tensor().unwrap().to_vec::<i64>().unwrap()[0]
}

#[test]
fn many_readers_wait_on_one_thread() {
    let Some(broker) = kit::Broker::start() else { return };
    let (ours, theirs) = (broker.session(), broker.session());
    one_thread().block_on(async {
        let mut all = tokio::task::JoinSet::new();
        for name in ["a", "b", "c"] {
            let mut there = ours.topic(&format!("there/{name}")).unwrap().reader(Start::All).unwrap();
            let back = ours.topic(&format!("back/{name}")).unwrap();
            let ours = ours.clone();
            all.spawn(async move {
                for k in 0..200 {
                    assert_eq!(number(&there.recv_async(LONG).await.unwrap()), k);
                    back.send(tensor(&ours, k)).unwrap();
                }
            });
        }
        // Each side sends only what the other has answered: a wake that is lost stops both.
        let other = std::thread::spawn(move || {
            let ends = ["a", "b", "c"].map(|name| {
                let back = theirs.topic(&format!("back/{name}")).unwrap().reader(Start::All).unwrap();
                (theirs.topic(&format!("there/{name}")).unwrap(), back)
            });
            let mut ends = Vec::from(ends);
            for k in 0..200 {
                for (there, _) in &ends {
                    there.send(tensor(&theirs, k)).unwrap();
                }
                for (_, back) in &mut ends {
                    assert_eq!(number(&back.recv(LONG).unwrap()), k);
                }
            }
        });
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
        other.join().unwrap();
    });
}

#[test]
fn tasks_that_share_a_queue_take_each_item_once() {
    let Some(broker) = kit::Broker::start() else { return };
    let (ours, theirs) = (broker.session(), broker.session());
    let queue = ours.queue_with("work", &QueueOptions::default().depth(2)).unwrap();
    let putter = std::thread::spawn(move || {
        let queue = theirs.queue("work").unwrap();
        (0..300).for_each(|k| queue.put(tensor(&theirs, k), LONG).unwrap());
        queue.end().unwrap();
    });
    let mut got: Vec<i64> = one_thread().block_on(async {
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let queue = queue.clone();
            all.spawn(async move {
                let mut mine = Vec::new();
                loop {
                    match queue.get_async(LONG).await {
                        Ok(m) => mine.push(number(&m)),
                        Err(e) => return (e.code(), mine),
                    }
                }
            });
        }
        let mut got = Vec::new();
        while let Some(done) = all.join_next().await {
            let (code, mine) = done.unwrap();
            assert_eq!(code, Code::Closed);
            got.extend(mine);
        }
        got
    });
    got.sort_unstable();
    assert_eq!(got, (0..300).collect::<Vec<_>>());
    putter.join().unwrap();
}

#[test]
fn waits_time_out_are_cancelled_and_end_with_the_session() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let topic = session.topic("t").unwrap();
    let (mut reader, mut watch) = (topic.reader(Start::New).unwrap(), session.watch("w").unwrap());
    let queue = session.queue("q").unwrap();
    one_thread().block_on(async {
        let brief = Duration::from_millis(10);
        assert_eq!(reader.recv_async(brief).await.unwrap_err().code(), Code::Timeout);
        assert_eq!(watch.next_async(brief).await.unwrap_err().code(), Code::Timeout);
        assert_eq!(queue.get_async(brief).await.unwrap_err().code(), Code::Empty);
        // A wait that was given up has taken nothing.
        assert!(tokio::time::timeout(brief, reader.recv_async(None)).await.is_err());
        topic.send(tensor(&session, 7)).unwrap();
        assert_eq!(number(&reader.recv_async(None).await.unwrap()), 7);
        session.set("w", tensor(&session, 8)).unwrap();
        let bundle = watch.next_async(None).await.unwrap();
        assert_eq!(bundle.first().unwrap().to_vec::<i64>().unwrap(), [8]);
        let waits = tokio::spawn(async move { reader.recv_async(None).await.unwrap_err().code() });
        tokio::task::yield_now().await;
        session.end();
        assert_eq!(waits.await.unwrap(), Code::Closed);
        assert_eq!(queue.get_async(None).await.unwrap_err().code(), Code::Closed);
    });
}

#[test]
fn tasks_and_threads_put_side_by_side_into_a_queue_that_is_full() {
    let Some(broker) = kit::Broker::start() else { return };
    let (ours, theirs) = (broker.session(), broker.session());
    let queue = ours.queue_with("work", &QueueOptions::default().depth(2)).unwrap();
    let taker = std::thread::spawn(move || {
        let queue = theirs.queue("work").unwrap();
        (0..600).map(|_| number(&queue.get(LONG).unwrap())).collect::<Vec<_>>()
    });
    let putter = std::thread::spawn({
        let (queue, ours) = (queue.clone(), ours.clone());
        move || (0..200).for_each(|k| queue.put(tensor(&ours, k), LONG).unwrap())
    });
    one_thread().block_on(async {
        let mut all = tokio::task::JoinSet::new();
        for from in [200, 400] {
            let (queue, ours) = (queue.clone(), ours.clone());
            all.spawn(async move {
                for k in from..from + 200 {
                    queue.put_async(tensor(&ours, k), LONG).await.unwrap();
                }
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
    });
    putter.join().unwrap();
    let got = taker.join().unwrap();
    for from in [0, 200, 400] {
        let of_one: Vec<_> = got.iter().copied().filter(|k| (from..from + 200).contains(k)).collect();
        assert_eq!(of_one, (from..from + 200).collect::<Vec<_>>(), "once each, in order");
    }
}

#[test]
fn a_send_that_waits_for_room_is_cancelled_whole() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let end = Duration::ZERO; // with their last user
    let queue = session.queue_with("q", &QueueOptions::default().depth(1).linger(end)).unwrap();
    let lossless = TopicOptions::default().overwrite(false).depth(1).linger(end);
    let topic = session.topic_with("t", &lossless).unwrap();
    let mut reader = topic.reader(Start::New).unwrap();
    one_thread().block_on(async {
        let brief = Duration::from_millis(10);
        queue.put_async(tensor(&session, 1), None).await.unwrap();
        topic.send_async(tensor(&session, 1), None).await.unwrap();
        assert_eq!(queue.put_async(tensor(&session, 2), brief).await.unwrap_err().code(), Code::Full);
        assert_eq!(topic.send_async(tensor(&session, 2), brief).await.unwrap_err().code(), Code::Full);
        let kept = tensor(&session, 3);
        assert!(tokio::time::timeout(brief, queue.put_async(&kept, None)).await.is_err());
        assert!(tokio::time::timeout(brief, topic.send_async(&kept, None)).await.is_err());
        assert_eq!(kept.to_vec::<i64>().unwrap(), [3]);
        let put = tokio::spawn({
            let (queue, topic) = (queue.clone(), topic.clone());
            async move {
                queue.put_async(&kept, None).await.unwrap();
                topic.send_async(&kept, None).await.unwrap();
            }
        });
        for k in [1, 3] {
            assert_eq!(number(&queue.get_async(LONG).await.unwrap()), k);
        }
        for k in [1, 3] {
            assert_eq!(number(&reader.recv_async(LONG).await.unwrap()), k);
        }
        put.await.unwrap();
        assert_eq!(queue.get_async(brief).await.unwrap_err().code(), Code::Empty);
    });
    drop((queue, topic, reader));
    session.collect();
    broker.nothing_is_held();
}

#[test]
fn waits_for_room_end_with_the_queue_and_the_session() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let depth = QueueOptions::default().depth(1);
    let [a, b] = ["a", "b"].map(|name| session.queue_with(name, &depth).unwrap());
    one_thread().block_on(async {
        let waits = [&a, &b].map(|queue| {
            queue.put(tensor(&session, 1), LONG).unwrap();
            let (queue, x) = (queue.clone(), tensor(&session, 2));
            tokio::spawn(async move { queue.put_async(x, None).await.unwrap_err().code() })
        });
        tokio::task::yield_now().await;
        assert!(waits.iter().all(|w| !w.is_finished()));
        let [of_a, of_b] = waits;
        a.end().unwrap();
        assert_eq!(of_a.await.unwrap(), Code::Closed);
        session.end();
        assert_eq!(of_b.await.unwrap(), Code::Closed);
    });
}

#[test]
fn a_task_waits_on_while_the_broker_stands_still() {
    let Some(broker) = kit::Broker::start() else { return };
    let (ours, theirs) = (broker.session(), broker.session());
    one_thread().block_on(async {
        let mut reader = ours.topic("t").unwrap().reader(Start::New).unwrap();
        theirs.topic("t").unwrap().send(tensor(&theirs, 7)).unwrap();
        broker.pause(); // which alone can tell the reader of the sender
        let brief = Duration::from_millis(1);
        assert_eq!(reader.recv_async(brief).await.unwrap_err().code(), Code::Timeout);
        assert!(tokio::time::timeout(brief, reader.recv_async(None)).await.is_err(), "it waits on");
        broker.go_on();
        assert_eq!(number(&reader.recv_async(LONG).await.unwrap()), 7);
    });
}

/// Lets the other tasks come as far as they can.
async fn turns() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Calls that a session has room for, of one function.
const ROOM: i64 = 64;

/// A function that holds its calls until its gate is open.
fn holds(provider: &Session, name: &str) -> (baton::Provided, std::sync::Arc<std::sync::OnceLock<()>>) {
    let gate = std::sync::Arc::new(std::sync::OnceLock::new());
    let open = gate.clone();
    let provided = provider.provide(name).unwrap().concurrency(4).serve(move |args, call| {
        while open.get().is_none() && !call.wait_cancelled(Duration::from_millis(2))? {}
        args.get::<i64>(0)
    });
    (provided.unwrap(), gate)
}

#[test]
fn calls_wait_for_room_on_one_thread() {
    let Some(broker) = kit::Broker::start() else { return };
    let (provider, caller) = (broker.session(), broker.session());
    let (_provided, gate) = holds(&provider, "holds");
    one_thread().block_on(async {
        let f = caller.get_function("holds").unwrap();
        let call = |n: i64, f: baton::Function| tokio::spawn(async move { f.call_async::<i64>((n,)).await });
        let all: Vec<_> = (0..ROOM).map(|n| call(n, f.clone())).collect();
        turns().await;
        let waiting: Vec<_> = (ROOM..200).map(|n| call(n, f.clone())).collect();
        let cancelled = call(-1, f.clone());
        turns().await;
        cancelled.abort();
        assert!(cancelled.await.unwrap_err().is_cancelled());
        let late = call(-2, f.clone().timeout(Duration::from_millis(10))).await.unwrap();
        assert_eq!(kit::code(late), Code::Full);
        assert!(!all.iter().chain(&waiting).any(|c| c.is_finished()));
        gate.set(()).unwrap(); // the loop comes here
        for (n, c) in all.into_iter().chain(waiting).enumerate() {
            assert_eq!(c.await.unwrap().unwrap(), n as i64);
        }
    });
    let calls = caller.functions("holds").unwrap()[0].counted.calls;
    assert_eq!(calls, 200, "what was cancelled or late was not sent");
}

#[test]
fn calls_wait_for_a_provider_on_one_thread() {
    let Some(broker) = kit::Broker::start() else { return };
    let (provider, caller) = (broker.session(), broker.session());
    let provided = provider.function("comes", |args, _| args.get::<i64>(0)).unwrap();
    let f = caller.get_function("comes").unwrap();
    drop(provided);
    one_thread().block_on(async {
        assert_eq!(kit::code(f.call_async::<i64>((0,)).await), Code::NoProvider);
        let brief = f.clone().wait(Duration::from_millis(10));
        assert_eq!(kit::code(brief.call_async::<i64>((0,)).await), Code::NoProvider);
        let waits = f.wait(LONG);
        let late = waits.clone().timeout(Duration::from_millis(10));
        assert_eq!(kit::code(late.call_async::<i64>((0,)).await), Code::Timeout);
        let cancelled = tokio::spawn({
            let f = waits.clone();
            async move { f.call_async::<i64>((0,)).await }
        });
        let call = tokio::spawn(async move { waits.call_async::<i64>((1,)).await });
        turns().await;
        cancelled.abort();
        assert!(cancelled.await.is_err() && !call.is_finished());
        let _provided = provider.function("comes", |args, _| args.get::<i64>(0)).unwrap();
        assert_eq!(call.await.unwrap().unwrap(), 1);
    });
    assert_eq!(caller.functions("comes").unwrap()[0].counted.calls, 1);
}

#[test]
fn streams_wait_for_room_on_one_thread() {
    let Some(broker) = kit::Broker::start() else { return };
    let (provider, caller) = (broker.session(), broker.session());
    let provided = provider.provide("pairs").unwrap().concurrency(4).serve_parts(|args, _, parts| {
        let n = args.get::<i64>(0)?;
        parts.send(n)?;
        parts.send(-n)
    });
    let _provided = provided.unwrap();
    one_thread().block_on(async {
        let f = caller.get_function("pairs").unwrap();
        let mut all = tokio::task::JoinSet::new();
        for n in 0..3 * ROOM {
            let f = f.clone().ahead(1); // each waits for its reader, which is a task of this thread
            all.spawn(async move {
                let mut parts = f.stream_async::<i64>((n,)).await.unwrap();
                let mut taken = Vec::new();
                while let Some(part) = parts.next_async().await {
                    taken.push(part.unwrap());
                }
                assert_eq!(taken, [n, -n]);
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
    });
}

/// A waker that is the program's own, and panics.
struct Panics(Sender<()>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap();
        panic!("a waker of the program");
    }
}

#[test]
fn a_waker_that_panics_takes_no_wake_from_other_tasks() {
    let Some(broker) = kit::Broker::start() else { return };
    let (ours, theirs) = (broker.session(), broker.session());
    let (tell, told) = channel();
    let waker = Waker::from(Arc::new(Panics(tell)));
    let topics = ["bad", "good"].map(|name| (ours.topic(name).unwrap(), theirs.topic(name).unwrap()));
    let [mut bad, mut good] = topics.each_ref().map(|(t, _)| t.reader(Start::All).unwrap());
    one_thread().block_on(async {
        for k in 0..3 {
            // Both are told by the same ring, the one that panics first.
            let mut waits = pin!(bad.recv_async(None));
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let mut next = pin!(good.recv_async(None));
            assert!(poll_fn(|context| Poll::Ready(next.as_mut().poll(context).is_pending())).await);
            topics[1].1.send(tensor(&theirs, k)).unwrap();
            told.recv_timeout(LONG).unwrap();
            assert_eq!(number(&tokio::time::timeout(LONG, next).await.unwrap().unwrap()), k);
        }
    });
}
