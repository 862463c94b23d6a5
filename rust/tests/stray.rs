//! What a broker had granted when it died before it could say so.

mod kit;

use std::path::Path;
use std::process::{Command, Stdio};

use baton::Result;
use kit::{Broker, Dir, until};

/// A broker that dies at a step of its work, given by its name. `None` where it cannot be built.
fn dies_at(step: &str) -> Option<Broker> {
    kit::binary()?;
    let dir = Dir::new();
    let binary = dir.path().join("baton");
    let mut build = Command::new("go");
    build.args(["build", "-tags", "crashpoint", "-o"]).arg(&binary).arg("./cmd/baton");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match build.env("CGO_ENABLED", "0").current_dir(root).status() {
        Ok(built) => assert!(built.success()),
        Err(e) => {
            eprintln!("skipped: no program go: {e}");
            return None;
        }
    }
    let mut command = Command::new(&binary);
    command.args(["serve", "--no-nats", "--address"]).arg(dir.path().join("b.sock"));
    command.env("BATON_CRASH_AT", step).env("XDG_RUNTIME_DIR", dir.path()).stdin(Stdio::null());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    Some(Broker { child, binary, dir })
}

#[test]
fn a_grant_whose_answer_was_lost_is_given_back() -> Result<()> {
    let Some(mut broker) = dies_at("broker-grant-made") else { return Ok(()) };
    let session = broker.session();
    let next = std::thread::spawn(move || {
        broker.child.wait().unwrap();
        broker.restart();
        broker
    });
    let x = session.from_slice(&[1], &[7u8])?;
    let broker = next.join().unwrap();
    until("the session has the one grant that it knows of", || broker.listed("segments").len() == 1);
    assert_eq!(x.freeze().to_vec::<u8>()?, [7]);
    Ok(())
}
