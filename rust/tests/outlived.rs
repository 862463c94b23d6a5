//! Memory of an ended process stays with its holders, whatever becomes of brokers.

mod kit;

use std::time::Duration;

use baton::{Message, Result, Session, Start, Tensor, TopicOptions};
use kit::{Broker, part_session, until};

const SOON: Duration = Duration::from_secs(60);
const N: usize = 100_000;

fn numbers(s: &Session, from: u32) -> Result<Tensor> {
    let all: Vec<u32> = (0..N as u32).map(|i| from + i).collect();
    Ok(s.from_slice(&[N as i64], &all)?.freeze())
}

fn check(x: &Tensor, from: u32) -> Result<()> {
    let wrong = x.to_vec::<u32>()?.into_iter().zip(from..).position(|(is, should)| is != should);
    assert_eq!(wrong, None, "the first element that has changed");
    Ok(())
}

/// Its messages go with the last session that has it open.
fn brief() -> TopicOptions {
    TopicOptions::default().linger(Duration::ZERO)
}

#[test]
#[ignore = "a process of another test"]
fn maker() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    s.set("weights", numbers(&s, 1)?)?;
    s.set("dropped", numbers(&s, 2)?)?;
    s.topic_with("batches", &brief())?.send(numbers(&s, 3)?)
}

/// Sessions take the slots of those that ended, whose pages are mapped for their memory alone then.
fn use_slots(broker: &Broker, holder: &Session) -> Result<Vec<Session>> {
    let others: Vec<Session> = (0..4).map(|_| broker.session()).collect();
    let topic = holder.topic_with("all", &brief())?;
    let mut reader = topic.reader(Start::New)?;
    for s in &others {
        s.topic_with("all", &brief())?.send(s.from_slice(&[1], &[1u8])?.freeze())?;
        reader.recv(SOON)?;
    }
    Ok(others)
}

#[test]
fn bytes_of_an_ended_process_stay_with_their_holder_through_new_brokers() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let holder = broker.session();
    let mut reader = holder.topic_with("batches", &brief())?.reader(Start::New)?;
    broker.run_part("maker");
    let of_name = holder.get("weights", None)?;
    let dropped = holder.get("dropped", None)?;
    let received: Message = reader.recv(SOON)?;
    holder.delete("dropped")?;
    for _ in 0..3 {
        drop(use_slots(&broker, &holder)?);
        broker.kill();
        broker.restart();
        until("the next broker answers", || holder.names("*").is_ok());
        drop(use_slots(&broker, &holder)?);
        check(of_name.first().unwrap(), 1)?;
        check(dropped.first().unwrap(), 2)?;
        check(&received.tensor()?, 3)?;
        for session in [&holder, &broker.session()] {
            check(session.get("weights", None)?.first().unwrap(), 1)?;
        }
    }
    holder.delete("weights")?;
    drop((of_name, dropped, received, reader));
    broker.nothing_is_held();
    Ok(())
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

/// Ends; its child has inherited a tensor of its own and one of a process that ended before, and tells later
/// whether they are as they were.
#[test]
#[ignore = "a process of another test"]
fn parent() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let (got, own) = (s.get("weights", None)?, numbers(&s, 4)?);
    // SAFETY: the child calls nothing that another thread of the parent could have locked.
    if unsafe { fork() } != 0 {
        return Ok(());
    }
    let told = || -> Result<()> {
        s.get("go", SOON)?;
        check(got.first().unwrap(), 1)?;
        check(&own, 4)?;
        s.topic_with("verdict", &brief())?.send(s.from_slice(&[1], &[1u8])?.freeze())
    };
    if let Err(e) = told() {
        eprintln!("the child: {e}");
    }
    // SAFETY: it ends the child without running what belongs to the parent.
    unsafe { _exit(0) }
}

#[test]
fn bytes_that_a_child_inherited_stay_when_its_parent_and_the_broker_have_ended() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    broker.run_part("maker");
    let session = broker.session();
    let mut verdict = session.topic_with("verdict", &brief())?.reader(Start::New)?;
    broker.run_part("parent");
    session.delete("weights")?;
    broker.kill();
    broker.restart();
    until("the next broker answers", || session.names("*").is_ok());
    session.set("go", session.from_slice(&[1], &[1u8])?.freeze())?;
    verdict.recv(SOON)?;
    session.delete("go")?;
    session.delete("dropped")?;
    drop(verdict);
    broker.nothing_is_held();
    Ok(())
}
