//! What is given back while there is no broker is told to the next one.

mod kit;

use std::time::Duration;

use baton::{Code, Lease, Result, Start, TopicOptions};
use kit::Broker;

const SOON: Duration = Duration::from_secs(60);

/// Leaves while the broker is gone, or is suspended and is killed before it has read of it.
fn left_without_a_broker(stands_still: bool) -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let (session, other) = (broker.session(), broker.session());
    let gone_at_once = TopicOptions::default().linger(Duration::ZERO);
    let lossless = gone_at_once.clone().overwrite(false).depth(1);

    let (sender, reading) = (other.topic_with("all", &lossless)?, session.topic_with("all", &lossless)?);
    let mut reader = reading.reader(Start::New)?;
    sender.send(other.from_slice(&[1], &[1])?.freeze())?;
    drop(reader.recv(SOON)?);
    let writing = session.topic_with("mine", &gone_at_once)?;
    writing.send(session.zeros::<u8>(&[1 << 20])?.freeze())?;
    let lent = other.from_slice(&[1], &[7])?.freeze();
    drop(session.open(&lent.handle(Lease::Once)?)?); // from now on its memory is mapped for writing
    let handle = lent.handle(Lease::Once)?;

    if stands_still {
        broker.pause();
    } else {
        broker.kill();
    }
    assert_eq!(session.open(&handle)?.to_vec::<i32>()?, [7]);
    drop((reader, writing));
    if stands_still {
        broker.kill();
    }
    broker.restart();

    for k in 0..3 {
        sender.send_timeout(other.from_slice(&[1], &[k])?.freeze(), SOON)?; // for no reader is left
    }
    let writing = session.topic_with("mine", &gone_at_once)?;
    writing.send(session.from_slice(&[1], &[2])?.freeze())?;
    let mut reader = other.topic_with("mine", &gone_at_once)?.reader(Start::Last)?;
    assert_eq!(reader.recv(SOON)?.tensor()?.to_vec::<i32>()?, [2]);
    drop((reader, reading, writing, sender, lent));
    broker.nothing_is_held();
    Ok(())
}

#[test]
fn what_is_left_while_no_broker_is_there_is_left_for_the_next() -> Result<()> {
    left_without_a_broker(false)
}

#[test]
fn what_a_broker_had_not_read_when_it_died_is_left_for_the_next() -> Result<()> {
    left_without_a_broker(true)
}

/// The broker's page says that a session has come, and no broker is there to say which.
#[test]
fn waits_end_in_time_though_no_broker_says_which_session_has_come() {
    let Some(mut broker) = Broker::start() else { return };
    let (w, r, late) = (broker.session(), broker.session(), broker.session());
    let one = || baton::QueueOptions::default().depth(1);
    let (put, take) = (w.queue_with("full", &one()).unwrap(), r.queue("empty").unwrap());
    let x = w.from_slice(&[1], &[1u8]).unwrap().freeze();
    put.put(x.clone(), SOON).unwrap();
    assert!(take.get(Duration::ZERO).is_err());
    // Both have taken part in it before these come.
    assert!(late.queue("empty").unwrap().get(Duration::ZERO).is_err());
    late.queue_with("full", &one()).unwrap().put(late.from_slice(&[1], &[2u8]).unwrap().freeze(), SOON).unwrap();
    broker.kill();
    let short = Duration::from_millis(100);
    assert_eq!(take.get(short).unwrap_err().code(), Code::Empty);
    assert_eq!(put.put(x, short).unwrap_err().code(), Code::Full);
}

/// What was sent is there, and to map the memory in which it lies takes a broker.
#[test]
fn calls_that_wait_for_data_wait_for_the_broker_that_they_need() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let (theirs, mine) = (broker.session(), broker.session());
    let (to_queue, to_topic) = (theirs.queue("q")?, theirs.topic("t")?);
    let (queue, topic) = (mine.queue("q")?, mine.topic("t")?);
    let (mut reader, mut watch) = (topic.reader(Start::New)?, mine.watch("n")?);
    assert!(queue.try_get()?.is_none() && reader.try_recv()?.is_none());
    let x = theirs.from_slice(&[1], &[7])?.freeze();
    to_queue.put(x.clone(), SOON)?;
    to_topic.send(x.clone())?;
    theirs.set("n", x)?;
    broker.kill();

    let short = Duration::from_millis(100);
    assert_eq!(queue.get(short).unwrap_err().code(), Code::Empty);
    assert_eq!(reader.recv(short).unwrap_err().code(), Code::Timeout);
    assert_eq!(watch.next(short).unwrap_err().code(), Code::Timeout);
    assert!(queue.try_get()?.is_none() && reader.try_recv()?.is_none());

    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| queue.get(SOON)?.tensor()?.to_vec::<i32>()),
            scope.spawn(|| reader.recv(SOON)?.tensor()?.to_vec::<i32>()),
        ];
        broker.restart();
        for wait in waits {
            assert_eq!(wait.join().unwrap()?, [7]);
        }
        assert_eq!(watch.next(SOON)?.first().unwrap().to_vec::<i32>()?, [7]);
        Ok(())
    })
}
