//! Reading a name again.

mod kit;

use std::time::Duration;

use baton::{Code, Result};
use kit::{Broker, until};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_name_that_was_read_is_read_again_without_the_broker() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let (setter, session) = (broker.session(), broker.session());
    let set = |v: i32| setter.set("weights", setter.from_slice(&[1], &[v])?.freeze());
    let value = |session: &baton::Session| -> Result<(u64, Vec<i32>)> {
        let bundle = session.get("weights", Duration::ZERO)?;
        Ok((bundle.revision(), bundle.first().unwrap().to_vec()?))
    };
    assert_eq!(value(&session).unwrap_err().code(), Code::NotFound);
    let first = set(1)?;
    assert_eq!(value(&session)?, (first, vec![1]));

    broker.pause();
    assert_eq!(value(&session)?, (first, vec![1]));
    assert_eq!(session.get("weights", SOON)?.revision(), first);
    broker.go_on();
    let second = set(2)?;
    assert_eq!(value(&session)?, (second, vec![2]));
    let held = session.get("weights", None)?;
    broker.kill();
    assert_eq!(value(&session)?, (second, vec![2]));
    broker.restart();
    let third = set(3)?;
    assert_eq!(value(&session)?, (third, vec![3]));
    assert_eq!(held.first().unwrap().to_vec::<i32>()?, [2]);

    setter.delete("weights")?;
    assert_eq!(value(&session).unwrap_err().code(), Code::NotFound);
    let fourth = set(4)?;
    assert_eq!(value(&session)?, (fourth, vec![4]));
    drop(held);
    let begins_anew = || {
        session.delete("weights").unwrap();
        set(5).unwrap() == 1
    };
    until("no session has it open, so that it begins anew", begins_anew);
    setter.delete("weights")?;
    drop(session);
    broker.nothing_is_held();
    Ok(())
}

/// The broker has 4,096 places for names, and that of a deleted one is free once no session has it open.
#[test]
fn names_that_were_read_do_not_stay_open_without_a_bound() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (setter, session) = (broker.session(), broker.session());
    let x = setter.from_slice(&[1], &[7])?.freeze();
    for k in 0..4200 {
        let name = format!("run/{k}");
        setter.set(&name, &x)?;
        assert_eq!(session.get(&name, None)?.first().unwrap().to_vec::<i32>()?, [7]);
        setter.delete(&name)?;
    }
    Ok(())
}

/// It would fill the share of the session that made it.
#[test]
fn a_name_that_another_deletes_is_left() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (setter, session) = (broker.session(), broker.session());
    let x = setter.from_slice(&[1], &[7])?.freeze();
    setter.set("weights", &x)?;
    let read = session.get("weights", None)?;
    let begins_anew = || {
        setter.delete("weights").unwrap();
        setter.set("weights", &x).unwrap() == 1
    };
    until("a name that no session has open begins anew", begins_anew);
    assert_eq!(read.first().unwrap().to_vec::<i32>()?, [7]);
    Ok(())
}
