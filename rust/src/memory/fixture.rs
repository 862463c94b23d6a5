//! The memory of a session for tests of its own and of higher layers: over files that a test has made, and a link whose
//! broker is the test.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde_json::json;

use super::{Access, Beside, Memory, SessionFiles};
use crate::layout::{
    BROKER_SLOT, LAYOUT, MAGIC, bell_file, broker_file, chunk_record, file_head, limits, role, segment_record,
    session_file, session_record,
};
use crate::link::{Client, fixture};
use crate::message::Ref;
use crate::shm::Region;
use crate::sys::Mapping;

pub(crate) const SLOT: u32 = 3;
pub(crate) const SERIAL: u64 = 7;
pub(super) const CHUNK: u32 = 5;
pub(super) const GRANT: u64 = 9;
const SEGMENT: u32 = 2;
pub(super) const SEGMENT_SERIAL: u64 = 11;
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
pub(crate) fn access() -> (Access, fixture::Broker, Files) {
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
    let (link, answers) = fixture::link(&files.bells, SLOT);
    let memory = Memory::new(files, link.waiter.parking.clone(), Vec::new(), no_devices, false);
    let files = Files { broker, segment: file(BYTES, None).0 };
    files.list(GRANT);
    (Access::new(Client::new(link), Arc::new(memory), None), answers, files)
}

impl Files {
    /// Lists a chunk, whose owner the session itself is, and its segment.
    pub(super) fn list(&self, grant: u64) {
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

/// Attaches the session to the chunk, which it asks for.
pub(crate) fn answer_attach(broker: &mut fixture::Broker, files: &Files) {
    let request = broker.next();
    assert_eq!((request["op"].as_str(), request["chunks"][0]["chunk"].as_u64()), (Some("attach"), Some(5)));
    let chunks = json!([{"segment": SEGMENT, "segment_serial": SEGMENT_SERIAL, "bytes": BYTES}]);
    broker.answer(&request, &json!({ "chunks": chunks }), &[files.segment.as_fd()]);
}

/// A storage of the chunk that is listed.
pub(crate) fn storage() -> Ref {
    Ref { serial: GRANT, generation: 1, index: CHUNK * limits::CHUNK_INDICES }
}
