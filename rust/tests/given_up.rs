//! A broker that is suspended: calls keep their deadlines, and what it carries out after they were given up is
//! undone.

mod kit;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton::{Code, Lease, Result, Session, Start};
use kit::{Broker, until};

/// Whether waits are given up.
static ENOUGH: AtomicBool = AtomicBool::new(false);

const SOON: Duration = Duration::from_secs(60);

fn given_up<T>(what: &str, got: Result<T>) {
    match got {
        Ok(_) => panic!("{what}: a stopped broker has answered"),
        Err(e) => assert_eq!(e.code(), Code::Timeout, "{what}: {e}"),
    }
}

#[test]
fn what_the_broker_does_too_late_is_undone() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let other = broker.session();
    let look = || ENOUGH.load(Ordering::Relaxed);
    let session = Session::builder().address(broker.address()).interrupted(look).connect()?;
    let x = session.from_slice(&[1], &[1u8])?.freeze();
    let y = session.from_slice(&[1], &[2u8])?.freeze();
    let (first, second) = (session.topic("first")?, session.topic("second")?);
    let counts = || (broker.listed("segments").len(), broker.listed("leases").len());
    let of = |name: &str, what: &str| {
        broker.listed("topics").iter().find(|t| t["name"] == name).map_or(0, |t| t[what].as_u64().unwrap())
    };
    let before = counts();

    broker.pause();
    ENOUGH.store(true, Ordering::Relaxed);
    given_up("a grant", session.alloc::<u8>(&[64 << 20]));
    given_up("a lease", x.handle(Lease::Session));
    given_up("a topic", session.topic("third"));
    given_up("a reader", first.reader(Start::New));
    given_up("a lane", first.send(&x));
    ENOUGH.store(false, Ordering::Relaxed);
    broker.go_on();

    // Lanes of two topics lie in two places.
    let mut readers = [other.topic("first")?.reader(Start::New)?, other.topic("second")?.reader(Start::New)?];
    for _ in 0..3 {
        second.send(&y)?;
        first.send(&x)?;
    }
    for _ in 0..3 {
        assert_eq!(readers[0].recv(SOON)?.tensor()?.to_vec::<u8>()?, [1]);
        assert_eq!(readers[1].recv(SOON)?.tensor()?.to_vec::<u8>()?, [2]);
    }
    until("all is undone", || counts() == before && of("third", "openers") == 0 && of("first", "readers") == 1);
    assert_eq!((of("first", "writers"), of("second", "writers")), (1, 1));
    Ok(())
}

#[test]
fn deadlines_hold_while_the_broker_stands_still() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (session, other) = (broker.session(), broker.session());
    let x = session.from_slice(&[1], &[1u8])?.freeze();
    let mut reader = session.topic("t")?.reader(Start::New)?;
    let (work, more, fresh) = (session.queue("work")?, session.queue("more")?, session.queue("fresh")?);
    work.put(&x, None)?;
    work.get(None)?;
    let mut watch = session.watch("name")?;
    // Each of the calls below has to ask for a lane, for the session file of one that has come, or where memory lies.
    let y = other.from_slice(&[1], &[2u8])?.freeze();
    other.topic("t")?.send(&y)?;
    other.queue("work")?.put(&y, None)?;
    other.set("name", &y)?;

    broker.pause();
    let brief = Duration::from_millis(1);
    let code = |e: baton::Error| e.code();
    assert_eq!(reader.recv(brief).map_err(code).err(), Some(Code::Timeout));
    assert_eq!(reader.recv(Duration::ZERO).map_err(code).err(), Some(Code::Timeout));
    assert!(reader.try_recv()?.is_none());
    assert_eq!(work.get(brief).map_err(code).err(), Some(Code::Empty));
    assert!(work.try_get()?.is_none());
    assert_eq!(fresh.put(&x, brief).map_err(code).err(), Some(Code::Full));
    assert!(!fresh.try_put(&x)?);
    work.put(&x, brief)?; // all that it needs is mapped here
    assert_eq!(more.get(brief).map_err(code).err(), Some(Code::Empty));
    assert_eq!(watch.next(brief).map_err(code).err(), Some(Code::Timeout));
    assert_eq!(session.get("name", brief).map_err(code).err(), Some(Code::Timeout));
    assert_eq!(session.allocation(&[64 << 20]).timeout(brief).of::<u8>().map_err(code).err(), Some(Code::Timeout));
    let opening = Session::builder().address(broker.address()).timeout(brief);
    assert_eq!(opening.connect().map_err(code).err(), Some(Code::Timeout));
    // A call with a deadline has it too while another that has none asks the broker.
    std::thread::scope(|s| {
        let patient = s.spawn(|| session.alloc::<u8>(&[64 << 20]));
        assert_eq!(session.allocation(&[64 << 20]).timeout(brief).of::<u8>().map_err(code).err(), Some(Code::Timeout));
        assert_eq!(session.from_slice(&[1], &[3u8])?.freeze().to_vec::<u8>()?, [3], "the pool has memory for it");
        broker.go_on();
        patient.join().unwrap().map(drop)?;
        broker.pause();
        let patient = s.spawn(|| fresh.put(&x, None));
        assert_eq!(fresh.put(&x, brief).map_err(code).err(), Some(Code::Full));
        broker.go_on();
        patient.join().unwrap()
    })?;

    assert_eq!(reader.recv(SOON)?.tensor()?.to_vec::<u8>()?, [2]);
    assert_eq!(work.get(SOON)?.tensor()?.to_vec::<u8>()?, [2]);
    assert_eq!(work.get(SOON)?.tensor()?.to_vec::<u8>()?, [1]);
    assert_eq!(fresh.get(SOON)?.tensor()?.to_vec::<u8>()?, [1]);
    assert_eq!((work.waiting()?, fresh.waiting()?), (0, 0), "what was given up was not put");
    assert_eq!(watch.next(SOON)?.revision(), 1);
    Ok(())
}

#[test]
fn a_sender_that_overwrites_needs_no_answer_of_who_has_come() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (session, other) = (broker.session(), broker.session());
    let topic = session.topic("t")?;
    let x = session.from_slice(&[1], &[1u8])?.freeze();
    let mut first = other.topic("t")?.reader(Start::New)?;
    topic.send(&x)?;
    assert_eq!(first.recv(SOON)?.sequence(), 1); // which maps the memory
    let mut second = other.topic("t")?.reader(Start::New)?;

    broker.pause();
    topic.send(&x)?;
    topic.send(&x)?;
    for sequence in 2..=3 {
        assert_eq!(first.recv(SOON)?.sequence(), sequence);
        assert_eq!(second.recv(SOON)?.sequence(), sequence);
    }
    broker.go_on();
    let mut third = broker.session().topic("t")?.reader(Start::New)?;
    topic.send(&x)?;
    assert_eq!(third.recv(SOON)?.sequence(), 4);
    Ok(())
}

#[test]
fn nobody_waits_to_tell_a_broker_that_stands_still() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let topic = session.topic("t")?;
    // The socket has room for the leaving of some hundred.
    let readers = (0..1000).map(|_| topic.reader(Start::New)).collect::<Result<Vec<_>>>()?;
    let reading = || broker.listed("topics")[0]["readers"].as_u64().unwrap();
    assert_eq!(reading(), 1000);

    broker.pause();
    drop(readers);
    broker.go_on();
    until("all have left", || reading() == 0);
    topic.send(session.zeros::<u8>(&[1])?.freeze())
}

#[test]
fn a_queue_is_left_although_its_first_put_was_given_up() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let x = session.from_slice(&[1], &[1u8])?.freeze();
    let work = session.queue("work")?;
    broker.pause();
    assert!(work.put(&x, Duration::from_millis(50)).is_err(), "a stopped broker has answered");
    broker.go_on();
    drop(work); // and the broker's writer with it, of which no client was told
    let work = session.queue("work")?;
    work.put(&x, SOON)?;
    assert_eq!(work.get(SOON)?.tensor()?.to_vec::<u8>()?, [1]);
    Ok(())
}
