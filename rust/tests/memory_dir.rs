//! Memory in files of a directory (`--memory-dir`).

mod kit;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton::bindings::layout::session_file;
use baton::{Code, Payload, Start, Topic, TopicOptions};
use kit::{Broker, Dir, FullDir, until};

/// Files of that name below a folder.
fn find(folder: &Path, name: &str) -> Vec<PathBuf> {
    let inside = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    inside
        .flat_map(|p| if p.is_dir() { find(&p, name) } else { Vec::from_iter(p.ends_with(name).then_some(p)) })
        .collect()
}

/// Whether the bytes stand in the first lanes of a session's file.
fn contains(file: &File, what: &[u8]) -> bool {
    let mut lanes = vec![0; 64 << 10];
    file.read_exact_at(&mut lanes, session_file::LANES).unwrap();
    lanes.windows(what.len()).any(|w| w == what)
}

/// A reader that comes late would end with SIGBUS at a hole in a file system that has become full.
#[test]
fn place_of_a_lane_that_was_left_reads_as_empty_and_keeps_its_pages() {
    let dir = Dir::new();
    let Some(b) = Broker::start_with(&["--memory-dir", dir.path().to_str().unwrap()]) else { return };
    let s = b.session();
    let files = find(dir.path(), &format!("session-{}", s.serial()));
    assert_eq!(files.len(), 1, "{files:?}");
    let file = File::open(&files[0]).unwrap();
    let brief = TopicOptions::default().linger(Duration::from_millis(1));
    let send = |to: &Topic, name: &str| {
        to.send(Payload::named([(name, s.from_slice(&[2], &[1.0f32, 2.0]).unwrap().freeze())])).unwrap();
    };
    let left = s.topic_with("left", &brief).unwrap();
    send(&left, "here-it-lay");
    send(&left, "here-it-lay");
    assert!(contains(&file, b"here-it-lay"));
    let before = file.metadata().unwrap().blocks();
    drop(left);
    until("the place is empty", || !contains(&file, b"here-it-lay"));
    assert!(file.metadata().unwrap().blocks() >= before, "it lost its pages");

    let next = s.topic("next").unwrap();
    send(&next, "there");
    let mut reader = b.session().topic("next").unwrap().reader(Start::All).unwrap();
    assert_eq!(reader.recv(Duration::from_secs(90)).unwrap().sequence(), 1);
    assert!(reader.try_recv().unwrap().is_none(), "a message of the former lane");
}

/// What has not become a lane has no pages that could be cleared: a store there would be SIGBUS.
#[test]
fn a_first_send_is_refused_where_the_file_system_is_full() {
    let Some(dir) = FullDir::new(32 << 20) else { return };
    let memory = dir.path().join("memory");
    let Some(b) = Broker::start_with(&["--memory-dir", memory.to_str().unwrap()]) else { return };
    let s = b.session();
    let x = s.from_slice(&[2], &[1.0f32, 2.0]).unwrap().freeze();
    let topic = s.topic("t").unwrap();
    dir.leave(0);
    assert_eq!(topic.send(&x).unwrap_err().code(), Code::OutOfMemory);
    dir.leave(1 << 20);
    topic.send(&x).unwrap();
    let mut reader = b.session().topic("t").unwrap().reader(Start::All).unwrap();
    assert_eq!(reader.recv(Duration::from_secs(90)).unwrap().sequence(), 1);
}
