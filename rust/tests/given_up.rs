//! Calls that were given up while the broker did not answer, and that it carried out later.

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
