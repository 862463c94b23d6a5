//! What safe code alone can try: programs that once wrote the memory of others, or left memory behind.

#![forbid(unsafe_code)]

mod kit;

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use baton::dlpack::ExportOptions;
use baton::{Code, Start};
use kit::{Broker, part_session, until};

/// `Tensor::file` is unsafe, as the example that must not compile shows; the only descriptor that safe code is given is
/// one to be polled.
#[test]
fn no_descriptor_of_a_session_reaches_the_memory_of_a_tensor() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let mut owned = s.alloc::<f32>(&[1024]).unwrap();
    owned.fill(1.0);
    let other = s.zeros::<f32>(&[1024]).unwrap().freeze();
    let view: &[f32] = &owned;
    let mut given = File::from(s.poll_fd().unwrap().try_clone_to_owned().unwrap());
    for _ in 0..64 {
        let _ = given.write(&0x41u64.to_ne_bytes());
    }
    assert!(std::hint::black_box(view).iter().all(|v| *v == 1.0));
    assert!(other.to_vec::<f32>().unwrap().iter().all(|v| *v == 0.0));
    assert_eq!(other.to_read_only().to_dlpack_legacy(ExportOptions::default()).unwrap_err().code(), Code::ReadOnly);
}

/// The result of an export owns it: one that is not used is given back at once.
#[test]
fn an_export_that_is_not_used_leaves_nothing() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    for _ in 0..10 {
        let x = s.zeros::<f32>(&[1 << 18]).unwrap().freeze();
        let _ = x.to_dlpack(ExportOptions::default()).unwrap();
        drop(x.to_dlpack_legacy(ExportOptions::default()).unwrap());
    }
    b.nothing_is_held();
}

const LEFT: &str = "BATON_TEST_LEFT";
const TIMES: u32 = 5;

#[test]
#[ignore = "a process of another test"]
fn in_place() {
    let Some(s) = part_session() else { return };
    let _x = s.zeros::<u8>(&[64 << 20]).unwrap().freeze();
    let left: u32 = std::env::var(LEFT).map_or(TIMES, |n| n.parse().unwrap());
    if left > 0 {
        let mut again = Command::new(std::env::current_exe().unwrap());
        panic!("{}", again.args(std::env::args_os().skip(1)).env(LEFT, (left - 1).to_string()).exec());
    }
    let mut end = s.topic("end").unwrap().reader(Start::All).unwrap();
    s.topic("up").unwrap().send(s.from_slice(&[1], &[TIMES]).unwrap().freeze()).unwrap();
    let _ = end.recv(Duration::from_secs(90));
}

/// As reloaders and launchers do.
#[test]
fn a_program_that_restarts_itself_in_place_leaves_no_memory() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let mut up = s.topic("up").unwrap().reader(Start::New).unwrap();
    let mut p = b.part("in_place").spawn().unwrap();
    drop(up.recv(Duration::from_secs(90)).unwrap());
    // Its own of this life, and the message.
    until("what the lives before held is free", || b.listed("storages").len() <= 2);
    until("two sessions are left", || b.rust_sessions().len() == 2);
    s.topic("end").unwrap().send(s.zeros::<u8>(&[1]).unwrap().freeze()).unwrap();
    assert!(p.wait().unwrap().success());
}
