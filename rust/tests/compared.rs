//! What the broker has taken back is found by comparing: no event is needed for it.

mod kit;

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use baton::{Result, TopicOptions};
use kit::{Broker, part_session, until};

const PATIENCE: Duration = Duration::from_secs(90);

/// What the process has mapped is counted: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|p| p.into_inner())
}

/// How many segments this process maps.
fn mapped_segments() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|l| l.contains("memfd:baton-segment")).count()
}

/// The places of lanes of all sizes are used anew, in parts and joined.
#[test]
fn lanes_of_all_sizes_share_the_space_of_a_session() -> Result<()> {
    let _alone = alone();
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let x = session.from_slice(&[1], &[1u8])?.freeze();
    for k in 0..16 {
        // Each is more than a third of the space, and none as long as one before it.
        let of = TopicOptions::default().linger(Duration::ZERO).depth(1023).description((60 << 10) - k * 64);
        let began = Instant::now();
        let topic = session.topic_with(&format!("t{k}"), &of)?;
        while let Err(e) = topic.send(x.clone()) {
            assert!(began.elapsed() < PATIENCE, "{e}"); // the lane before is being given back
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn maker() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    s.set("n", s.from_slice(&[1], &[1u8])?.freeze())?;
    Ok(())
}

/// A new broker does not know which sessions have a segment mapped, so it notifies none that it is gone.
#[test]
fn memory_that_a_new_broker_takes_back_is_unmapped() -> Result<()> {
    let _alone = alone();
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    broker.run_part("maker");
    let before = mapped_segments();
    drop(session.get("n", PATIENCE)?);
    assert!(mapped_segments() > before);
    broker.kill();
    broker.restart();
    until("the session is back", || session.delete("n").is_ok());
    until("the segment that is no more is unmapped", || mapped_segments() == before);
    Ok(())
}

/// How many session files this process maps.
fn mapped_sessions() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|l| l.contains("memfd:baton-session")).count()
}

/// Its slot stays free, so that no other session takes its place here.
#[test]
fn files_of_an_ended_session_are_unmapped() -> Result<()> {
    let _alone = alone();
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let before = mapped_sessions();
    let other = broker.session();
    other.set("n", other.from_slice(&[1], &[1u8])?.freeze())?;
    drop(session.get("n", PATIENCE)?);
    session.delete("n")?;
    assert!(mapped_sessions() > before + 1);
    drop(other);
    until("the files of a session that is over stay mapped", || mapped_sessions() == before);
    Ok(())
}
