//! The shared files that a session maps: the broker's, its own, and its peers'.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwapOption;

use super::arriving::Restores;
use super::custody::Custody;
use super::file_key::FileKey;
use crate::error::{Code, Error, Result, disagree};
use crate::layout::{
    BROKER_SLOT, LAYOUT, MAGIC, bell_file, broker_file, file_head, lane_record, limits, role, session_file,
    session_record, state, topic_record,
};
use crate::ledger::{Chunks, Entries, Refcounts};
use crate::shm::{Bells, Region};
use crate::sys::{self, Mapping};
use crate::table::Table;
use crate::wire::ops::HelloReply;

/// Another session's file. It stays mapped as long as a lane or an attachment uses them.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) slot: u32,
    pub(crate) serial: u64,
    pub(crate) file: Region,
    pub(crate) refcounts: Refcounts,
    pub(crate) entries: Entries,
    /// Its name, for its receivers.
    pub(crate) sender: Box<str>,
}

/// What a session maps.
#[derive(Debug)]
pub(crate) struct SessionFiles {
    pub(crate) instance: String,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
    pub(crate) secret: String,
    pub(crate) quotas: [u64; 2], // of the session, of all
    pub(crate) broker_fd: OwnedFd,
    pub(crate) session_fd: Arc<OwnedFd>,
    pub(crate) custody: Custody,
    pub(crate) restores: Restores,
    pub(crate) bell_fd: OwnedFd,
    pub(crate) broker: Region,
    pub(crate) session: Region,
    pub(crate) bells: Bells,
    pub(crate) refcounts: Refcounts,
    pub(crate) entries: Entries,
    pub(crate) chunks: Chunks,
    by_slot: Table<ArcSwapOption<Peer>>,
    known: Mutex<HashMap<u64, Weak<Peer>>>, // by serial
}

/// Maps a shared file after checking that it has the size of the layout: a mapping longer than its
/// file ends in SIGBUS. Its head is not looked at: a process that may write the file may have spoiled it.
pub(crate) fn map_file(fd: &OwnedFd, bytes: u64, write: bool) -> Result<Region> {
    let size = sys::size_of(fd)?;
    if size < bytes {
        return Err(disagree(format!("a shared file has {size} bytes, not {bytes}")));
    }
    let map = Mapping::shared(fd, bytes as usize, write)?;
    if write {
        map.dont_fork()?;
    }
    Ok(Region::new(Arc::new(map)))
}

/// What people can read of a text of at most `bytes` bytes that ends with a zero.
pub(crate) fn text(r: &Region, at: u64, bytes: usize) -> String {
    let mut text = vec![0; bytes];
    r.read_bytes(at, &mut text);
    let end = text.iter().position(|c| *c == 0).unwrap_or(bytes);
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    String::from_utf8_lossy(&text[..end]).chars().map(printable).collect()
}

/// As [`map_file`], for a file that only the broker has written so far: refuses one of another layout.
fn map_fresh(fd: &OwnedFd, bytes: u64, write: bool, expected: u32) -> Result<Region> {
    let r = map_file(fd, bytes, write)?;
    let (magic, layout, role) = (r.load(file_head::MAGIC), r.load32(file_head::LAYOUT), r.load32(file_head::ROLE));
    if magic != MAGIC || layout != LAYOUT || role != expected {
        return Err(Error::new(
            Code::Version,
            "use broker and client of one version",
            format!(
                "shared file has magic {magic:#x}, layout {layout}, role {role}; expected layout {LAYOUT}, role {expected}"
            ),
        ));
    }
    Ok(r)
}

impl Peer {
    pub(crate) fn new(slot: u32, serial: u64, fd: &OwnedFd) -> Result<Peer> {
        Ok(Peer::of(slot, serial, map_file(fd, session_file::BYTES, false)?))
    }

    pub(super) fn of(slot: u32, serial: u64, file: Region) -> Peer {
        let (refcounts, entries) = (Refcounts::new(&file), Entries::new(&file));
        let sender = text(&file, session_file::SENDER, session_file::SENDER_BYTES).into();
        Peer { slot, serial, file, refcounts, entries, sender }
    }
}

impl SessionFiles {
    /// Whether the instance ended for good, so that no broker takes this session back.
    ///
    /// SYNC instance-ended: read while there is no connection.
    pub(crate) fn is_over(&self) -> bool {
        self.broker.load32(file_head::FLAGS) & broker_file::ENDED != 0
    }

    /// Whether a broker that was stopped has ended this session, which was not closed here.
    ///
    /// SYNC instance-ended: read while there is no connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.broker.load32(broker_file::session(self.slot) + session_record::STATE) == state::SESSION_CLOSED
            && self.session_serial(self.slot) == self.serial
    }

    /// Whether the session, which is closed, is so because an operator ended it and this client has had no
    /// notice of that: no broker may have been there to send one. The mark is set before the state, and cleared
    /// once the client has acknowledged the notice.
    ///
    /// SYNC instance-ended: read after the state.
    pub(crate) fn is_evicted(&self) -> bool {
        self.broker.load32(broker_file::session(self.slot) + broker_file::SESSION_EVICTED) == 1
    }

    /// Whether the broker has begun to evict the session: it sets the mark before it ends what the session takes part in,
    /// and clears it once this client has acknowledged the notice.
    pub(crate) fn is_being_evicted(&self) -> bool {
        self.is_evicted() && self.session_serial(self.slot) == self.serial
    }

    /// Tells the broker, of which no connection may be left, that this process allocates, recycles and counts up
    /// nothing in the session any more.
    ///
    /// SYNC session-lost: stored after the last of that.
    pub(crate) fn note_lost(&self) {
        self.session.store32(session_file::LOST, 1);
    }

    /// Whether a broker counts for what a lane of the session's own file names: it has adopted it, or lists
    /// it no more.
    ///
    /// SYNC lane-adopted: read before the lane's counts are dropped; the broker counts first.
    pub(crate) fn is_taken_over(&self, topic: u32, at: u64) -> bool {
        let live = |record: u64| {
            self.broker.load(record + lane_record::SERIAL) == self.serial
                && self.broker.load(record + lane_record::OFFSET) == at
                && self.broker.load32(record + lane_record::STATE) == state::LANE_LIVE
        };
        !self.lane_records(topic).any(live)
    }

    /// Where the records of a topic's lanes are; all that lie behind them are free.
    pub(crate) fn lane_records(&self, topic: u32) -> impl Iterator<Item = u64> + use<> {
        let end = self.broker.load32(broker_file::topic(topic) + topic_record::LANES_END);
        (0..end.min(limits::LANES)).map(move |n| broker_file::lane(topic, n))
    }

    /// Maps what came with the hello.
    pub(crate) fn open(h: HelloReply, fds: Vec<OwnedFd>) -> Result<SessionFiles> {
        let n = fds.len();
        let Ok([broker_fd, session_fd, bell_fd, their_fd]) = <[OwnedFd; 4]>::try_from(fds) else {
            return Err(disagree(format!("hello came with {n} descriptors, not 4")));
        };
        if h.slot == BROKER_SLOT || h.slot >= limits::SESSIONS {
            return Err(disagree(format!("hello gave the slot {}", h.slot)));
        }
        let broker = map_fresh(&broker_fd, broker_file::BYTES, false, role::BROKER)?;
        let session = map_fresh(&session_fd, session_file::BYTES, true, role::SESSION)?;
        let bells = Bells::new(map_file(&bell_fd, bell_file::BYTES, true)?);
        let (refcounts, entries) = (Refcounts::new(&session), Entries::new(&session));
        let files = SessionFiles {
            chunks: Chunks::new(&broker),
            by_slot: Table::new(limits::SESSIONS),
            known: Mutex::default(),
            instance: h.instance,
            slot: h.slot,
            serial: h.serial,
            secret: h.secret,
            quotas: [h.limits.session_bytes, h.limits.memory_bytes],
            broker_fd,
            session_fd: Arc::new(session_fd),
            custody: Custody::default(),
            restores: Restores::default(),
            bell_fd,
            broker,
            session,
            bells,
            refcounts,
            entries,
        };
        files.add(Peer::of(h.slot, h.serial, files.session.clone()));
        let serial = files.session_serial(BROKER_SLOT);
        files.add(Peer::new(BROKER_SLOT, serial, &their_fd)?);
        files.custody.keep(FileKey::Session(serial), their_fd);
        Ok(files)
    }

    /// Reserves the part of the session's own refcounts for a chunk, so that this process's container pays for it.
    pub(crate) fn reserve_refcounts(&self, chunk: u32) -> Result<()> {
        let n = u64::from(limits::CHUNK_INDICES) * 8;
        crate::sys::reserve(&self.session_fd, session_file::REFCOUNTS + u64::from(chunk) * n, n)
    }

    /// Whether the broker is suspended, as far as this process can look at it.
    pub(crate) fn broker_is_suspended(&self) -> bool {
        let at = broker_file::session(BROKER_SLOT);
        let (pid, start) =
            (self.broker.load32(at + session_record::PID), self.broker.load(at + session_record::START_TIME));
        i32::try_from(pid).is_ok_and(|pid| pid > 0 && sys::is_suspended(pid, start))
    }

    /// The serial of the session now in a slot.
    pub(crate) fn session_serial(&self, slot: u32) -> u64 {
        self.broker.load(broker_file::session(slot) + session_record::SERIAL)
    }

    /// The session now in a slot, if its file is mapped here.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<arc_swap::Guard<Option<Arc<Peer>>>> {
        let p = self.by_slot.get(slot)?.load();
        let serial = p.as_ref()?.serial;
        (serial == self.session_serial(slot)).then_some(p)
    }

    /// A session's file if it is mapped here.
    pub(crate) fn known(&self, slot: u32, serial: u64) -> Option<Arc<Peer>> {
        if let Some(in_slot) = self.by_slot.get(slot)
            && let Some(p) = in_slot.load().as_ref()
            && p.serial == serial
        {
            return Some(p.clone());
        }
        self.known.lock().unwrap_or_else(|p| p.into_inner()).get(&serial)?.upgrade()
    }

    /// Keeps a session's file: as long as it is used, and in its slot if it is the one there. Those that are
    /// kept are others where two threads have asked for them.
    pub(crate) fn add(&self, p: Peer) -> Arc<Peer> {
        let mut known = self.known.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(kept) = known.get(&p.serial).and_then(Weak::upgrade) {
            return kept;
        }
        let p = Arc::new(p);
        known.retain(|_, w| w.strong_count() > 0);
        known.insert(p.serial, Arc::downgrade(&p));
        if self.session_serial(p.slot) == p.serial {
            self.by_slot.at(p.slot).store(Some(p.clone()));
        }
        p
    }

    /// Lets go of sessions that are over while their slots have no other. What uses one keeps its file.
    pub(crate) fn forget_ended(&self) {
        let mut known = self.known.lock().unwrap_or_else(|p| p.into_inner());
        for (slot, kept) in self.by_slot.iter() {
            let over = |p: &Arc<Peer>| p.serial != self.serial && p.serial != self.session_serial(slot);
            if kept.load().as_ref().is_some_and(over) {
                kept.store(None);
            }
        }
        known.retain(|_, w| w.strong_count() > 0);
    }

    /// The descriptor of a session's file, where there is one here.
    pub(crate) fn file_of(&self, serial: u64) -> Option<Arc<OwnedFd>> {
        if serial == self.serial { Some(self.session_fd.clone()) } else { self.custody.get(FileKey::Session(serial)) }
    }

    /// Every session whose file is mapped here, this session too.
    pub(crate) fn all_peers(&self) -> Vec<Arc<Peer>> {
        let known = self.known.lock().unwrap_or_else(|p| p.into_inner());
        known.values().filter_map(Weak::upgrade).collect()
    }
}
