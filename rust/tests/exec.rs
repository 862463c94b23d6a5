//! A program that exec replaces has no session any more; what looks like it from outside is none.

mod kit;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use baton::{Session, Tensor};
use kit::{Broker, part_session, until};
use rustix::process::{Pid, Signal, kill_process};

const LEFT: &str = "BATON_TEST_LEFT";
const TIMES: u32 = 100;

/// A test of this file that is ignored otherwise, as a process of its own. It ends with the value.
struct Process(Child);

impl Process {
    fn start(test: &str, broker: &Broker) -> Process {
        let mut command = broker.part(test);
        Process(command.arg("--nocapture").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until the process has said that it is ready.
    fn ready(&mut self) {
        let mut said = Vec::new();
        let out = self.0.stdout.as_mut().unwrap();
        while !said.ends_with(b"ready") {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session that holds something, in a process of this file.
fn open() -> Option<(Session, Tensor)> {
    let s = part_session()?;
    let x = s.from_slice(&[4], &[1u8, 2, 3, 4]).unwrap().freeze();
    Some((s, x))
}

fn say_and_wait() {
    print!("ready");
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
#[ignore = "a process of another test"]
fn in_place() {
    let Some((_s, _x)) = open() else { return };
    let left: u32 = std::env::var(LEFT).map_or(TIMES, |n| n.parse().unwrap());
    if left > 0 {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let e = again.args(std::env::args_os().skip(1)).env(LEFT, (left - 1).to_string()).exec();
        panic!("{e}");
    }
    say_and_wait();
}

#[test]
fn a_program_that_starts_itself_anew_leaves_nothing() {
    let Some(b) = Broker::start() else { return };
    let mut p = Process::start("in_place", &b);
    p.ready();
    until("one session is left", || b.rust_sessions().len() == 1);
    until("what the others held is free", || b.listed("storages").len() <= 1);
    drop(p);
    until("no session is left", || b.rust_sessions().is_empty());
    b.nothing_is_held();
}

#[test]
#[ignore = "a process of another test"]
fn sleeper() {
    let Some((_s, _x)) = open() else { return };
    panic!("{}", Command::new("sleep").arg("1000").exec());
}

#[test]
fn another_program_in_its_place_has_no_session() {
    let Some(b) = Broker::start() else { return };
    let p = Process::start("sleeper", &b);
    let comm = format!("/proc/{}/comm", p.0.id());
    until("sleep runs", || std::fs::read_to_string(&comm).unwrap() == "sleep\n");
    until("the session is over", || b.rust_sessions().is_empty());
    b.nothing_is_held();
}

#[test]
#[ignore = "a process of another test"]
fn holder() {
    let Some((s, x)) = open() else { return };
    // Programs that run beside it.
    for _ in 0..10 {
        assert!(Command::new("true").status().unwrap().success());
    }
    say_and_wait();
    assert_eq!(x.to_vec::<u8>().unwrap(), [1, 2, 3, 4]);
    drop((s, x));
    say_and_wait();
}

#[test]
fn a_program_that_stands_still_keeps_its_session() {
    let Some(mut b) = Broker::start() else { return };
    let mut p = Process::start("holder", &b);
    let ours = b.session(); // which hands the broker's file over
    p.ready();
    p.signal(Signal::STOP);
    b.kill(); // so that its connection is lost, too
    b.restart();
    drop(b.session());
    until("this process is back", || ours.names("*").is_ok());
    for _ in 0..5 {
        drop(b.session()); // it closes after this thread
        until("this process's and that one's are left", || b.rust_sessions().len() == 2);
    }
    p.signal(Signal::CONT);
    until("it is back", || b.rust_sessions().iter().all(|s| s["state"] == "live"));
    assert_eq!(b.listed("storages").len(), 1);
    std::io::Write::write_all(p.0.stdin.as_mut().unwrap(), b"\n").unwrap();
    p.ready();
    until("it was dropped", || b.rust_sessions().len() == 1);
}

#[test]
#[ignore = "a process of another test"]
fn without_descriptors() {
    let Some((_s, x)) = open() else { return };
    let fds: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    // The list's own is closed already.
    let open = |fd: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
    // SAFETY: what the descriptors belonged to is never used again but for the tensor's bytes.
    fds.into_iter().filter(open).for_each(|fd| unsafe { rustix::io::close(fd) });
    // Programs that vfork starts: each has this process's memory until it execs, and none of it then.
    let beside = || Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut beside: Vec<_> = (0..3).map(|_| beside().unwrap()).collect();
    say_and_wait();
    assert_eq!(x.to_vec::<u8>().unwrap(), [1, 2, 3, 4]);
    beside.iter_mut().for_each(|p| {
        p.kill().unwrap();
        p.wait().unwrap();
    });
    print!("ready");
    std::process::exit(0);
}

#[test]
fn a_program_that_closed_its_descriptors_keeps_what_it_holds() {
    let Some(b) = Broker::start() else { return };
    let mut p = Process::start("without_descriptors", &b);
    p.ready();
    // The connection is lost, and made anew.
    for _ in 0..5 {
        drop(b.session()); // it closes after this thread
        until("that one's is left", || b.rust_sessions().len() == 1);
        assert_eq!(b.listed("storages").len(), 1);
    }
    until("it is back", || b.rust_sessions().iter().all(|s| s["state"] == "live"));
    std::io::Write::write_all(p.0.stdin.as_mut().unwrap(), b"\n").unwrap();
    p.ready();
    until("the session is over", || b.rust_sessions().is_empty());
}
