//! Commands in remedies reach what the error is about: the broker and the namespace of the session.

mod kit;

use std::time::Duration;

use baton::{Error, QueueOptions, Result, Session};
use kit::Broker;

const SHORT: Duration = Duration::from_millis(20);

fn remedy_of<T>(got: Result<T>) -> String {
    got.err().as_ref().map(Error::remedy).expect("it ends by its deadline").to_owned()
}

#[test]
fn remedies_name_the_broker_and_the_namespace() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let address = broker.address();
    let session = Session::builder().address(&address).namespace("team-b").connect()?;
    let why = format!("`baton why --address={} --namespace=team-b ", address.trim_start_matches("unix:"));
    let queue = session.queue_with("work", &QueueOptions::default().depth(1))?;
    let empty = remedy_of(queue.get(SHORT));
    assert!(empty.contains(&format!("{why}queue work`")), "{empty}");
    let x = session.from_slice(&[1], &[1u8])?.freeze();
    queue.put(&x, None)?;
    let full = remedy_of(queue.put(&x, SHORT));
    assert!(full.contains(&format!("{why}queue work`")), "{full}");

    let _slow = session.function("slow", |_, call| call.wait_cancelled(None).map(|_| ()))?;
    let late = remedy_of(session.get_function("slow")?.timeout(SHORT).call::<()>(()));
    assert!(late.contains(&format!("{why}function slow")), "{late}");
    Ok(())
}
