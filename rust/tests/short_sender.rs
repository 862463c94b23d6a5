//! A sender that may open no more files, and a reader that comes then. The limit is set in a process of its
//! own.

mod kit;

use std::fs::File;
use std::time::Duration;

use baton::{Result, Start};
use kit::{Broker, part_session};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SOON: Duration = Duration::from_secs(60);
/// Messages of the sender.
const SENT: usize = 5;

/// Sends whenever it is told to, with no file left that it could open.
#[test]
#[ignore = "a process of another test"]
fn sender() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let (out, said) = (s.topic("t")?, s.topic("said")?);
    let mut told = s.topic("told")?.reader(Start::All)?;
    let x = s.from_slice(&[1], &[1u8])?.freeze();
    out.send(&x)?;
    told.recv(SOON)?; // now the lane of the teller is mapped
    said.send(&x)?;
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..before }).unwrap();
    let _files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    said.send(&x)?;
    for _ in 0..SENT {
        told.recv(SOON)?;
        out.send(&x)?;
    }
    Ok(())
}

#[test]
fn a_sender_needs_no_file_for_a_reader_that_comes() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (teller, late) = (broker.session(), broker.session());
    let (tell, mut said) = (teller.topic("told")?, teller.topic("said")?.reader(Start::All)?);
    let x = teller.from_slice(&[1], &[1u8])?.freeze();
    tell.send(&x)?;
    let mut sender = broker.part("sender").spawn().unwrap();
    let mut exchange = || -> Result<()> {
        said.recv(SOON)?;
        said.recv(SOON)?;
        let mut reader = late.topic("t")?.reader(Start::New)?;
        for _ in 0..SENT {
            tell.send(&x)?;
            reader.recv(SOON)?;
        }
        Ok(())
    };
    let exchanged = exchange();
    if exchanged.is_err() {
        sender.kill().unwrap();
    }
    assert!(sender.wait().unwrap().success(), "a send failed");
    exchanged
}
