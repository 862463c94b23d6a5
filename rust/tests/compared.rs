//! What the broker has taken back is found by comparing: no event is needed for it.

mod kit;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use baton::{Result, Session, TopicOptions};
use kit::Broker;

/// Where the process of [`maker`] finds its broker.
const ADDRESS: &str = "BATON_TEST_ADDRESS";

const PATIENCE: Duration = Duration::from_secs(90);

/// How many segments this process maps.
fn mapped_segments() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|l| l.contains("memfd:baton-segment")).count()
}

fn until(what: &str, f: impl Fn() -> bool) {
    let began = Instant::now();
    while !f() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The places of lanes of all sizes are used anew, in parts and joined.
#[test]
fn lanes_of_all_sizes_share_the_space_of_a_session() -> Result<()> {
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
    let Ok(address) = std::env::var(ADDRESS) else { return Ok(()) };
    let s = Session::builder().address(address).connect()?;
    s.set("n", s.from_slice(&[1], &[1u8])?.freeze())?;
    Ok(())
}

/// A new broker does not know which sessions have a segment mapped, so it notifies none that it is gone.
#[test]
fn memory_that_a_new_broker_takes_back_is_unmapped() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["maker", "--exact", "--ignored"]).env(ADDRESS, broker.address());
    assert!(command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap().success());
    let before = mapped_segments();
    drop(session.get("n", PATIENCE)?);
    assert!(mapped_segments() > before);
    broker.kill();
    broker.restart();
    until("the session is back", || session.delete("n").is_ok());
    until("a segment that is no more stays mapped", || mapped_segments() == before);
    Ok(())
}
