//! The members of a topic, as sessions read them from the broker's page.

mod kit;

use std::collections::BTreeSet;
use std::time::Duration;

use baton::{Code, QueueOptions, Result, Session, Start, TopicOptions};
use kit::{Broker, until};

const SOON: Duration = Duration::from_secs(90);

/// More senders than one request to the broker names.
const MANY: usize = 70;

fn named(broker: &Broker, name: &str) -> Result<Session> {
    Session::builder().address(broker.address()).name(name).connect()
}

#[test]
fn a_reader_has_the_messages_of_more_senders_than_one_request_names() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let topic = session.topic("t")?;
    let senders = (0..MANY).map(|k| named(&broker, &format!("sender-{k}"))).collect::<Result<Vec<_>>>()?;
    let topics = senders.iter().map(|s| s.topic("t")).collect::<Result<Vec<_>>>()?;
    for (s, to) in senders.iter().zip(&topics) {
        to.send(s.zeros::<u8>(&[1])?.freeze())?;
    }
    let mut reader = topic.reader(Start::All)?;
    for _ in 0..2 {
        let of = (0..MANY).map(|_| Ok(reader.recv(SOON)?.sender().to_owned())).collect::<Result<BTreeSet<_>>>()?;
        assert_eq!(of.len(), MANY, "{of:?}");
        for (s, to) in senders.iter().zip(&topics) {
            to.send(s.zeros::<u8>(&[1])?.freeze())?;
        }
    }
    Ok(())
}

#[test]
fn a_timeout_tells_who_takes_part() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (session, other) = (broker.session(), named(&broker, "trainer")?);
    let mut reader = session.topic("t")?.reader(Start::New)?;
    let theirs = other.topic("t")?;
    theirs.send(other.zeros::<u8>(&[1])?.freeze())?;
    assert_eq!(reader.recv(SOON)?.sender(), "trainer");
    let said = |what: &str, reader: &mut baton::Reader| {
        let e = reader.recv(Duration::ZERO).unwrap_err();
        assert_eq!(e.code(), Code::Timeout);
        e.message().contains(what)
    };
    assert!(said("1 writing and 1 reading sessions", &mut reader));
    drop(theirs);
    until("it has left", || said("0 writing and 1 reading sessions attached, trainer left last", &mut reader));
    Ok(())
}

/// Each waits for what the others have taken: a sleeper that is forgotten would make a pause of a second each
/// time, and one that is rung for nothing sleeps again.
#[test]
fn takers_that_sleep_share_what_comes_one_by_one() -> Result<()> {
    const ITEMS: usize = 600;
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let one = QueueOptions::default().depth(1);
    let work = session.queue_with("work", &one)?;
    std::thread::scope(|s| {
        let takers: Vec<_> = (0..3)
            .map(|_| {
                s.spawn(|| -> Result<usize> {
                    let own = broker.session();
                    let queue = own.queue("work")?;
                    let mut n = 0;
                    loop {
                        match queue.get(None) {
                            Ok(_) => n += 1,
                            Err(e) if e.code() == Code::Closed => return Ok(n),
                            Err(e) => return Err(e),
                        }
                    }
                })
            })
            .collect();
        for _ in 0..ITEMS {
            work.put(session.zeros::<u8>(&[1])?.freeze(), SOON)?;
        }
        work.end()?;
        let taken = takers.into_iter().map(|t| t.join().unwrap()).sum::<Result<usize>>()?;
        assert_eq!(taken, ITEMS);
        Ok(())
    })
}

#[test]
fn two_groups_have_each_message_and_those_of_a_third_begin_with_the_next() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (session, other) = (broker.session(), broker.session());
    let topic = session.topic_with("t", &TopicOptions::default().overwrite(false).depth(4))?;
    let theirs = other.topic("t")?;
    let mut groups = ["a", "b"].map(|g| theirs.group_reader(g).unwrap());
    let x = session.zeros::<u8>(&[1])?.freeze();
    topic.send(&x)?;
    for g in &mut groups {
        assert_eq!(g.recv(SOON)?.sequence(), 1);
    }
    let mut third = theirs.group_reader("c")?;
    topic.send(&x)?;
    for g in groups.iter_mut().chain([&mut third]) {
        assert_eq!(g.recv(SOON)?.sequence(), 2);
    }
    Ok(())
}
