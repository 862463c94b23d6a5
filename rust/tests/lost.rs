//! A session that its broker has ended for good: every call of it fails, also those that wait, and what it has
//! mapped can still be read. Nothing ends a session but what a broker says or has noted.

mod kit;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use baton::{Code, Lease, Payload, QueueOptions, Result, Session, Start, Tensor, TopicOptions};
use kit::{Broker, code, until};

const SOON: Duration = Duration::from_secs(60);

/// Another broker at the same socket, which knows nothing of the previous one.
fn forget(broker: &mut Broker) {
    broker.kill();
    std::fs::remove_file(broker.dir.path().join("state.json")).unwrap();
    broker.restart();
}

fn numbers(s: &Session) -> Result<Tensor> {
    Ok(s.from_slice(&[3], &[1.5f32, 2.5, 3.5])?.freeze())
}

/// Calls that wait for another to come, each on a thread of its own, until the session is lost.
fn waiting(s: &Session) -> Result<Vec<(&'static str, JoinHandle<Code>)>> {
    let (tell, asleep) = channel();
    let mut all = Vec::new();
    let mut wait = |what, call: Box<dyn FnOnce() -> Code + Send>| {
        let tell = tell.clone();
        let thread = std::thread::spawn(move || {
            tell.send(()).unwrap();
            call()
        });
        all.push((what, thread));
    };
    let mut reader = s.topic("t")?.reader(Start::New)?;
    wait("recv", Box::new(move || code(reader.recv(None))));
    let mut iterated = s.topic("t")?.reader(Start::New)?;
    wait("a reader as an iterator", Box::new(move || code(iterated.next().unwrap())));
    let taken = s.queue("empty")?;
    wait("get", Box::new(move || code(taken.get(None))));
    let full = s.queue_with("full", &QueueOptions::default().depth(1))?;
    full.put(Payload::default(), None)?;
    wait("put", Box::new(move || code(full.put(Payload::default(), None))));
    let lossless = s.topic_with("lossless", &TopicOptions::default().overwrite(false).depth(1))?;
    let slow = lossless.reader(Start::New)?;
    lossless.send(Payload::default())?;
    let send = move || {
        let _slow = slow;
        code(lossless.send(Payload::default()))
    };
    wait("send", Box::new(send));
    let mut watch = s.watch("name")?;
    wait("watch", Box::new(move || code(watch.next(None))));
    let absent = s.clone();
    wait("get of a name", Box::new(move || code(absent.get("absent", SOON))));
    let alloc = s.clone();
    wait("allocation", Box::new(move || code(alloc.allocation(&[1 << 40]).timeout(None).of::<u8>())));
    all.iter().for_each(|_| asleep.recv().unwrap());
    Ok(all)
}

/// Everything of a session, each called once.
fn calls(s: &Session, x: &Tensor) -> Vec<(&'static str, Code)> {
    vec![
        ("topic", code(s.topic("new"))),
        ("queue", code(s.queue("new"))),
        ("set", code(s.set("name", x))),
        ("get", code(s.get("name", None))),
        ("watch", code(s.watch("name"))),
        ("names", code(s.names(""))),
        ("delete", code(s.delete("name"))),
        ("alloc", code(s.alloc::<f32>(&[3]))),
        ("alloc_at_hand", code(s.alloc_at_hand(<f32 as baton::Element>::DTYPE, &[3]))),
        ("handle", code(x.handle(Lease::default()))),
        ("poll_fd", code(s.poll_fd())),
    ]
}

fn everything_fails_and_tensors_stay(lose: fn(&mut Broker)) -> Result<()> {
    let Some(mut broker) = Broker::start_with(&["--memory", "64M"]) else { return Ok(()) };
    let (s, polled) = (broker.session(), broker.session());
    let (x, held) = (numbers(&s)?, s.from_slice(&[1 << 20], &vec![7u8; 1 << 20])?.freeze());
    let handle = x.handle(Lease::Session)?;
    let topic = s.topic("open")?;
    let mut reader = topic.reader(Start::New)?;
    topic.send(&held)?;
    let received = reader.recv(SOON)?.tensor()?;
    let (queue, mut watch) = (s.queue("q")?, s.watch("open")?);
    s.set("open", &x)?;
    let named = watch.next(SOON)?;
    polled.poll_fd()?;
    polled.clear_poll_fd();

    let waiting = waiting(&s)?;
    lose(&mut broker);
    for (what, thread) in waiting {
        assert_eq!(thread.join().unwrap(), Code::SessionLost, "{what}");
    }
    for (what, code) in calls(&s, &x) {
        assert_eq!(code, Code::SessionLost, "{what}");
    }
    assert_eq!(code(topic.send(&x)), Code::SessionLost);
    assert_eq!(code(topic.try_send(&x)), Code::SessionLost);
    assert_eq!(code(reader.try_recv()), Code::SessionLost);
    assert_eq!(code(queue.put(&x, None)), Code::SessionLost);
    assert_eq!(code(queue.get(Duration::ZERO)), Code::SessionLost);
    assert_eq!(code(watch.next(Duration::ZERO)), Code::SessionLost);
    assert_eq!(code(s.open(&handle)), Code::SessionLost);
    until("a program that polls is told", || code_of_poll(&polled));

    for tensor in [&x, named.first().unwrap(), &x.slice(0, 0..3)?] {
        assert_eq!(tensor.to_vec::<f32>()?, [1.5, 2.5, 3.5]);
    }
    assert!([&held, &received].iter().all(|t| t.to_vec::<u8>().unwrap() == vec![7; 1 << 20]));
    drop((held, received, named, reader, watch, queue, topic));

    let new = s.reopen()?;
    assert_eq!((new.namespace(), new.address()), (s.namespace(), s.address()));
    let copy = new.from_slice(&[3], &x.to_vec::<f32>()?)?.freeze();
    new.set("name", &copy)?;
    assert_eq!(broker.session().get("name", SOON)?.first().unwrap().to_vec::<f32>()?, [1.5, 2.5, 3.5]);
    assert_eq!(code(s.get("name", None)), Code::SessionLost);
    assert_eq!(code(new.set("name", &x)), Code::InvalidArgument, "a tensor of the lost session");
    s.close();
    assert_eq!(x.to_vec::<f32>()?, [1.5, 2.5, 3.5]);
    Ok(())
}

/// Whether the descriptor of a lost session stays readable.
fn code_of_poll(s: &Session) -> bool {
    s.clear_poll_fd();
    let fd = s.poll_fd().expect("it was made before");
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let zero = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&zero)).unwrap() == 1 && code(s.topic("t")) == Code::SessionLost
}

#[test]
fn every_call_fails_once_the_broker_was_stopped() -> Result<()> {
    everything_fails_and_tensors_stay(|broker| {
        broker.tool(&["stop"]);
        broker.child.wait().unwrap();
        broker.restart();
    })
}

/// A broker that goes says `closing`: another one takes over.
#[test]
fn nothing_is_lost_with_a_broker_that_is_terminated() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let (s, other) = (broker.session(), broker.session());
    let (x, topic, queue) = (numbers(&s)?, s.topic("t")?, s.queue("q")?);
    let mut reader = other.topic("t")?.reader(Start::New)?;
    topic.send(&x)?;
    reader.recv(SOON)?; // the memory is mapped there from now on
    topic.send(&x)?;
    s.set("name", &x)?;
    let waiting = other.queue("q")?;
    let taker = std::thread::spawn(move || waiting.get(SOON)?.tensor()?.to_vec::<f32>());
    for round in 2..5u64 {
        broker.terminate();
        assert_eq!(reader.recv(SOON)?.sequence(), round, "what was sent before");
        topic.send(&x)?; // without a broker
        broker.restart();
        assert_eq!(other.get("name", SOON)?.first().unwrap().to_vec::<f32>()?, [1.5, 2.5, 3.5]);
    }
    queue.put(&x, SOON)?;
    assert_eq!(taker.join().unwrap()?, [1.5, 2.5, 3.5]);
    assert!(!s.is_ended() && !other.is_ended());
    Ok(())
}

#[test]
fn every_call_fails_once_a_broker_does_not_know_the_session() -> Result<()> {
    everything_fails_and_tensors_stay(forget)
}

/// Answers each greeting at a socket with an error, until it is dropped.
struct Refuses {
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Refuses {
    fn start(broker: &Broker, code: &'static str) -> Refuses {
        let at = broker.dir.path().join("b.sock");
        let _ = std::fs::remove_file(&at);
        let listener = UnixListener::bind(&at).unwrap();
        let (over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ends, answers) = (over.clone(), answered.clone());
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (mut client, mut head) = (client.unwrap(), [0; 8]);
                client.read_exact(&mut head).unwrap();
                let mut hello = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize];
                client.read_exact(&mut hello).unwrap();
                let id = serde_json::from_slice::<serde_json::Value>(&hello).unwrap()["id"].clone();
                let answer = serde_json::json!({"id": id, "error": {"code": code, "message": "no", "remedy": ""}});
                let answer = answer.to_string().into_bytes();
                if !code.is_empty() {
                    client.write_all(&[&(answer.len() as u32).to_le_bytes()[..], &[0; 4], &answer].concat()).unwrap();
                }
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        Refuses { over, answered, thread }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    fn stop(self, broker: &Broker) {
        self.over.store(true, Ordering::Relaxed);
        let at = broker.dir.path().join("b.sock");
        drop(UnixStream::connect(&at));
        self.thread.join().unwrap();
        std::fs::remove_file(at).unwrap();
    }
}

#[test]
fn only_an_answer_that_says_so_loses_a_session() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    s.set("name", numbers(&s)?)?;
    let topic = s.topic("t")?;
    let mut reader = topic.reader(Start::New)?;
    topic.send(numbers(&s)?)?;
    reader.recv(SOON)?;
    for code in ["TooMany", "OutOfMemory", "Busy", "Internal", "NotFound", "Protocol", ""] {
        broker.kill();
        let refuses = Refuses::start(&broker, code);
        until("it is refused", || refuses.answered() > 2);
        topic.send(numbers(&s)?)?;
        assert_eq!(reader.recv(SOON)?.tensor()?.to_vec::<f32>()?, [1.5, 2.5, 3.5], "{code}");
        refuses.stop(&broker);
        broker.restart();
        assert_eq!(s.get("name", SOON)?.first().unwrap().to_vec::<f32>()?, [1.5, 2.5, 3.5], "{code}");
    }
    Ok(())
}

#[test]
fn an_answer_that_no_broker_will_change_loses_a_session() -> Result<()> {
    for (answer, lost) in [("Version", Code::SessionLost), ("PermissionDenied", Code::PermissionDenied)] {
        let Some(mut broker) = Broker::start() else { return Ok(()) };
        let s = broker.session();
        let mut reader = s.topic("t")?.reader(Start::New)?;
        let held = numbers(&s)?;
        broker.kill();
        let refuses = Refuses::start(&broker, answer);
        assert_eq!(code(reader.recv(None)), lost);
        assert_eq!(code(s.set("name", held.clone())), lost, "each call");
        assert_eq!(held.to_vec::<f32>()?, [1.5, 2.5, 3.5], "what is held can be read");
        until("it is asked once", || refuses.answered() == 1); // its count follows its answer
        refuses.stop(&broker);
    }
    Ok(())
}

#[test]
fn a_call_without_a_broker_fails_with_broker_lost_at_its_timeout() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let mut reader = s.topic("t")?.reader(Start::New)?;
    broker.kill();
    assert_eq!(code(s.get("absent", Duration::from_secs(1))), Code::BrokerLost);
    assert_eq!(code(reader.recv(Duration::from_millis(10))), Code::Timeout, "a wait for data goes on");
    broker.restart();
    assert_eq!(s.names("")?, Vec::<String>::new());
    Ok(())
}
