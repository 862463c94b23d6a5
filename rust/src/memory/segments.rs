//! Segments: what the broker grants, what peers own, and what it takes back.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Access;
use super::arriving::Arriving;
use super::attach::Attachment;
use super::file_key::FileKey;
use super::session_files::Peer;
use crate::crash_point;
use crate::cuda::{Slab, driver};
use crate::error::{Code, Error, Result, disagree};
use crate::layout::{broker_file, limits, segment_record, session_file, storage_entry};
use crate::ledger::{Grant, Holders, Refcounts, Source};
use crate::link::{Broker, Client};
use crate::shm::Segment;
use crate::sys;
use crate::turns::{Turn, Turnstile};
use crate::wire::ops::{
    ChunkGrant, ChunksReply, ChunksRequest, GrantReply, GrantRequest, Ignored, PeerAnswer, PeerReply, PeerRequest,
    PeerSession, ReturnRequest, SegmentReply, SegmentRequest,
};

fn one(op: &str, fds: Vec<OwnedFd>) -> Result<OwnedFd> {
    let n = fds.len();
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([fd]) => Ok(fd),
        Err(_) => Err(disagree(format!("{op} came with {n} descriptors, not 1"))),
    }
}

/// What precedes a GPU's UUID in the name by which brokers know it.
pub(crate) const CUDA: &str = "cuda:";

impl Access {
    /// The files of sessions, which are named by serial and slot: of each, or why they cannot be mapped. A broker
    /// is asked for those that are not mapped here yet, with as few requests as may be.
    pub(crate) fn peers(&self, of: Broker, sessions: BTreeMap<u64, u32>) -> Result<HashMap<u64, Result<Arc<Peer>>>> {
        let (mut all, mut lacking) = (HashMap::with_capacity(sessions.len()), Vec::new());
        for (serial, slot) in sessions {
            match self.memory.files.known(slot, serial) {
                Some(p) => drop(all.insert(serial, Ok(p))),
                None => lacking.push(PeerSession { slot, serial }),
            }
        }
        for some in lacking.chunks(limits::PEERS) {
            all.extend(some.iter().map(|s| s.serial).zip(self.ask_peers(of, some)?));
        }
        Ok(all)
    }

    /// As `peers`, of at most [`PEERS`](limits::PEERS), in their order, with one request.
    fn ask_peers(&self, of: Broker, sessions: &[PeerSession]) -> Result<Vec<Result<Arc<Peer>>>> {
        if let Some(s) = sessions.iter().find(|s| s.slot >= limits::SESSIONS) {
            return Err(disagree(format!("no session slot {}", s.slot)));
        }
        let before = self.arriving();
        let asked = self.call_of::<_, PeerReply>(of, "peer", &PeerRequest { sessions }, &[]);
        let files = || sessions.iter().map(|s| FileKey::Session(s.serial));
        let (ok, fds) = asked.inspect_err(|e| self.lacks(e, files()))?;
        let files = ok.sessions.iter().filter(|a| a.error.is_none()).count();
        if ok.sessions.len() != sessions.len() || files != fds.len() {
            let (n, answers) = (fds.len(), ok.sessions.len());
            return Err(disagree(format!(
                "peer answered for {answers} sessions, not {}, with {n} descriptors",
                sessions.len()
            )));
        }
        let mut fds = fds.into_iter();
        let peer = |(s, answer): (&PeerSession, PeerAnswer)| match answer.error {
            Some(e) => Err(e.into()),
            None => {
                let fd = fds.next().ok_or_else(|| disagree("peer came with too few descriptors"))?;
                let peer = Peer::new(s.slot, s.serial, &fd)?;
                if answer.custody {
                    self.keep_new(FileKey::Session(s.serial), fd, before);
                }
                Ok(self.memory.files.add(peer))
            }
        };
        Ok(sessions.iter().zip(ok.sessions).map(peer).collect())
    }

    /// A segment that can be mapped for a use, asking the broker for a descriptor if need be.
    pub(crate) fn segment(&self, index: u32, serial: u64, write: bool) -> Result<Arc<Segment>> {
        if let Some(s) = self.memory.segments().get(&serial).filter(|s| s.has(write)) {
            return Ok(s.clone());
        }
        let (request, before) = (SegmentRequest { segment: index, serial, write }, self.arriving());
        let asked = self.call_fds::<_, SegmentReply>("segment", &request);
        let (ok, fds) = asked.inspect_err(|e| self.lacks(e, std::iter::once(FileKey::Segment(serial))))?;
        let fd = one("segment", fds)?;
        if !ok.device.is_empty() {
            let s = Arc::new(self.device_segment(index, serial, &ok, fd)?);
            return Ok(self.memory.segments().entry(serial).or_insert(s).clone());
        }
        let s = self.memory.map_given(index, serial, ok.bytes, &fd, write)?;
        if ok.custody {
            self.keep_new(FileKey::Segment(serial), fd, before);
        }
        Ok(s)
    }

    /// The segment of another session on a device, from the broker's answer. An error says that this
    /// process cannot reach it; others may.
    fn device_segment(&self, index: u32, serial: u64, ok: &SegmentReply, fd: OwnedFd) -> Result<Segment> {
        let uuid = ok.device.strip_prefix(CUDA).unwrap_or_default();
        let device = driver().and_then(|d| d.by_uuid(uuid)).map_err(|e| {
            Error::new(e.code(), e.remedy(), format!("memory on {}: {}", ok.device, e.message()))
                .with("device", &*ok.device)
        })?;
        self.memory.beside_or_new(); // a send looks for an order where there are any
        let slab = if ok.borrowed { Slab::to_borrow } else { Slab::to_import };
        Ok(Segment::on_device(index, serial, fd, slab(device, ok.device_id, ok.bytes)))
    }

    /// Makes sure that a segment has a descriptor for a use, for callers that need more than its mappings: where
    /// it was closed the broker is asked for another, which stays.
    pub(crate) fn open_file(&self, s: &Segment, write: bool) -> Result<()> {
        if s.has_file(write) {
            return Ok(());
        }
        let request = SegmentRequest { segment: s.index, serial: s.serial, write };
        let (_, fds) = self.call_fds::<_, SegmentReply>("segment", &request)?;
        s.give(one("segment", fds)?, write)
    }

    /// Asks the broker for a segment that is known, for the sake of an answer.
    pub(crate) fn ask_for(&self, s: &Segment) {
        let request = SegmentRequest { segment: s.index, serial: s.serial, write: false };
        // What it says is of no matter.
        let _ = self.call_fds::<_, SegmentReply>("segment", &request);
    }

    /// As `know`, of a segment that was granted in answer to a request.
    pub(crate) fn know_new(&self, s: &Arc<Segment>, before: Arriving) {
        self.memory.know(s);
        if let Some(fd) = s.fd() {
            self.arrived(before, FileKey::Segment(s.serial), fd.as_fd());
        }
    }

    /// Makes sure that a segment can be written here.
    pub(crate) fn writable(&self, s: &Segment) -> Result<()> {
        if s.mapped(true).is_some() || s.has(true) {
            return Ok(());
        }
        self.segment(s.index, s.serial, true).map(|_| ())
    }

    /// Looks what the broker has taken back: segments of others that are mapped here and recorded no more, and the
    /// files of sessions that are over. Then it hands over what the broker may lack.
    pub(crate) fn compare_memory(&self) {
        let recorded =
            |s: &Segment| self.memory.files.broker.load(broker_file::segment(s.index) + segment_record::SERIAL);
        let mut gone: Vec<u64> =
            self.memory.segments().values().filter(|s| recorded(s) != s.serial).map(|s| s.serial).collect();
        if !gone.is_empty() {
            // What this session gives back itself is the pool's until the broker has answered.
            let own = self.memory.attached.own();
            gone.retain(|serial| !own.contains(serial));
            gone.iter().for_each(|serial| self.memory.files.custody.let_go(FileKey::Segment(*serial)));
            self.memory.trim(&gone);
        }
        self.memory.files.forget_ended();
        self.hand_over_owed();
        if self.memory.strays.load(Ordering::Acquire) {
            self.return_strays();
        }
    }

    /// Gives back the segments that the broker has granted to this session and that are not known here: the
    /// answer was lost with a connection. It waits for no grant; the next comparison tries again.
    fn return_strays(&self) {
        let stray: Vec<ReturnRequest> = {
            let Ok(_none) = self.memory.granting.try_write() else { return };
            self.memory.strays.store(false, Ordering::Release);
            let (known, broker) = (self.memory.segments(), &self.memory.files.broker);
            let stray = |segment: u32| {
                let at = broker_file::segment(segment);
                let serial = broker.load(at + segment_record::SERIAL);
                let own = serial != 0 && broker.load(at + segment_record::OWNER_SERIAL) == self.memory.files.serial;
                (own && !known.contains_key(&serial)).then_some(ReturnRequest { segment, serial })
            };
            let end = broker.load32(broker_file::SEGMENTS_END);
            (0..end.min(limits::SEGMENTS)).filter_map(stray).collect()
        };
        for request in stray {
            // Where the broker goes away before it has answered, the next one is compared with. One that is
            // being undone already is not found the second time.
            let _ = self.call_of::<_, Ignored>(Broker::This, "return", &request, &[]);
        }
    }

    /// Reserves the entries of new chunks and attaches this session to them; the broker has set its
    /// bit already.
    pub(crate) fn prepare(&self, segment: &Arc<Segment>, chunks: &[ChunkGrant]) -> Result<Vec<(u32, u64)>> {
        // A session that was closed meanwhile is over for the broker, and its chunks with it.
        let wrong = |what: String| self.check_open().err().unwrap_or_else(|| disagree(what));
        let own = self.memory.files.known(self.memory.files.slot, self.memory.files.serial);
        let own = own.ok_or_else(|| wrong("own files are gone".into()))?;
        for k in chunks {
            let listed = self.memory.files.chunks.load(k.chunk);
            let listed = listed.filter(|c| c.serial == k.serial && c.segment_serial == segment.serial);
            let listed = listed.ok_or_else(|| wrong(format!("chunk {} was granted and is not listed", k.chunk)))?;
            let n = u64::from(limits::CHUNK_INDICES) * storage_entry::SIZE;
            sys::reserve(&self.memory.files.session_fd, session_file::ENTRIES + u64::from(k.chunk) * n, n)?;
            if self.memory.traces {
                let n = u64::from(limits::CHUNK_INDICES) * session_file::TRACE_BYTES as u64;
                sys::reserve(&self.memory.files.session_fd, session_file::TRACES + u64::from(k.chunk) * n, n)?;
            }
            segment.note_chunk(k.chunk);
            let a = Attachment::new(listed, &own, segment.clone(), true)?;
            self.memory.attached.put(k.chunk, Some(a), &self.memory.files.refcounts);
        }
        Ok(chunks.iter().map(|k| (k.chunk, k.serial)).collect())
    }

    /// Asks for a segment in huge pages of a size, or without one in the machine's usual ones.
    pub(crate) fn grant_in(&self, bytes: u64, chunks: u32, page_bytes: Option<u64>, fallback: bool) -> Result<Grant> {
        let (_granting, before) = (self.memory.granting(), self.arriving());
        let free = if page_bytes.is_none() { sys::free_memory() } else { None };
        let request = GrantRequest { bytes, chunks, free, device: None, borrowed: false, page_bytes, fallback };
        let (ok, fds) = self.call_fds::<_, GrantReply>("grant", &request)?;
        crash_point::at("grant-received");
        self.map_grant(&ok, fds, page_bytes.is_some(), before).inspect_err(|_| {
            let _ =
                self.call::<_, Ignored>("return", &ReturnRequest { segment: ok.segment, serial: ok.segment_serial });
        })
    }

    fn map_grant(&self, ok: &GrantReply, fds: Vec<OwnedFd>, huge: bool, before: Arriving) -> Result<Grant> {
        let segment = Arc::new(Segment::new(ok.segment, ok.segment_serial, ok.bytes, one("grant", fds)?, true)?);
        segment.reserve().map_err(|e| match e.code() {
            Code::OutOfMemory if huge => Error::new(
                Code::OutOfMemory,
                "reserve more huge pages (sysctl vm.nr_hugepages), raise the container's limit of them, or leave them out",
                e.message(),
            ),
            _ => e,
        })?;
        crash_point::at("grant-reserved");
        segment.region(true)?.populate()?;
        let chunks = self.prepare(&segment, &ok.chunks)?;
        crash_point::at("grant-prepared");
        self.know_new(&segment, before);
        Ok(Grant { segment, chunks })
    }
}

impl Holders for Access {
    /// What is not mapped is asked for in the background, and counts as held until it is here.
    fn refcounts(&self, slot: u32) -> Option<Refcounts> {
        if let Some(p) = self.memory.files.in_slot(slot) {
            return p.as_ref().map(|p| p.refcounts.clone());
        }
        match self.memory.files.session_serial(slot) {
            0 => {}
            serial => self.thread.want_peer(serial, slot),
        }
        None
    }
}

impl Source for Access {
    fn turn<'a>(&self, of: &'a Turnstile<()>) -> Result<Turn<'a, ()>> {
        Client::turn(self, of)
    }

    /// Asks the broker for a segment and reserves its pages here, so that this process's container
    /// pays and a full memory is an error now, not a SIGBUS later.
    fn grant(&self, bytes: u64, chunks: u32, fallback: bool) -> Result<Grant> {
        self.grant_in(bytes, chunks, None, fallback)
    }

    fn more_chunks(&self, segment: &Arc<Segment>, count: u32) -> Result<Vec<(u32, u64)>> {
        let ok: ChunksReply = self.call("chunks", &ChunksRequest { segment: segment.index, count })?;
        crash_point::at("chunks-received");
        self.prepare(segment, &ok.chunks)
    }

    fn give_back(&self, segment: &Arc<Segment>) -> bool {
        crash_point::at("return-before");
        let request = ReturnRequest { segment: segment.index, serial: segment.serial };
        let refused = self.call::<_, Ignored>("return", &request).err().map(|e| e.code());
        crash_point::at("return-done");
        match refused {
            Some(Code::Busy) => return false,
            // The answer of a broker may be lost with it, and where the next one is asked the segment is not found.
            None | Some(Code::NotFound) => {}
            // It may be gone: nothing is to be allocated in it. If not, the next comparison gives it back.
            Some(_) => self.memory.strays.store(true, Ordering::Release),
        }
        self.memory.trim(&[segment.serial]);
        true
    }
}
