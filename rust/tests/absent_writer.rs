//! A writer that is suspended over a restart of the broker, and whose session file no other process had mapped, keeps no
//! other session from the topic.

mod kit;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use baton::{Reader, Result, Start};
use kit::{Broker, part_session, until};
use rustix::process::{Pid, Signal, kill_process};

const SOON: Duration = Duration::from_secs(60);

/// Sends one message at each line that it reads.
#[test]
#[ignore = "a process of another test"]
fn writer() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let topic = s.topic("t")?;
    for _ in std::io::stdin().lines().map_while(std::result::Result::ok) {
        topic.send(s.from_slice(&[1], &[2u8])?.freeze())?;
        println!("sent");
    }
    Ok(())
}

/// It ends with the test, however that ends.
struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn stop(p: &Child) {
    kill_process(Pid::from_child(p), Signal::STOP).unwrap();
    let stands = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    let tasks = format!("/proc/{}/task", p.id());
    until("it is suspended", || std::fs::read_dir(&tasks).unwrap().all(|t| stands(t.unwrap())));
}

fn value(r: &mut Reader) -> u8 {
    r.recv(SOON).unwrap().tensor().unwrap().to_vec::<u8>().unwrap()[0]
}

#[test]
fn a_writer_that_stands_still_holds_up_no_other_in_its_topic() {
    let Some(mut broker) = Broker::start() else { return };
    let (c, s) = (broker.session(), broker.session());
    let (mut reader, sender) = (c.topic("t").unwrap().reader(Start::New).unwrap(), s.topic("t").unwrap());
    let send = |k: u8| sender.send(s.from_slice(&[1], &[k]).unwrap().freeze()).unwrap();
    send(1);
    assert_eq!(value(&mut reader), 1);

    let mut part = broker.part("writer");
    let p = part.args(["--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut p = Part(p.unwrap());
    let mut said = BufReader::new(p.0.stdout.take().unwrap()).lines().map_while(std::result::Result::ok);
    let mut told = p.0.stdin.take().unwrap();
    let mut tell = || {
        told.write_all(b"send\n").unwrap();
        assert!(said.by_ref().any(|line| line.ends_with("sent")));
    };
    tell();
    stop(&p.0);
    broker.kill();
    broker.restart();
    let other = broker.session();
    let mut late = other.topic("t").unwrap().reader(Start::New).unwrap();
    send(3);
    // What it had sent is read too, in whatever order: the broker has opened its files in its place.
    let mut got = [value(&mut reader), value(&mut reader)];
    got.sort_unstable();
    assert_eq!((got, value(&mut late)), ([2, 3], 3));
    other.topic("t").unwrap().send(other.from_slice(&[1], &[4u8]).unwrap().freeze()).unwrap(); // a new writer
    assert_eq!((value(&mut reader), value(&mut late)), (4, 4));

    kill_process(Pid::from_child(&p.0), Signal::CONT).unwrap();
    tell();
    assert_eq!((value(&mut reader), value(&mut late)), (2, 2));
    drop(told);
    assert!(p.0.wait().unwrap().success());
}
