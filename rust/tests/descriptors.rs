//! A process that may open no more files. It is a file of its own: the limit is the process's.

mod kit;

use std::fs::File;
use std::time::Duration;

use baton::{Code, Result, Start};
use kit::{Broker, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LARGE: [i64; 1] = [32 << 20];

fn refused<T>(what: &str, got: Result<T>) {
    match got {
        Ok(_) => panic!("{what} was given without a free descriptor"),
        Err(e) => assert_eq!(e.code(), Code::TooMany, "{what}: {e}"),
    }
}

#[test]
fn who_may_open_no_more_files_is_told_so_and_loses_nothing() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (other, session) = (broker.session(), broker.session());
    let x = other.from_slice(&[2], &[1f32, 2.0])?.freeze();
    other.set("w", &x)?;
    let (to, work) = (other.queue("work")?, session.queue("work")?);
    let own = session.queue("own")?;
    let turn = || -> Result<()> {
        own.put(session.from_slice(&[1], &[7u8])?.freeze(), Duration::from_secs(60))?;
        assert_eq!(own.get(Duration::from_secs(60))?.tensor()?.to_vec::<u8>()?, [7]);
        Ok(())
    };
    turn()?; // what is mapped already goes on
    assert!(work.try_get()?.is_none());
    to.put(&x, Duration::from_secs(60))?;
    let (theirs, ours) = (other.topic("both")?, session.topic("both")?);
    theirs.send(&x)?;
    let y = session.from_slice(&[1], &[9u8])?.freeze();
    let held = |kind: &str| broker.listed(kind).len();
    let (sessions, segments) = (held("sessions"), held("segments"));

    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..before }).unwrap();
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    for _ in 0..3 {
        refused("a grant", session.alloc::<u8>(&LARGE));
        refused("another's name", session.get("w", Duration::ZERO));
        refused("another's item", work.get(Duration::ZERO));
        refused("a poll loop", session.poll_fd());
        ours.send(&y)?; // a sender maps no other sender
        turn()?;
    }
    let connect = || baton::Session::builder().address(broker.address()).connect();
    refused("a connection", connect());
    while files.len() > 1 {
        // Room for the socket, and not for all that comes through it.
        files.pop();
        match connect() {
            Ok(_) => break,
            Err(e) => assert_eq!(e.code(), Code::TooMany, "a session: {e}"),
        }
    }
    drop(files);
    setrlimit(Resource::Nofile, before).unwrap();
    until("nothing of the refused is left", || (held("sessions"), held("segments")) == (sessions, segments));
    session.alloc::<u8>(&LARGE)?;
    assert_eq!(session.get("w", Duration::ZERO)?.first().unwrap().to_vec::<f32>()?, [1.0, 2.0]);
    assert_eq!(work.get(Duration::from_secs(60))?.tensor()?.to_vec::<f32>()?, [1.0, 2.0]);
    let mut reader = theirs.reader(Start::New)?;
    ours.send(&y)?;
    assert_eq!(reader.recv(Duration::from_secs(60))?.tensor()?.to_vec::<u8>()?, [9]);
    let mut reader = session.topic("t")?.reader(Start::New)?;
    other.topic("t")?.send(&x)?;
    assert_eq!(reader.recv(Duration::from_secs(60))?.sequence(), 1);
    Ok(())
}
