//! The layer alone, over files that a test has made, whose broker is the test.

use std::sync::Arc;

use super::Access;
use super::fixture::{CHUNK, Files, GRANT, SEGMENT_SERIAL, access, answer_attach, storage};
use crate::error::Code;
use crate::layout::{session_file, storage_entry};
use crate::link::fixture::Broker;
use crate::message::Ref;

/// Has a thread hold a storage, while the test attaches it.
fn attach(access: &Arc<Access>, broker: &mut Broker, files: &Files, r: Ref) {
    let holds = std::thread::spawn({
        let access = access.clone();
        move || access.hold(r).map(|_| ())
    });
    answer_attach(broker, files);
    holds.join().unwrap().unwrap();
}

#[test]
fn a_chunk_is_asked_for_once_and_counts_keep_it() {
    let (access, mut broker, files) = access();
    let (access, r) = (Arc::new(access), storage());
    attach(&access, &mut broker, &files, r);
    let memory = &access.memory;
    let at = access.hold(r).unwrap(); // without a request: no broker would answer
    assert_eq!(memory.files.refcounts.count(r.index), 2);
    assert!(at.own && memory.counts_any());
    memory.files.entries.set_generation(r.index, 1);
    let entry = session_file::ENTRIES + u64::from(r.index) * storage_entry::SIZE;
    memory.files.session.store(entry + storage_entry::BYTES, 256);
    let held = at.locate(r).unwrap();
    assert!(!held.address(false).unwrap().is_null() && held.bytes == 256);
    memory.trim(&[SEGMENT_SERIAL]);
    assert!(!memory.attached.has(CHUNK, GRANT) && memory.counts_any());
    assert!(!held.address(false).unwrap().is_null(), "what is counted stays mapped");
    memory.let_go(r.index, true);
    memory.let_go(r.index, true);
    assert!(!memory.counts_any());
}

#[test]
fn a_chunk_that_was_given_back_cannot_be_had() {
    let (access, _broker, files) = access();
    files.list(GRANT + 1);
    assert_eq!(access.hold(storage()).unwrap_err().code(), Code::Expired);
    assert_eq!(access.memory.files.refcounts.count(storage().index), 0);
}

#[test]
fn nothing_is_counted_for_a_closed_opening() {
    let (access, mut broker, files) = access();
    let access = Arc::new(access);
    attach(&access, &mut broker, &files, storage());
    access.closed.set();
    assert_eq!(access.hold(storage()).unwrap_err().code(), Code::Closed);
    assert_eq!(access.memory.files.refcounts.count(storage().index), 1);
}

#[test]
fn waiting_for_memory_ends_when_a_storage_is_let_go() {
    let (access, mut broker, files) = access();
    let (access, r) = (Arc::new(access), storage());
    attach(&access, &mut broker, &files, r);
    let drops = std::thread::spawn({
        let access = access.clone();
        move || access.memory.let_go(r.index, true)
    });
    let full = || match access.memory.files.refcounts.count(r.index) {
        0 => Ok(()),
        _ => Err(crate::error::Error::new(Code::OutOfMemory, "", "full")),
    };
    access.wait_for_memory(None, full).unwrap();
    drops.join().unwrap();
}
