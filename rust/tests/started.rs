//! Which broker a client starts, and which it leaves to the operator.

mod kit;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use baton::{Code, Session};
use kit::{Dir, binary, until};
use rustix::process::{Pid, Signal, kill_process};

/// What the tool says of the broker.
fn status(binary: &Path) -> Option<serde_json::Value> {
    let out = Command::new(binary).args(["status", "--json"]).output().unwrap();
    out.status.success().then(|| serde_json::from_slice(&out.stdout).unwrap())
}

/// A broker of an operator's, killed with its value.
struct Operators(Child);

impl Drop for Operators {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn serve(binary: &Path, socket: &Path) -> Operators {
    let mut command = Command::new(binary);
    command.args(["serve", "--no-nats", "--log-level", "error"]).stdin(Stdio::null());
    let child = Operators(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until("the broker serves", || socket.exists());
    child
}

fn kill(binary: &Path) {
    let pid = status(binary).unwrap()["pid"].as_i64().unwrap() as i32;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    until("the broker is gone", || !Path::new(&format!("/proc/{pid}")).exists());
}

/// One test, since the environment is the process's.
#[test]
fn a_stand_in_has_the_settings_of_the_broker_before_it_and_an_operators_broker_is_awaited() -> baton::Result<()> {
    let (Some(binary), dir) = (binary(), Dir::new()) else { return Ok(()) };
    let run: PathBuf = dir.path().join("baton");
    let (socket, log) = (run.join("broker.sock"), run.join("broker.log"));
    // SAFETY: no other thread of this process looks at its environment now.
    unsafe {
        std::env::remove_var("BATON_ADDRESS");
        std::env::set_var("XDG_RUNTIME_DIR", dir.path());
        std::env::set_var("BATON_BINARY", &binary);
        std::env::set_var("BATON_MEMORY", "64MiB");
    }
    let s = Session::connect()?;
    s.set("name", s.from_slice(&[1], &[7u8])?.freeze())?;
    let limit = |binary| status(binary).unwrap()["memory"]["limit"].clone();
    let first = limit(&binary);
    // SAFETY: as above.
    unsafe { std::env::set_var("BATON_MEMORY", "1GiB") };
    kill(&binary);
    assert_eq!(s.get("name", None)?.first().unwrap().to_vec::<u8>()?, [7]);
    assert_eq!(limit(&binary), first, "of the one that it stands in for");

    // The operator's.
    let stopped = Command::new(&binary).arg("stop").status().unwrap();
    assert!(stopped.success());
    assert_eq!(s.get("name", None).unwrap_err().code(), Code::SessionLost);
    until("it is gone", || !socket.exists());
    std::fs::remove_file(&log).unwrap();
    let operators = serve(&binary, &socket);
    let s = s.reopen()?;
    s.set("name", s.from_slice(&[1], &[8u8])?.freeze())?;
    // It cannot be reached for a while: another one would be refused.
    let aside = run.join("aside.sock");
    kill_process(Pid::from_child(&operators.0), Signal::STOP).unwrap(); // else it binds the socket again
    std::fs::rename(&socket, &aside).unwrap();
    let refused = Session::builder().timeout(Duration::from_millis(1)).connect().unwrap_err();
    assert_eq!(refused.code(), Code::NoBroker, "{refused}");
    assert!(refused.remedy().contains(&format!("kill -TERM {}", operators.0.id())), "{refused}");
    assert!(!log.exists(), "a client started a broker: {}", std::fs::read_to_string(&log).unwrap());
    std::fs::rename(&aside, &socket).unwrap();
    drop(operators);
    let refused = Session::builder().timeout(Duration::from_secs(2)).connect().unwrap_err();
    assert_eq!(refused.code(), Code::NoBroker, "{refused}");
    assert!(!log.exists(), "a client started a broker: {}", std::fs::read_to_string(&log).unwrap());
    std::fs::remove_file(&socket).unwrap();
    let next = serve(&binary, &socket);
    assert_eq!(s.get("name", None)?.first().unwrap().to_vec::<u8>()?, [8]);

    // Once no session of it lives, a client starts one.
    s.close();
    until("it has ended", || status(&binary).is_some_and(|s| s["counts"]["sessions"] == 0));
    drop(next);
    drop(Session::connect()?);
    assert!(log.exists());
    assert!(Command::new(&binary).arg("stop").status().unwrap().success());

    // What stands in the place of its log is waited for by nothing.
    std::fs::remove_file(&log).unwrap();
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    let refused = Session::connect().unwrap_err();
    assert!(refused.message().ends_with("broker.log is no regular file"), "{refused}");
    assert_eq!(refused.remedy(), "move it away");
    std::fs::remove_file(&log).unwrap();

    // One that does not begin to serve is named.
    let stuck = dir.path().join("stuck");
    std::fs::write(&stuck, "#!/bin/sh\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&stuck, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    // SAFETY: as above.
    unsafe { std::env::set_var("BATON_BINARY", &stuck) };
    let refused = Session::builder().timeout(Duration::from_millis(100)).connect().unwrap_err();
    assert_eq!(refused.code(), Code::NoBroker, "{refused}");
    let text = refused.message().strip_prefix("the broker that was started here, process ");
    let pid = text.and_then(|t| t.strip_suffix(", has not begun to serve")).unwrap_or_else(|| panic!("{refused}"));
    assert!(refused.remedy().contains(log.to_str().unwrap()), "{refused}");
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    Ok(())
}
