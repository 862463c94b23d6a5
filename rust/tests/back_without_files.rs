//! A process that may open no more files while the broker ends: it comes back to the next one all the same.

mod kit;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use baton::Code;
use kit::{Broker, numbers, part_session, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn it_comes_back_and_learns_of_the_end() {
    let Some(mut broker) = Broker::start() else { return };
    let session = broker.session();
    let queue = session.queue("work").unwrap();
    let mut part = broker.part("full").args(["--nocapture"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(part.stdout.take().unwrap()).lines().map_while(std::result::Result::ok);
    assert!(said.by_ref().any(|line| line.ends_with("full")));
    for end in [Broker::kill, Broker::terminate] {
        end(&mut broker);
        broker.restart();
        session.set("served", numbers(&session, 2)).unwrap(); // waits for the next broker
        until("both are there", || {
            let connected = |s: &serde_json::Value| s["state"] == "live";
            broker.rust_sessions().iter().filter(|s| connected(s)).count() == 2
        });
        queue.put(numbers(&session, 1), PATIENCE).unwrap();
        assert!(said.by_ref().any(|line| line.ends_with("got")));
    }
    broker.tool(&["stop"]);
    assert!(said.by_ref().any(|line| line.ends_with("lost")));
    assert!(part.wait().unwrap().success());
}

/// Opens what there is to open, and says what it meets.
#[test]
#[ignore = "a part of another test"]
fn full() {
    let Some(session) = part_session() else { return };
    let work = session.queue("work").unwrap();
    assert!(work.try_get().unwrap().is_none());
    session.set("name", numbers(&session, 5)).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..before }).unwrap();
    // What an item needs is made room for when it comes.
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    println!("full");
    loop {
        match work.get(PATIENCE) {
            Ok(m) => kit::check(&m.tensor().unwrap(), 1),
            Err(e) if e.code() == Code::TooMany => {
                files.pop();
                continue;
            }
            Err(e) => {
                assert_eq!(e.code(), Code::SessionLost, "{e}");
                println!("lost");
                return;
            }
        }
        files.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        println!("got");
    }
}
