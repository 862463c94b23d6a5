//! The memory of a session for tests of its own and of higher layers: over files that a test has made, and a link whose
//! broker is the test.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde_json::json;

use super::{Access, Beside, Memory, SessionFiles};
use crate::error::Code;
use crate::layout::{
    BROKER_SLOT, LAYOUT, MAGIC, bell_file, broker_file, chunk_record, file_head, limits, role, segment_record,
    session_file, session_record, storage_entry,
};
use crate::link::{Client, alone};
use crate::message::Ref;
use crate::shm::Region;
use crate::sys::Mapping;

pub(crate) const SLOT: u32 = 3;
pub(crate) const SERIAL: u64 = 7;
const CHUNK: u32 = 5;
const GRANT: u64 = 9;
const SEGMENT: u32 = 2;
const SEGMENT_SERIAL: u64 = 11;
const BYTES: u64 = 1 << 20;

/// The files of a broker.
pub(crate) struct Files {
    pub(crate) broker: Region,
    segment: OwnedFd,
}

fn file(bytes: u64, head: Option<u32>) -> (OwnedFd, Region) {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, bytes).unwrap();
    let region = Region::new(Arc::new(Mapping::shared(&fd, bytes as usize, true).unwrap()));
    if let Some(role) = head {
        region.store(file_head::MAGIC, MAGIC);
        region.store32(file_head::LAYOUT, LAYOUT);
        region.store32(file_head::ROLE, role);
    }
    (fd, region)
}

fn no_devices() -> Box<dyn Beside> {
    panic!("nothing is on a device")
}

/// An opening's memory.
pub(crate) fn access() -> (Access, alone::Broker, Files) {
    let (broker_fd, broker) = file(broker_file::BYTES, Some(role::BROKER));
    for (slot, serial) in [(SLOT, SERIAL), (BROKER_SLOT, 1)] {
        broker.store(broker_file::session(slot) + session_record::SERIAL, serial);
    }
    let (session_fd, _) = file(session_file::BYTES, Some(role::SESSION));
    let (bell_fd, _) = file(bell_file::BYTES, None);
    let (their_fd, _) = file(session_file::BYTES, Some(role::SESSION));
    let hello = json!({"protocol": 1, "layout": LAYOUT, "instance": "i", "slot": SLOT, "serial": SERIAL});
    let fds = vec![broker_fd, session_fd, bell_fd, their_fd];
    let files = SessionFiles::open(serde_json::from_value(hello).unwrap(), fds).unwrap();
    let (link, answers) = alone::link(&files.bells, SLOT);
    let memory = Memory::new(files, link.waiter.parking.clone(), Vec::new(), no_devices, false);
    let files = Files { broker, segment: file(BYTES, None).0 };
    files.list(GRANT);
    (Access::new(Client::new(link), Arc::new(memory), None), answers, files)
}

impl Files {
    /// Lists a chunk, whose owner the session itself is, and its segment.
    fn list(&self, grant: u64) {
        let (chunk, segment) = (broker_file::chunk(CHUNK), broker_file::segment(SEGMENT));
        self.broker.store32(broker_file::CHUNKS_END, CHUNK + 1);
        self.broker.store32(broker_file::SEGMENTS_END, SEGMENT + 1);
        self.broker.store(chunk + chunk_record::SERIAL, grant);
        self.broker.store(chunk + chunk_record::OWNER_SERIAL, SERIAL);
        self.broker.store32(chunk + chunk_record::OWNER, SLOT);
        self.broker.store32(chunk + chunk_record::SEGMENT, SEGMENT);
        self.broker.store(chunk + chunk_record::BYTES, BYTES);
        self.broker.store(chunk + chunk_record::SEGMENT_SERIAL, SEGMENT_SERIAL);
        self.broker.store(segment + segment_record::SERIAL, SEGMENT_SERIAL);
        self.broker.store32(segment + segment_record::DEVICE_TYPE, 1);
    }
}

/// Has a thread hold a storage, while the test attaches it.
fn attach(access: &Arc<Access>, broker: &mut alone::Broker, files: &Files, r: Ref) {
    let holds = std::thread::spawn({
        let access = access.clone();
        move || access.hold(r).map(|_| ())
    });
    answer_attach(broker, files);
    holds.join().unwrap().unwrap();
}

/// Attaches the session to the chunk, which it asks for.
pub(crate) fn answer_attach(broker: &mut alone::Broker, files: &Files) {
    let request = broker.next();
    assert_eq!((request["op"].as_str(), request["chunks"][0]["chunk"].as_u64()), (Some("attach"), Some(5)));
    let chunks = json!([{"segment": SEGMENT, "segment_serial": SEGMENT_SERIAL, "bytes": BYTES}]);
    broker.answer(&request, &json!({ "chunks": chunks }), &[files.segment.as_fd()]);
}

/// A storage of the chunk that is listed.
pub(crate) fn storage() -> Ref {
    Ref { serial: GRANT, generation: 1, index: CHUNK * limits::CHUNK_INDICES }
}

#[test]
fn a_chunk_is_asked_for_once_and_counts_keep_it() {
    let (access, mut broker, files) = access();
    let (access, r) = (Arc::new(access), storage());
    attach(&access, &mut broker, &files, r);
    let memory = &access.memory;
    let at = access.hold(r).unwrap(); // without a request: no broker would answer
    assert_eq!(memory.files.row.count(r.index), 2);
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
    assert_eq!(access.memory.files.row.count(storage().index), 0);
}

#[test]
fn nothing_is_counted_for_a_closed_opening() {
    let (access, mut broker, files) = access();
    let access = Arc::new(access);
    attach(&access, &mut broker, &files, storage());
    access.closed.set();
    assert_eq!(access.hold(storage()).unwrap_err().code(), Code::Closed);
    assert_eq!(access.memory.files.row.count(storage().index), 1);
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
    let full = || match access.memory.files.row.count(r.index) {
        0 => Ok(()),
        _ => Err(crate::error::Error::new(Code::OutOfMemory, "", "full")),
    };
    access.wait_for_memory(None, full).unwrap();
    drops.join().unwrap();
}
