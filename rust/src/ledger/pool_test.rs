use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::super::Chunks;
use super::super::waiting::BATCH_BYTES;
use super::*;
use crate::layout::{ALIGNMENT, broker_file, chunk_record, refcount_word, session_file};
use crate::shm::Region;
use crate::sys::Mapping;
use crate::turns::Turn;

/// A broker in miniature: one session in slot 1, the refcounts of a second in slot 2.
struct World {
    broker: Region,
    own: Region,
    other: Region,
    next: AtomicU32,
    returned: AtomicU64,
    pool: Pool,
    asked: Mutex<Option<Arc<Barrier>>>, // where requests are held up
    requests: Mutex<Vec<(u64, bool)>>,  // for memory: bytes, and whether there is a fallback
    room: AtomicU64,                    // the most bytes of one grant
}

fn memfd(bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    fd
}

fn anonymous(bytes: u64) -> Region {
    Region::new(Arc::new(Mapping::anonymous(bytes as usize).unwrap()))
}

impl World {
    fn new() -> World {
        let (broker, own, other) =
            (anonymous(broker_file::BYTES), anonymous(session_file::BYTES), anonymous(session_file::BYTES));
        let entries = Entries::new(&own);
        let test = FreeTest::new(Chunks::new(&broker), entries.clone());
        let pool = Pool::new(Refcounts::new(&own), entries, test, [0, 0]);
        World {
            broker,
            own,
            other,
            next: AtomicU32::new(0),
            returned: AtomicU64::new(0),
            pool,
            asked: Mutex::default(),
            requests: Mutex::default(),
            room: AtomicU64::new(u64::MAX),
        }
    }

    fn attach(&self, chunk: u32, slot: u32) {
        let at = broker_file::chunk(chunk);
        self.broker.or(at + chunk_record::ATTACHED + u64::from(slot / 64) * 8, 1 << (slot % 64));
        self.broker.or(at + chunk_record::ATTACHED_WORDS, 1 << (slot / 64));
        self.broker.add(at + chunk_record::EPOCH, 1);
    }

    fn alloc(&self, n: u64) -> Storage {
        self.pool.alloc(self, n, false).unwrap()
    }

    fn release(&self, s: &Storage) {
        if Refcounts::new(&self.own).drop(s.reference.index) {
            self.pool.dropped(s.reference.index);
        }
    }
}

impl Holders for World {
    fn refcounts(&self, slot: u32) -> Option<Refcounts> {
        Some(Refcounts::new(if slot == 1 { &self.own } else { &self.other }))
    }
}

impl Source for World {
    fn turn<'a>(&self, of: &'a Turnstile<()>) -> Result<Turn<'a, ()>> {
        Ok(of.lock_until(None, || false)?.unwrap())
    }

    fn grant(&self, bytes: u64, chunks: u32, fallback: bool) -> Result<Grant> {
        self.requests.lock().unwrap().push((bytes, fallback));
        if bytes > self.room.load(Ordering::Relaxed) {
            return Err(Error::new(Code::QuotaExceeded, "", "no room"));
        }
        let asked = self.asked.lock().unwrap().clone();
        if let Some(asked) = asked {
            asked.wait(); // the test knows of the request,
            asked.wait(); // and lets it be answered
        }
        let segment = Arc::new(Segment::new(0, 1, bytes, memfd(bytes), true)?);
        Ok(Grant { chunks: self.more_chunks(&segment, chunks)?, segment })
    }

    fn more_chunks(&self, _: &Arc<Segment>, count: u32) -> Result<Vec<(u32, u64)>> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first..first + count).for_each(|c| self.attach(c, 1));
        Ok((first..first + count).map(|c| (c, 100 + u64::from(c))).collect())
    }

    fn give_back(&self, segment: &Arc<Segment>) -> bool {
        self.returned.fetch_add(segment.bytes, Ordering::Relaxed);
        true
    }
}

#[test]
fn storages_that_are_held_never_overlap() {
    let w = World::new();
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let mut indices = HashSet::new();
    for n in [1, 256, 257, 4096, 5000, 100_000, 1 << 20] {
        let s = w.alloc(n);
        assert_eq!(s.offset % ALIGNMENT, 0);
        assert!(indices.insert(s.reference.index));
        assert!(seen.iter().all(|(at, len)| s.offset + n <= *at || at + len <= s.offset), "{n} bytes overlap");
        seen.push((s.offset, n));
    }
}

/// More bytes than wait for others to be tested with.
const LARGE: u64 = BATCH_BYTES + 1;

#[test]
fn a_released_storage_comes_back_warm_with_a_new_generation() {
    let w = World::new();
    let a = w.alloc(LARGE);
    w.release(&a);
    let b = w.alloc(LARGE + 100);
    assert_eq!((a.offset, a.reference.index), (b.offset, b.reference.index));
    assert_eq!(b.reference.generation, a.reference.generation + 1);
}

#[test]
fn small_storages_wait_for_others_to_be_tested_with() {
    let w = World::new();
    let mut used = HashSet::new();
    for k in 1..=5 * BATCH {
        let s = w.alloc(1000);
        used.insert(s.offset);
        w.release(&s);
        assert_eq!(w.pool.stats().recycled, ((k - 1) / BATCH * BATCH) as u64);
    }
    assert_eq!(used.len(), BATCH);
    assert_eq!(w.pool.stats().granted, FIRST_SLAB);
}

#[test]
fn a_send_tests_what_is_free_at_once_where_few_are_out() {
    let w = World::new();
    let a = w.alloc(1000);
    w.release(&a);
    w.pool.tidy(&w, None);
    assert_eq!(w.alloc(1000).reference.index, a.reference.index);
}

#[test]
fn a_send_tests_many_together_where_many_are_out() {
    let w = World::new();
    let mut out: VecDeque<Storage> = (0..100).map(|_| w.alloc(1000)).collect();
    for k in 1..BATCH {
        w.release(&out.pop_front().unwrap());
        w.pool.tidy(&w, None);
        assert_eq!(w.pool.stats().tests, 0, "{k} wait");
    }
    w.release(&out.pop_front().unwrap());
    w.pool.tidy(&w, None);
    assert_eq!((w.pool.stats().tests, w.pool.stats().recycled), (BATCH as u64, BATCH as u64));
}

#[test]
fn those_of_a_batch_that_are_held_stay_and_the_others_are_free() {
    let w = World::new();
    let all: Vec<Storage> = (0..BATCH).map(|_| w.alloc(1000)).collect();
    w.attach(all[0].reference.index / limits::CHUNK_INDICES, 2);
    let other = Refcounts::new(&w.other);
    let held = [&all[0], &all[7], &all[BATCH - 1]];
    held.iter().for_each(|s| other.take(s.reference.index).unwrap());
    all.iter().for_each(|s| w.release(s));
    w.pool.reclaim(&w, false);
    let entries = Entries::new(&w.own);
    for s in &all {
        let next = s.reference.generation + u64::from(!held.iter().any(|h| h.offset == s.offset));
        assert_eq!(entries.load(s.reference.index).generation, next);
        let marked = entries.word(s.reference.index) & crate::layout::RETIRING != 0;
        assert!(!marked, "storage {}", s.reference.index);
    }
    assert_eq!(w.pool.stats().recycled as usize, BATCH - held.len());
    held.iter().for_each(|s| _ = other.drop(s.reference.index));
    w.pool.reclaim(&w, false);
    assert_eq!(w.pool.stats().recycled as usize, BATCH);
}

#[test]
fn a_storage_that_another_holder_counts_is_not_recycled() {
    let w = World::new();
    let a = w.alloc(LARGE);
    w.attach(a.reference.index / limits::CHUNK_INDICES, 2);
    let other = Refcounts::new(&w.other);
    other.take(a.reference.index).unwrap();
    w.release(&a);
    let b = w.alloc(LARGE);
    assert_ne!(a.reference.index, b.reference.index);
    assert_eq!(Entries::new(&w.own).load(a.reference.index).generation, a.reference.generation);
    other.drop(a.reference.index);
    w.release(&b);
    let again: HashSet<u32> = (0..2).map(|_| w.alloc(LARGE).reference.index).collect();
    assert_eq!(again, HashSet::from([a.reference.index, b.reference.index]));
}

#[test]
fn an_empty_pool_gives_its_memory_back() {
    let w = World::new();
    let all: Vec<Storage> = (0..300).map(|_| w.alloc(64 << 10)).collect();
    assert!(w.pool.stats().granted >= 300 * (64 << 10));
    assert_eq!(w.pool.reclaim(&w, true), 0);
    let granted = w.pool.stats().granted;
    all.iter().for_each(|s| w.release(s));
    assert_eq!(w.pool.reclaim(&w, true), granted);
    assert_eq!(w.returned.load(Ordering::Relaxed), granted);
    assert_eq!(w.pool.stats().granted, 0);
    w.alloc(10);
}

#[test]
fn a_slab_in_use_stays_when_the_broker_wants_memory() {
    let w = World::new();
    w.release(&w.alloc(256));
    assert_eq!(w.pool.reclaim(&w, false), 0, "between two messages");
    w.release(&w.alloc(256));
    assert_eq!(w.next.load(Ordering::Relaxed), 1, "chunks asked for");
    assert!(w.pool.reclaim(&w, true) > 0);
}

#[test]
fn more_indices_than_a_chunk_has_are_asked_for() {
    let w = World::new();
    let all: Vec<Storage> = (0..1000).map(|_| w.alloc(256)).collect();
    assert_eq!(all.iter().map(|s| s.reference.index).collect::<HashSet<_>>().len(), 1000);
    assert_eq!(w.pool.stats().granted, FIRST_SLAB);
}

/// The operator sees the refusal that the program gets, and no attempt before.
#[test]
fn each_request_says_whether_it_has_a_fallback() {
    let w = World::new();
    w.alloc(3 << 20);
    w.room.store(0, Ordering::Relaxed);
    for fallback in [true, false] {
        w.requests.lock().unwrap().clear();
        assert!(w.pool.alloc(&w, 5 << 20, fallback).unwrap_err().is_full());
        let requests = w.requests.lock().unwrap();
        let (last, before) = requests.split_last().unwrap();
        assert!(!before.is_empty() && before.iter().all(|r| r.1), "{requests:?}");
        assert_eq!(last.1, fallback, "{requests:?}");
    }
}

#[test]
fn a_small_quota_has_room_for_many_sessions() {
    for (quotas, bytes) in [
        ([0, 0], 4 << 20),
        ([0, 1 << 40], 4 << 20),
        ([0, 8 << 20], 128 << 10),
        ([1 << 20, 8 << 20], 64 << 10),
        ([100 << 20, 1], 64 << 10),
    ] {
        assert_eq!(first_slab(quotas), bytes, "{quotas:?}");
    }
}

#[test]
fn a_count_at_its_limit_is_refused_and_undone() {
    let w = World::new();
    let refcounts = Refcounts::new(&w.own);
    w.own.store(session_file::REFCOUNTS, refcount_word::LIMIT);
    assert_eq!(refcounts.take(0).unwrap_err().code(), Code::TooMany);
    assert_eq!(refcounts.count(0), refcount_word::LIMIT);
}

#[test]
fn classes_waste_at_most_an_eighth_and_have_numbers_of_their_own() {
    let mut last = (0, 0);
    for n in 1..200_000 {
        let c = class_of(n);
        assert_eq!((last.0 == c, c > last.0), (last.1 == bin_of(c), bin_of(c) > last.1), "{n} -> {c}");
        last = (c, bin_of(c));
        assert!(c >= n && c.is_multiple_of(ALIGNMENT) && (n < 4096 || c - n <= n / 8 + 1), "{n} -> {c}");
    }
}

#[test]
fn a_storage_whose_drop_is_heard_twice_is_given_to_one() {
    let w = World::new();
    let a = w.alloc(1000);
    w.release(&a);
    w.pool.tidy(&w, None); // finds it free
    w.pool.tidy(&w, Some(a.reference.index));
    let (b, c) = (w.alloc(1000), w.alloc(1000));
    assert_ne!(b.reference.index, c.reference.index);
    assert_ne!(b.offset, c.offset);
}

#[test]
fn who_finds_memory_in_the_pool_does_not_wait_for_one_who_asks_for_more() {
    let w = World::new();
    let warm = w.alloc(1000);
    w.release(&warm);
    w.pool.tidy(&w, None);
    let asked = Arc::new(Barrier::new(2));
    *w.asked.lock().unwrap() = Some(asked.clone());
    std::thread::scope(|s| {
        let large = s.spawn(|| w.alloc(2 * FIRST_SLAB));
        asked.wait();
        assert_eq!(w.alloc(1000).reference.index, warm.reference.index);
        assert_ne!(w.alloc(5000).offset, warm.offset);
        assert_eq!(w.pool.reclaim(&w, true), 0, "another thread is asking");
        w.asked.lock().unwrap().take();
        asked.wait();
        assert_eq!(large.join().unwrap().bytes, 2 * FIRST_SLAB);
    });
}
