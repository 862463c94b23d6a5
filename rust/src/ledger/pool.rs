//! Hands out and recycles the storages of one session. It recycles when it allocates: storages whose
//! own count fell to zero are tested oldest first, and stay mapped and warm for the next tensor of
//! their size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::classes::{bin_of, class_of};
use super::drops::Drops;
use super::ranges::Ranges;
use super::waiting::{BATCH, Waiting};
use super::{Entries, FreeTest, Grant, Holders, Refcounts, Source};
use crate::crash_point;
use crate::error::{Code, Error, Result, closed};
use crate::layout::{PAGE, limits};
use crate::message::Ref;
use crate::shm::Segment;
use crate::sys;
use crate::table::Table;
use crate::turns::Turnstile;

/// Slab sizes: the first is small so that a small program stays small, and a small quota serves many;
/// each further one is as large as all before together.
const MIN_SLAB: u64 = 64 << 10;
const FIRST_SLAB: u64 = 4 << 20;
const SLABS_IN_QUOTA: u64 = 64;
pub(super) const MAX_SLAB: u64 = 256 << 20;
/// Bytes that a storage may have.
const MOST: u64 = 1 << 52;
/// How long after an allocation its slab stays when the broker wants memory back.
const WORKING: Duration = Duration::from_secs(1);
/// How long an allocation waits while the pool is paused.
const PAUSED: Duration = Duration::from_secs(30);
/// Refcount words in a cache line.
const LINE_WORDS: u32 = 8;

/// A range of a segment that was handed out.
#[derive(Debug, Clone)]
pub(crate) struct Storage {
    pub(crate) reference: Ref,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// What a pool has and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of the segments that the broker granted.
    pub granted: u64,
    /// Storages handed out and not yet found free.
    pub live: u64,
    /// Storages ready for reuse.
    pub warm: u64,
    /// Storages found free so far.
    pub recycled: u64,
    /// Free tests made.
    pub tests: u64,
}

impl PoolStats {
    /// Adds what another pool has and did.
    pub(crate) fn add(&mut self, other: &PoolStats) {
        self.granted += other.granted;
        self.live += other.live;
        self.warm += other.warm;
        self.recycled += other.recycled;
        self.tests += other.tests;
    }
}

#[derive(Debug, Default, Clone)]
struct Record {
    serial: u64,
    generation: u64,
    offset: u64,
    capacity: u64, // bytes taken from the slab; 0: the index alone is free
    slab: usize,
    queued: bool,
    /// Handed out and not found free since. A late taker that counts up and down again may bring
    /// news of a drop when the storage is free already: it must not come into its bin twice.
    out: bool,
}

#[derive(Debug)]
pub(super) struct Slab {
    pub(super) segment: Arc<Segment>,
    pub(super) free: Ranges,
    pub(super) indices: Vec<u32>, // without memory
    used: u64,                    // storages with memory that are not in a bin
    binned: u64,
    pub(super) chunks: u32,
}

impl Slab {
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0 && self.binned == 0
    }
}

/// The pool of one session.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    pub(super) asking: Turnstile<()>, // of the thread that talks with the source; slabs come and go in it alone
    dropped: Drops,
    ended: AtomicBool, // this and what follows: changed with the state locked
    paused: AtomicBool,
    resumed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    refcounts: Refcounts,
    entries: Entries,
    test: FreeTest,
    records: Table<Option<Box<[Record]>>>, // by chunk
    pub(super) slabs: Vec<Option<Slab>>,
    bins: Vec<Vec<u32>>, // free and warm, by number of their class
    waiting: Waiting,
    out: usize,                      // storages that were handed out and not found free since
    tested: Vec<(u32, Option<u64>)>, // by the test that is under way, with the next generation of what is free
    spare: Vec<u32>,                 // in turn with `dropped`
    pub(super) stats: PoolStats,
    pub(super) first: u64,         // bytes of the first slab
    pub(super) grown: u64,         // how often the source gave something
    last_bytes: u64,               // of the storage that was handed out last
    pub(super) last: (u64, usize), // when a storage was handed out last, roughly, and of which slab
}

/// How large the first slab is under these quotas, of which 0 is none: a small one has room for others.
fn first_slab(quotas: [u64; 2]) -> u64 {
    let share = quotas.into_iter().filter(|q| *q > 0).map(|q| q / SLABS_IN_QUOTA / PAGE * PAGE).min();
    share.unwrap_or(FIRST_SLAB).clamp(MIN_SLAB, FIRST_SLAB)
}

impl Pool {
    /// The pool of the session with these refcounts and these entries, under these quotas.
    pub(crate) fn new(refcounts: Refcounts, entries: Entries, test: FreeTest, quotas: [u64; 2]) -> Pool {
        Pool {
            state: Mutex::new(State {
                refcounts,
                entries,
                test,
                records: Table::new(limits::CHUNKS),
                slabs: Vec::new(),
                bins: Vec::new(),
                waiting: Waiting::default(),
                out: 0,
                tested: Vec::new(),
                spare: Vec::new(),
                stats: PoolStats::default(),
                first: first_slab(quotas),
                grown: 0,
                last_bytes: 0,
                last: (0, 0),
            }),
            asking: Turnstile::default(),
            dropped: Drops::default(),
            ended: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            resumed: Condvar::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// A storage of `n` > 0 bytes, counted once in the session's own refcounts. Its bytes are whatever was there. With
    /// `fallback` the caller tries again where there is no room.
    pub(crate) fn alloc(&self, source: &dyn Source, n: u64, fallback: bool) -> Result<Storage> {
        if n == 0 || n > MOST {
            return Err(Error::new(Code::OutOfMemory, "ask for less", format!("{n} bytes cannot be allocated")));
        }
        let class = class_of(n);
        let mut p = self.going(self.state())?;
        let mut found = p.take_bin(class);
        if found.is_none() {
            self.drain(&mut p);
            if p.waiting.is_due(BATCH) {
                p.recycle(source, BATCH);
                found = p.take_bin(class);
            }
        }
        loop {
            if let Some(index) = found {
                return p.hand_out(index, n);
            }
            found = p.carve(source, class);
            if found.is_none() {
                p = self.grow(p, source, class, fallback)?;
                p = self.going(p)?; // the lock was given up meanwhile
            }
        }
    }

    /// Waits, with the state unlocked, while the pool is paused.
    #[inline]
    fn going<'a>(&'a self, mut p: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        if self.paused.load(Ordering::Relaxed) {
            p = self.await_going(p)?;
        }
        self.check_going().map(|()| p)
    }

    #[cold]
    fn await_going<'a>(&'a self, mut p: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        let until = Instant::now() + PAUSED;
        while self.paused.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(Code::BrokerLost, "try again", "the broker is being stopped"));
            }
            p = self.resumed.wait_timeout(p, left).unwrap_or_else(|p| p.into_inner()).0;
        }
        Ok(p)
    }

    /// What `make` makes of a storage of `n` bytes that is at hand, counted once: of its ref, and where it lies.
    /// `None` where `alloc` is to be asked: another thread allocates, no storage of the size is free and warm, or
    /// the pool hands out nothing.
    #[inline(always)]
    pub(crate) fn warm<T>(&self, n: u64, make: impl FnOnce(Ref, u64) -> T) -> Option<T> {
        let mut p = self.state.try_lock().ok()?;
        if !self.may_recycle() || n == 0 || n > MOST {
            return None;
        }
        let (reference, offset) = p.hand_out_warm(n)?;
        drop(p);
        Some(make(reference, offset))
    }

    /// Tells the pool that this session's count of an index of its own fell to zero. Any thread.
    pub(crate) fn dropped(&self, index: u32) {
        match self.state.try_lock() {
            Ok(mut p) => p.queue(index),
            Err(_) => self.dropped.note(index),
        }
    }

    /// Tests a few storages that may be free, where enough of them wait for that, so that the next allocations find
    /// some. What is not done because another thread allocates is done by the next that does. `dropped` is as for
    /// [`dropped`](Pool::dropped), with the lock taken once for both.
    pub(crate) fn tidy(&self, holders: &dyn Holders, dropped: Option<u32>) {
        let Ok(mut p) = self.state.try_lock() else {
            return dropped.into_iter().for_each(|index| self.dropped.note(index));
        };
        dropped.into_iter().for_each(|index| p.queue(index));
        if self.may_recycle() {
            self.drain(&mut p);
            if p.waiting.is_due_with(p.out) {
                p.recycle(holders, BATCH);
            }
        }
        p.fetch_next();
    }

    /// Has allocations wait, and nothing recycled, until `resume` or the end.
    pub(crate) fn pause(&self) {
        let _state = self.state();
        self.paused.store(true, Ordering::Relaxed);
    }

    /// Undoes `pause`.
    pub(crate) fn resume(&self) {
        let _state = self.state();
        self.paused.store(false, Ordering::Relaxed);
        self.resumed.notify_all();
    }

    /// Ends the pool.
    pub(crate) fn end(&self) {
        self.end_if(|| true);
        self.resume();
    }

    /// Ends the pool if, while nothing is handed out, that is so: its memory is the broker's then.
    pub(crate) fn end_if(&self, so: impl FnOnce() -> bool) -> bool {
        let _state = self.state();
        let ends = so();
        self.ended.store(ends, Ordering::Relaxed);
        ends
    }

    /// Refuses to hand out or to recycle what is the broker's. The caller has the state locked.
    fn check_going(&self) -> Result<()> {
        if self.ended.load(Ordering::Relaxed) { Err(closed("the session")) } else { Ok(()) }
    }

    fn may_recycle(&self) -> bool {
        !self.paused.load(Ordering::Relaxed) && !self.ended.load(Ordering::Relaxed)
    }

    fn drain(&self, p: &mut State) {
        let Some(mut list) = self.dropped.take(&mut p.spare) else { return };
        list.drain(..).for_each(|index| p.queue(index));
        p.spare = list;
    }

    /// Tests every storage that may be free and gives empty segments back to the broker. It returns
    /// the bytes given back; 0 when another thread asks the broker for memory, which recycles itself. Unless all
    /// is to go, the slab stays in which this process has just allocated: a sender may hold nothing between two messages.
    pub(crate) fn reclaim(&self, source: &dyn Source, all: bool) -> u64 {
        let Some(mut p) = self.state_soon() else { return 0 };
        if !self.may_recycle() {
            return 0;
        }
        self.drain(&mut p);
        let waiting = p.waiting.len();
        p.recycle(source, waiting);
        p.test.forget();
        let (at, slab) = p.last;
        let in_use = !all && at != 0 && sys::roughly_now().saturating_sub(at) < WORKING.as_nanos() as u64;
        drop(p);
        self.asking.try_lock().map_or(0, |_turn| self.trim(source, in_use.then_some(slab)))
    }

    /// The state, unless a thread keeps it for longer than allocating takes.
    fn state_soon(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..1000 {
            match self.state.try_lock() {
                Ok(p) => return Some(p),
                Err(TryLockError::Poisoned(p)) => return Some(p.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Tests what waits for others to be tested with.
    pub(crate) fn find_free(&self, holders: &dyn Holders) {
        let mut p = self.state();
        if self.may_recycle() {
            self.drain(&mut p);
            let waiting = p.waiting.len();
            p.recycle(holders, waiting);
        }
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let p = self.state();
        let mut s = p.stats;
        for slab in p.slabs.iter().flatten() {
            s.live += slab.used;
            s.warm += slab.binned;
        }
        s
    }
}

#[inline]
fn record_of(records: &mut Table<Option<Box<[Record]>>>, index: u32) -> Option<&mut Record> {
    let chunk = records.get_mut(index / limits::CHUNK_INDICES)?.as_deref_mut()?;
    Some(&mut chunk[(index % limits::CHUNK_INDICES) as usize])
}

impl State {
    fn record(&mut self, index: u32) -> &mut Record {
        self.find(index).unwrap_or_else(|| panic!("baton: storage {index} is not of this pool"))
    }

    #[inline]
    fn find(&mut self, index: u32) -> Option<&mut Record> {
        record_of(&mut self.records, index)
    }

    fn slab(&mut self, slab: usize) -> &mut Slab {
        self.slabs[slab].as_mut().expect("a storage's slab stays as long as it")
    }

    fn queue(&mut self, index: u32) {
        if let Some(r) = self.find(index).filter(|r| r.out && !r.queued) {
            r.queued = true;
            let bytes = r.capacity;
            self.waiting.push(index, bytes);
        }
    }

    /// Tests at most `limit` storages, each once, oldest first.
    fn recycle(&mut self, holders: &dyn Holders, limit: usize) -> usize {
        let (mut freed, mut left) = (0, self.waiting.start(limit));
        let mut tested = std::mem::take(&mut self.tested);
        while left > 0 {
            let before = self.waiting.len();
            let State { refcounts, test, waiting, records, .. } = self;
            let Some(chunk) = waiting.chunk() else { break };
            let mut of_chunk = left.min(BATCH);
            let next = || {
                while of_chunk > 0 {
                    let index = waiting.next_of(chunk)?;
                    of_chunk -= 1;
                    if refcounts.count(index) == 0 {
                        return Some(index);
                    }
                    // Taken back from a message: its next drop queues it.
                    if let Some(r) = record_of(records, index) {
                        r.queued = false;
                    }
                }
                None
            };
            test.recycle_all(holders, chunk, std::iter::from_fn(next), |index, next| tested.push((index, next)));
            left -= before - self.waiting.len();
            self.stats.tests += tested.len() as u64;
            for (index, next) in tested.drain(..) {
                let Some(generation) = next else {
                    self.waiting.push_again(index);
                    continue;
                };
                let r = self.record(index);
                (r.queued, r.generation) = (false, generation);
                self.bin(index);
                self.stats.recycled += 1;
                freed += 1;
            }
        }
        self.tested = tested;
        freed
    }

    /// Starts to fetch what the next allocation will write, if it is as the last one: its entry, and the ends of its
    /// bytes, at which the threads look that had it last. One ahead: lines that are fetched earlier are gone again.
    #[inline]
    fn fetch_next(&mut self) {
        let Some(index) = self.bins.get(bin_of(class_of(self.last_bytes))).and_then(|b| b.last()).copied() else {
            return;
        };
        let Some(r) = record_of(&mut self.records, index) else { return };
        let (slab, offset) = (r.slab, r.offset);
        self.entries.prefetch(index);
        if let Some(Some(slab)) = self.slabs.get(slab)
            && let Ok(r) = slab.segment.region(true)
        {
            r.prefetch_write(offset);
            r.prefetch_write(offset.saturating_add(self.last_bytes.saturating_sub(1)));
        }
    }

    fn bin(&mut self, index: u32) {
        let r = self.record(index);
        r.out = false;
        let (slab, bin) = (r.slab, bin_of(r.capacity));
        let slab = self.slab(slab);
        slab.used -= 1;
        slab.binned += 1;
        self.out -= 1;
        if bin >= self.bins.len() {
            self.bins.resize_with(bin + 1, Vec::new);
        }
        self.bins[bin].push(index);
    }

    /// Makes a storage without content one that was handed out.
    #[inline]
    fn hand_out(&mut self, index: u32, n: u64) -> Result<Storage> {
        let r = self.record(index);
        r.out = true;
        let (slab, offset) = (r.slab, r.offset);
        let reference = Ref { serial: r.serial, generation: r.generation, index };
        self.slab(slab).used += 1;
        self.out += 1;
        let now = sys::roughly_now();
        (self.last, self.last_bytes) = ((now, slab), n);
        self.entries.describe(index, offset, n, now);
        crash_point::at("alloc-described");
        if let Err(e) = self.refcounts.take(index) {
            self.bin(index);
            return Err(e);
        }
        crash_point::at("alloc-counted");
        Ok(Storage { reference, offset, bytes: n })
    }

    /// As `take_bin` and `hand_out`; `None` where one of them has nothing.
    // In one piece, with the index popped last: what calls those two takes a fiftieth longer for a whole hop.
    #[inline(always)]
    fn hand_out_warm(&mut self, n: u64) -> Option<(Ref, u64)> {
        let bin = self.bins.get_mut(bin_of(class_of(n)))?;
        let index = *bin.last()?; // the warmest
        let chunk = self.records.get_mut(index / limits::CHUNK_INDICES)?.as_deref_mut()?;
        let r = chunk.get_mut((index % limits::CHUNK_INDICES) as usize)?;
        let (slab, offset) = (r.slab, r.offset);
        let s = self.slabs.get_mut(slab)?.as_mut()?;
        let now = sys::roughly_now();
        self.entries.describe(index, offset, n, now);
        crash_point::at("alloc-described");
        self.refcounts.take(index).ok()?;
        crash_point::at("alloc-counted");
        bin.pop();
        r.out = true;
        (s.binned, s.used) = (s.binned - 1, s.used + 1);
        self.out += 1;
        (self.last, self.last_bytes) = ((now, slab), n);
        Some((Ref { serial: r.serial, generation: r.generation, index }, offset))
    }

    fn take_bin(&mut self, class: u64) -> Option<u32> {
        let index = self.bins.get_mut(bin_of(class))?.pop()?; // the warmest
        let slab = self.record(index).slab;
        self.slab(slab).binned -= 1;
        Some(index)
    }

    /// Cuts a storage from a slab, making room if it must.
    fn carve(&mut self, holders: &dyn Holders, class: u64) -> Option<u32> {
        if let Some(i) = self.cut(class) {
            return Some(i);
        }
        // Test all that waits before asking for more memory, then give binned memory of other sizes
        // back to the slabs.
        let all = self.waiting.len();
        if self.recycle(holders, all) > 0
            && let Some(i) = self.take_bin(class)
        {
            return Some(i);
        }
        if self.unbin() { self.cut(class) } else { None }
    }

    fn cut(&mut self, class: u64) -> Option<u32> {
        for slab in self.slabs.iter_mut().rev().flatten() {
            if slab.indices.is_empty() {
                continue;
            }
            let Some(at) = slab.free.take(class) else { continue };
            let Some(index) = slab.indices.pop() else { continue };
            let r = self.record(index);
            (r.offset, r.capacity) = (at, class);
            crash_point::at("alloc-cut");
            return Some(index);
        }
        None
    }

    /// Adds a slab of a grant.
    pub(super) fn add_slab(&mut self, grant: Grant) {
        let Grant { segment, chunks } = grant;
        let mut free = Ranges::default();
        free.give(0, segment.bytes);
        self.stats.granted += segment.bytes;
        let slab = Slab { segment, free, indices: Vec::new(), used: 0, binned: 0, chunks: 0 };
        let i = self.slabs.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slabs.push(None);
            self.slabs.len() - 1
        });
        self.slabs[i] = Some(slab);
        self.add_chunks(i, &chunks);
    }

    pub(super) fn add_chunks(&mut self, slab: usize, chunks: &[(u32, u64)]) {
        self.grown += 1;
        for &(chunk, serial) in chunks {
            let record = Record { serial, generation: 1, slab, ..Default::default() };
            *self.records.at_mut(chunk) = Some(vec![record; limits::CHUNK_INDICES as usize].into());
            let first = chunk * limits::CHUNK_INDICES;
            let Some(s) = &mut self.slabs[slab] else { continue };
            s.chunks += 1;
            for k in (0..limits::CHUNK_INDICES).rev() {
                // Neighbours in time are no neighbours in memory: their entries and refcount words stand in
                // lines of their own, as far as there are lines.
                let index = first + k * LINE_WORDS % limits::CHUNK_INDICES + k / (limits::CHUNK_INDICES / LINE_WORDS);
                // The serial tells this grant's generations from an earlier owner's.
                self.entries.set_generation(index, 1);
                s.indices.push(index);
            }
        }
    }

    /// Gives warm memory back to its slabs, where runs join.
    pub(super) fn unbin(&mut self) -> bool {
        let bins = std::mem::take(&mut self.bins);
        let mut any = false;
        for index in bins.into_iter().flatten() {
            let r = self.record(index);
            let (at, n, slab) = (r.offset, std::mem::take(&mut r.capacity), r.slab);
            let slab = self.slab(slab);
            slab.free.give(at, n);
            slab.indices.push(index);
            slab.binned -= 1;
            any = true;
        }
        any
    }

    /// Forgets the records of a slab that was given back.
    pub(super) fn forget_slab(&mut self, slab: usize, bytes: u64) {
        for records in self.records.values_mut() {
            if records.as_ref().is_some_and(|r| r[0].slab == slab) {
                *records = None;
            }
        }
        self.stats.granted -= bytes;
    }
}

#[cfg(test)]
#[path = "pool_test.rs"]
mod tests;
