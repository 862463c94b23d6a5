//! Functions, from outside: with a broker, and with processes that end at each step of a call.

mod kit;

use std::time::Duration;

use baton::{Arguments, Code, Result, Session, Tensor, Value};
use kit::{Broker, numbers, part_session, until};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_call_and_its_result() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _add = provider.function("add", |args, _| Ok(args.get::<i64>(0)? + args.get::<i64>(1)?))?;
    for i in 0..200 {
        assert_eq!(caller.call::<i64>("add", (i, 2))?, i + 2);
    }
    Ok(())
}
