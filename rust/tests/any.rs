//! One wait for several readers, watches and queues.

mod kit;

use std::collections::HashSet;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use baton::{
    Code, Deadline, Message, Queue, QueueOptions, Reader, Result, Session, Start, TopicOptions, Waitable, wait_any,
};
use kit::{Broker, part_session, until};

const LONG: Duration = Duration::from_secs(90);

fn tensor(s: &Session, k: i64) -> baton::Tensor {
    s.from_slice(&[1], &[k]).unwrap().freeze()
}

fn number(m: &Message) -> i64 {
    m.tensor().unwrap().to_vec::<i64>().unwrap()[0]
}

/// Those that are ready, of which there are some in the end.
fn ready(objects: &mut [&mut dyn Waitable]) -> Vec<usize> {
    let ready = wait_any(objects, LONG).unwrap();
    assert!(!ready.is_empty(), "nothing came");
    ready
}

/// What a thread waits for, when another has done something once it slept.
fn while_asleep<T: Send>(wait: impl FnOnce() -> T + Send, then: impl FnOnce()) -> T {
    let tid = AtomicI32::new(0);
    thread::scope(|all| {
        let waits = all.spawn(|| {
            tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
            wait()
        });
        until("the thread sleeps", || {
            let stat = format!("/proc/self/task/{}/stat", tid.load(Ordering::SeqCst));
            let stat = std::fs::read_to_string(stat).unwrap_or_default();
            waits.is_finished() || stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
        });
        then();
        waits.join().unwrap()
    })
}

#[test]
fn all_that_are_ready_are_named_until_they_are_taken() {
    let Some(b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    let (topic, mut queue) = (s.topic("t").unwrap(), s.queue("q").unwrap());
    let (mut reader, mut watch) = (topic.reader(Start::New).unwrap(), s.watch("w").unwrap());
    let mut all = |timeout: Duration, of: &mut Reader, queue: &mut Queue| {
        let mut same = queue.clone();
        wait_any(&mut [of, queue, &mut watch, &mut same], timeout).unwrap()
    };
    assert!(all(Duration::ZERO, &mut reader, &mut queue).is_empty());
    assert!(all(Duration::from_millis(2), &mut reader, &mut queue).is_empty());
    theirs.topic("t").unwrap().send(tensor(&theirs, 1)).unwrap();
    theirs.queue("q").unwrap().put(tensor(&theirs, 2), LONG).unwrap();
    for _ in 0..3 {
        assert_eq!(all(LONG, &mut reader, &mut queue), [0, 1, 3]);
    }
    assert_eq!(number(&reader.try_recv().unwrap().unwrap()), 1);
    assert_eq!(all(LONG, &mut reader, &mut queue), [1, 3]);
    assert_eq!(number(&queue.try_get().unwrap().unwrap()), 2);
    assert!(all(Duration::ZERO, &mut reader, &mut queue).is_empty());
    theirs.set("w", tensor(&theirs, 3)).unwrap();
    assert_eq!(all(LONG, &mut reader, &mut queue), [2]);
    assert_eq!(watch.try_next().unwrap().unwrap().revision(), 1);
    assert_eq!(wait_any(&mut [], None).unwrap_err().code(), Code::InvalidArgument);
}

/// What is looked at often is received in its order, and once.
#[test]
fn looks_change_nothing() {
    let Some(b) = Broker::start() else { return };
    let (s, senders) = (b.session(), [b.session(), b.session(), b.session()]);
    let lossless = TopicOptions::default().overwrite(false).depth(64);
    let mut reader = s.topic_with("t", &lossless).unwrap().reader(Start::New).unwrap();
    for k in 0..60 {
        let from = &senders[k as usize % 3];
        from.topic("t").unwrap().send(tensor(from, k)).unwrap();
    }
    for k in 0..60 {
        for _ in 0..30 {
            assert_eq!(wait_any(&mut [&mut reader], Duration::ZERO).unwrap(), [0]);
        }
        assert_eq!(number(&reader.try_recv().unwrap().unwrap()), k);
    }
    assert!(wait_any(&mut [&mut reader], Duration::ZERO).unwrap().is_empty());
}

/// Sessions answer each other: a wake that is lost stops both for a second, and many all of it.
fn answers(b: &Broker, ours: [&Session; 2], rounds: i64) {
    let (theirs, all_of_it) = (b.session(), Deadline::after(LONG));
    let mut there = ours[0].topic("there").unwrap().reader(Start::New).unwrap();
    let mut work = ours[1].queue("work").unwrap();
    let back = ours[0].topic("back").unwrap();
    let mut answers = theirs.topic("back").unwrap().reader(Start::New).unwrap();
    thread::scope(|all| {
        all.spawn(|| {
            let (mut n, mut seen) = (0, [0; 2]);
            while n < rounds {
                for i in ready(&mut [&mut there, &mut work]) {
                    let got = if i == 0 { there.try_recv() } else { work.try_get() };
                    let m = got.unwrap().expect("there is no other taker");
                    assert_eq!(number(&m), n);
                    back.send(tensor(ours[0], n)).unwrap();
                    (n, seen[i]) = (n + 1, seen[i] + 1);
                }
            }
            assert_eq!(seen, [rounds / 2; 2]);
        });
        let (topic, queue) = (theirs.topic("there").unwrap(), theirs.queue("work").unwrap());
        for n in 0..rounds {
            match n % 2 {
                0 => topic.send(tensor(&theirs, n)).unwrap(),
                _ => queue.put(tensor(&theirs, n), LONG).unwrap(),
            }
            assert_eq!(number(&answers.recv(all_of_it.left()).unwrap()), n);
        }
    });
}

#[test]
fn whichever_comes_first_ends_the_wait() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    answers(&b, [&s, &s], 1000);
}

#[test]
fn objects_of_several_sessions_are_waited_for_at_once() {
    let Some(b) = Broker::start() else { return };
    let (s, t) = (b.session(), b.session());
    answers(&b, [&s, &t], 1000);
}

#[test]
fn objects_of_two_brokers_are_waited_for_at_once() {
    let (Some(b), Some(other)) = (Broker::start(), Broker::start()) else { return };
    let (s, t) = (b.session(), other.session());
    let (mut a, mut c) =
        (s.topic("t").unwrap().reader(Start::New).unwrap(), t.topic("t").unwrap().reader(Start::New).unwrap());
    for (from, at) in [(b.session(), 0), (other.session(), 1)] {
        let sends = || from.topic("t").unwrap().send(tensor(&from, 1)).unwrap();
        assert_eq!(while_asleep(|| ready(&mut [&mut a, &mut c]), sends), [at]);
        let got = if at == 0 { a.try_recv() } else { c.try_recv() };
        assert!(got.unwrap().is_some());
    }
}

/// A thread that only waits leaves the items to the takers, and their wakes: without theirs they look once a second.
#[test]
fn a_wait_takes_no_wake_of_a_taker() {
    let Some(b) = Broker::start() else { return };
    let (s, taker, theirs) = (b.session(), b.session(), b.session());
    let queue = theirs.queue_with("q", &QueueOptions::default().depth(1)).unwrap();
    let (stop, all_of_it) = (s.topic("stop").unwrap(), Deadline::after(LONG));
    let mut stopped = stop.reader(Start::New).unwrap();
    thread::scope(|all| {
        // It is woken by each item, and takes none.
        all.spawn(|| {
            let mut q = s.queue("q").unwrap();
            while !ready(&mut [&mut stopped, &mut q]).contains(&0) {
                thread::yield_now();
            }
        });
        let takes = all.spawn(|| {
            let q = taker.queue("q").unwrap();
            (0..500).for_each(|k| assert_eq!(number(&q.get(all_of_it.left()).unwrap()), k));
        });
        (0..500).for_each(|k| queue.put(tensor(&theirs, k), all_of_it.left()).unwrap());
        takes.join().unwrap();
        stop.send(tensor(&s, 0)).unwrap();
    });
}

#[test]
fn waiting_threads_share_a_queue() {
    let Some(b) = Broker::start() else { return };
    let theirs = b.session();
    let queue = theirs.queue_with("q", &QueueOptions::default().depth(4)).unwrap();
    let takes = |s: Session| {
        let (mut q, mut other) = (s.queue("q").unwrap(), s.queue("other").unwrap());
        let mut mine = Vec::new();
        loop {
            assert_eq!(ready(&mut [&mut other, &mut q]), [1]);
            match q.try_get() {
                Ok(Some(m)) => mine.push(number(&m)),
                Ok(None) => {}
                Err(e) => return (e.code(), mine),
            }
        }
    };
    thread::scope(|all| {
        let takers = [(); 3].map(|()| {
            let s = b.session();
            all.spawn(move || takes(s))
        });
        (0..600).for_each(|k| queue.put(tensor(&theirs, k), LONG).unwrap());
        queue.end().unwrap();
        let mut taken = HashSet::new();
        for t in takers {
            let (code, mine) = t.join().unwrap();
            assert_eq!(code, Code::Closed);
            mine.into_iter().for_each(|k| assert!(taken.insert(k), "{k} was taken twice"));
        }
        assert_eq!(taken.len(), 600);
    });
}

#[test]
fn each_end_ends_the_wait() {
    let Some(b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    type End<'a> = (&'a str, Box<dyn Fn() + 'a>);
    for at in 0..4 {
        let t = b.session();
        let topic = s.topic(&format!("t{at}")).unwrap();
        let mut reader = topic.reader(Start::New).unwrap();
        let mut queue = s.queue(&format!("q{at}")).unwrap();
        let mut far = t.topic("far").unwrap().reader(Start::New).unwrap();
        let closer = reader.closer();
        let ends: [End<'_>; 4] = [
            ("its closer", Box::new(|| closer.close())),
            ("the topic's end", Box::new(|| theirs.topic(&format!("t{at}")).unwrap().end().unwrap())),
            ("the queue's end", Box::new(|| theirs.queue(&format!("q{at}")).unwrap().end().unwrap())),
            ("its session's end", Box::new(|| t.end())),
        ];
        let which = [0, 0, 1, 2][at];
        let ended = while_asleep(|| ready(&mut [&mut reader, &mut queue, &mut far]), &ends[at].1);
        assert_eq!(ended, [which], "{}", ends[at].0);
        let error = match which {
            0 => reader.try_recv().unwrap_err(),
            1 => queue.try_get().unwrap_err(),
            _ => far.try_recv().unwrap_err(),
        };
        assert_eq!(error.code(), Code::Closed, "{}", ends[at].0);
    }
}

/// Takes an item of a queue, and holds it until it is killed.
#[test]
#[ignore = "a process of another test"]
fn holder() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let item = s.queue("q")?.get(LONG)?;
    s.topic("held")?.send(tensor(&s, 1))?;
    std::io::stdin().lines().for_each(drop);
    drop(item);
    Ok(())
}

struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_item_whose_taker_was_killed_ends_the_wait() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let mut queue = s.queue_with("q", &QueueOptions::default().redeliver(true)).unwrap();
    let mut held = s.topic("held").unwrap().reader(Start::New).unwrap();
    let mut never = s.topic("never").unwrap().reader(Start::New).unwrap();
    let mut part = b.part("holder");
    let mut part = Part(part.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    queue.put(tensor(&s, 7), LONG).unwrap();
    // The item is ready until the other process takes it, and tells so.
    while !ready(&mut [&mut held, &mut queue]).contains(&0) {
        thread::yield_now();
    }
    assert!(held.try_recv().unwrap().is_some());
    assert!(wait_any(&mut [&mut never, &mut queue], Duration::ZERO).unwrap().is_empty());
    assert_eq!(while_asleep(|| ready(&mut [&mut never, &mut queue]), || part.0.kill().unwrap()), [1]);
    assert_eq!(number(&queue.try_get().unwrap().unwrap()), 7);
}

#[test]
fn a_wait_goes_on_with_the_next_broker() {
    let Some(mut b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    let mut reader = s.topic("t").unwrap().reader(Start::New).unwrap();
    let mut queue = s.queue("q").unwrap();
    let sender = theirs.topic("t").unwrap();
    let broker = &mut b;
    let restarts = move || {
        broker.kill();
        broker.restart();
        let late = broker.session(); // a sender of which the previous broker knew nothing
        late.topic("t").unwrap().send(tensor(&late, 2)).unwrap();
    };
    assert_eq!(while_asleep(|| ready(&mut [&mut queue, &mut reader]), restarts), [1]);
    assert_eq!(number(&reader.try_recv().unwrap().unwrap()), 2);
    sender.send(tensor(&theirs, 3)).unwrap();
    assert_eq!(ready(&mut [&mut queue, &mut reader]), [1]);
    assert_eq!(number(&reader.try_recv().unwrap().unwrap()), 3);
}

/// While the broker is away, a queue of which the session knows nothing yet does not delay the others.
#[test]
fn a_queue_that_needs_the_broker_does_not_hold_up_the_others() {
    let Some(mut b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    let mut reader = s.topic("t").unwrap().reader(Start::New).unwrap();
    let mut queue = s.queue("q").unwrap();
    let sender = theirs.topic("t").unwrap();
    let x = tensor(&theirs, 1);
    sender.send(&x).unwrap();
    assert_eq!(number(&reader.recv(LONG).unwrap()), 1);
    b.kill();
    let all_of_it = Deadline::after(LONG); // each of the waits would be a second late
    for _ in 0..200 {
        sender.send(&x).unwrap();
        assert_eq!(wait_any(&mut [&mut queue, &mut reader], all_of_it.left()).unwrap(), [1]);
        assert_eq!(number(&reader.try_recv().unwrap().unwrap()), 1);
    }
    assert!(wait_any(&mut [&mut queue, &mut reader], Duration::ZERO).unwrap().is_empty());
    let broker = &mut b;
    let restarts = move || {
        broker.restart();
        let late = broker.session();
        late.queue("q").unwrap().put(tensor(&late, 5), LONG).unwrap();
    };
    assert_eq!(while_asleep(|| ready(&mut [&mut queue, &mut reader]), restarts), [0]);
    assert_eq!(number(&queue.get(LONG).unwrap()), 5);
}

/// A poll loop that looks by `wait_any` is rung for what comes after the look.
#[test]
fn a_look_of_a_poll_loop_announces_it() {
    use rustix::event::{PollFd, PollFlags, poll};
    let Some(b) = Broker::start() else { return };
    let (s, theirs) = (b.session(), b.session());
    let (mut reader, mut queue) = (s.topic("t").unwrap().reader(Start::New).unwrap(), s.queue("q").unwrap());
    let other = thread::spawn(move || {
        let mut acks = theirs.topic("ack").unwrap().reader(Start::All).unwrap();
        let (topic, queue) = (theirs.topic("t").unwrap(), theirs.queue("q").unwrap());
        for k in 0..200 {
            match k % 2 {
                0 => topic.send(tensor(&theirs, k)).unwrap(),
                _ => queue.put(tensor(&theirs, k), LONG).unwrap(),
            }
            assert_eq!(number(&acks.recv(LONG).unwrap()), k);
        }
    });
    let acks = s.topic("ack").unwrap();
    let mut k = 0;
    while k < 200 {
        poll(&mut [PollFd::new(&s.poll_fd().unwrap(), PollFlags::IN)], None).unwrap();
        s.clear_poll_fd();
        for i in wait_any(&mut [&mut reader, &mut queue], Duration::ZERO).unwrap() {
            let m = if i == 0 { reader.try_recv() } else { queue.try_get() };
            assert_eq!(number(&m.unwrap().unwrap()), k);
            acks.send(tensor(&s, k)).unwrap();
            k += 1;
        }
    }
    other.join().unwrap();
}

#[test]
fn a_wait_sleeps() {
    let Some(b) = Broker::start() else { return };
    let (s, t) = (b.session(), b.session());
    let (mut reader, mut queue) = (s.topic("t").unwrap().reader(Start::New).unwrap(), t.queue("q").unwrap());
    assert!(wait_any(&mut [&mut reader, &mut queue], Duration::ZERO).unwrap().is_empty());
    let sleeps = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let n = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        n.trim().parse::<u32>().unwrap()
    };
    let before = sleeps();
    assert!(wait_any(&mut [&mut reader, &mut queue], Duration::from_millis(1500)).unwrap().is_empty());
    // It looks again once a second. One that does not sleep changes with no other thread of its own will.
    assert!((2..20).contains(&(sleeps() - before)), "{} sleeps", sleeps() - before);
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_select() {
    let Some(b) = Broker::start() else { return };
    let (ours, theirs) = (b.session(), b.session());
    let mut there = ours.topic("there").unwrap().reader(Start::New).unwrap();
    let (work, back) = (ours.queue("work").unwrap(), ours.topic("back").unwrap());
    let mut answers = theirs.topic("back").unwrap().reader(Start::New).unwrap();
    let other = thread::spawn(move || {
        let (topic, queue) = (theirs.topic("there").unwrap(), theirs.queue("work").unwrap());
        for n in 0..300 {
            match n % 2 {
                0 => topic.send(tensor(&theirs, n)).unwrap(),
                _ => queue.put(tensor(&theirs, n), LONG).unwrap(),
            }
            assert_eq!(number(&answers.recv(LONG).unwrap()), n);
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for n in 0..300 {
            // Whichever is cancelled has taken nothing.
            let (a, b) = (there.recv_async(LONG), work.get_async(LONG));
            let (a, b) = (std::pin::pin!(a), std::pin::pin!(b));
            let m = first(a, b).await;
            assert_eq!(number(&m.unwrap()), n);
            back.send(tensor(&ours, n)).unwrap();
        }
    });
    other.join().unwrap();
}

/// As `tokio::select!`, which needs its macros.
#[cfg(feature = "tokio")]
async fn first<T>(
    mut a: std::pin::Pin<&mut impl Future<Output = T>>,
    mut b: std::pin::Pin<&mut impl Future<Output = T>>,
) -> T {
    use std::task::Poll;
    std::future::poll_fn(|cx| match a.as_mut().poll(cx) {
        Poll::Pending => b.as_mut().poll(cx),
        ready => ready,
    })
    .await
}
