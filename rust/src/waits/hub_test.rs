//! The hub, as the threads of a session and those that ring it see it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::Waiting;
use super::*;
use crate::layout::bell_file;
use crate::shm::{Bells, Region};
use crate::sys::Mapping;

const SLOT: u32 = 7;

/// A session with some topics, and what happens in it.
struct World {
    bells: Bells,
    hub: Hub,
    topics: Vec<Waiting>,
    /// By thread: whether it is to end.
    over: Vec<AtomicBool>,
    /// The threads that were woken, in order, but for those whose time was over.
    woken: Mutex<Vec<usize>>,
}

impl World {
    fn new(topics: u32, threads: usize) -> World {
        let bells = Bells::new(Region::new(Arc::new(Mapping::anonymous(bell_file::BYTES as usize).unwrap())));
        let topics = (0..topics).map(|t| Waiting::new(&bells, t, SLOT)).collect();
        let hub = Hub::new(Arc::new(bells.parking(SLOT)));
        let over = (0..threads).map(|_| AtomicBool::new(false)).collect();
        World { bells, hub, topics, over, woken: Mutex::default() }
    }

    /// A thread that sleeps until it is to end, and notes when it was woken. `found`: whether it has something to leave
    /// for then.
    fn sleep(&self, number: usize, places: &[Place<'_>], found: impl Fn() -> bool) {
        while !self.over[number].load(Ordering::SeqCst) && !found() {
            let begun = Instant::now();
            let slept = self.hub.sleep(places, LOOK_AGAIN, &mut || self.over[number].load(Ordering::SeqCst) || found());
            if slept.chosen && found() {
                self.hub.pass_on(places);
            }
            if !slept.found && begun.elapsed() < LOOK_AGAIN {
                self.woken.lock().unwrap().push(number);
            }
        }
    }

    /// Waits until so many threads sleep.
    fn until_listed(&self, n: usize) {
        while self.hub.state().all.len() < n || self.hub.state().all.iter().any(|w| w.called) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20)); // from the list into the sleep
    }

    /// The threads that were woken once that is over.
    fn woken(&self) -> Vec<usize> {
        std::thread::sleep(Duration::from_millis(60));
        let mut woken = std::mem::take(&mut *self.woken.lock().unwrap());
        woken.sort_unstable();
        woken
    }

    fn end(&self) {
        self.over.iter().for_each(|o| o.store(true, Ordering::SeqCst));
        self.bells.wake(SLOT);
    }

    fn send(&self, topic: usize, groups: u32) {
        fence();
        self.topics[topic].ring(groups, &mut Vec::new());
    }
}

fn with_threads<'a>(w: &'a World, places: impl Fn(usize) -> Vec<Place<'a>>, test: impl FnOnce()) {
    std::thread::scope(|s| {
        for n in 0..w.over.len() {
            let places = places(n);
            s.spawn(move || w.sleep(n, &places, || false));
            w.until_listed(n + 1);
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        w.end();
        ended.unwrap();
    });
    let state = w.hub.state();
    assert_eq!((state.all.len(), state.leading), (0, 0));
}

#[test]
fn a_ring_wakes_those_whom_it_concerns() {
    // Two threads lead; of the others two wait in the set of all, three in that of a group, one for no message.
    let w = World::new(4, 8);
    let places = |n| match n {
        0 | 1 => vec![w.topics[3].place(None)],
        2 | 3 => vec![w.topics[0].place(None)],
        4..7 => vec![w.topics[1].place(Some(0)), w.topics[2].place(Some(0))],
        _ => vec![],
    };
    with_threads(&w, places, || {
        for _ in 0..3 {
            w.send(0, 0);
            assert_eq!(w.woken(), [2, 3], "all");
            for topic in [1, 2] {
                w.send(topic, 1);
                let woken = w.woken();
                assert!(matches!(woken[..], [4..7]), "one of the group: {woken:?}");
            }
            w.send(1, 0);
            assert!(w.woken().is_empty(), "another set");
        }
        w.bells.wake(SLOT);
        assert_eq!(w.woken(), [0, 1, 2, 3, 4, 5, 6, 7], "it may be anything");
        w.hub.parking.wake();
        assert_eq!(w.woken(), [0, 1, 2, 3, 4, 5, 6, 7], "as by this session itself");
        w.bells.bell(SLOT).ring();
        assert_eq!(w.woken(), [0, 1, 2, 3, 4, 5, 6, 7], "as for room");
    });
}

#[test]
fn a_ring_for_messages_does_not_hide_another() {
    let w = World::new(2, 5);
    let places = |n| if n < 4 { vec![w.topics[0].place(None)] } else { vec![] };
    with_threads(&w, places, || {
        for _ in 0..20 {
            w.bells.bell(SLOT).ring();
            w.send(0, 0);
            let woken = w.woken();
            assert!(woken.contains(&4), "{woken:?}");
        }
    });
}

#[test]
fn as_many_threads_are_woken_as_there_are_items() {
    let w = World::new(1, 8);
    let (items, taken) = (AtomicI64::new(0), AtomicI64::new(0));
    let found = || items.load(Ordering::SeqCst) > 0;
    std::thread::scope(|s| {
        for n in 0..8 {
            let (w, items, taken) = (&w, &items, &taken);
            s.spawn(move || {
                w.sleep(n, &[w.topics[0].place(Some(0))], found);
                if items.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n > 0).then(|| n - 1)).is_ok() {
                    taken.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        w.until_listed(8);
        let begun = Instant::now();
        items.store(5, Ordering::SeqCst);
        w.send(0, 1); // the others find no session in the set any more
        while taken.load(Ordering::SeqCst) < 5 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let took = begun.elapsed();
        w.end();
        assert!(took < LOOK_AGAIN / 2, "{took:?}");
    });
    assert_eq!((taken.into_inner(), items.into_inner()), (5, 0));
}

#[test]
fn when_the_leaders_leave_others_lead() {
    let w = World::new(1, 6);
    with_threads(
        &w,
        |_| vec![w.topics[0].place(None)],
        || {
            for leaves in 0..5 {
                w.over[leaves].store(true, Ordering::SeqCst);
                w.bells.wake(SLOT);
                w.until_listed(5 - leaves);
                assert!(w.hub.state().leading > 0);
                w.woken();
                w.send(0, 0);
                assert_eq!(w.woken(), (leaves + 1..6).collect::<Vec<_>>());
            }
        },
    );
}

#[test]
fn a_thread_sleeps_no_longer_than_it_is_to() {
    let w = World::new(1, 3);
    with_threads(
        &w,
        |_| vec![],
        || {
            let begun = Instant::now();
            let place = [w.topics[0].place(Some(3))];
            assert!(!w.hub.sleep(&place, Duration::from_millis(30), &mut || false).found);
            let took = begun.elapsed();
            assert!(took >= Duration::from_millis(30) && took < LOOK_AGAIN, "{took:?}");
            assert!(w.hub.sleep(&place, LOOK_AGAIN, &mut || true).found);
            assert!(begun.elapsed() < LOOK_AGAIN);
        },
    );
    w.topics[0].ring(4, &mut Vec::new());
    assert_eq!(w.hub.parking.bell(), 1, "the end alone has rung: no thread is in the set");
}

#[test]
fn a_look_that_panics_leaves_the_list() {
    let w = World::new(1, 0);
    let look = || w.hub.sleep(&[w.topics[0].place(None)], LOOK_AGAIN, &mut || panic!("a look"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).is_err());
    let state = w.hub.state();
    assert_eq!((state.all.len(), state.leading), (0, 0));
    drop(state);
    w.topics[0].ring(0, &mut Vec::new());
    assert_eq!(w.hub.parking.bell(), 0);
}

fn wait_for(done: &dyn Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// Threads in two groups and in the set of all, with two senders and one that rings for something else: a wake that is
/// lost costs a second.
#[test]
fn no_wake_is_lost_among_many_threads() {
    const ROUNDS: u64 = 1500;
    let w = World::new(3, 0);
    // By topic: how many there are; taken, of the groups; what came, for whom it is not by messages.
    let left: [AtomicI64; 2] = Default::default();
    let (taken, sent, news) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (seen_sent, seen_news): ([AtomicU64; 3], [AtomicU64; 3]) = Default::default();
    let over = AtomicBool::new(false);
    let slow = AtomicU64::new(0);
    let sleeps = |places: &[Place<'_>], ready: &dyn Fn() -> bool| {
        let begun = Instant::now();
        let slept = w.hub.sleep(places, LOOK_AGAIN, &mut || ready() || over.load(Ordering::SeqCst));
        if !slept.found && begun.elapsed() >= LOOK_AGAIN && ready() {
            slow.fetch_add(1, Ordering::SeqCst);
        }
        if slept.chosen && (slept.found || ready()) {
            w.hub.pass_on(places);
        }
    };
    let waits = |places: &[Place<'_>], now: &AtomicU64, seen: &AtomicU64| {
        while !over.load(Ordering::SeqCst) {
            let (n, had) = (now.load(Ordering::SeqCst), seen.load(Ordering::SeqCst));
            if n > had {
                seen.store(n, Ordering::SeqCst);
            } else {
                sleeps(places, &|| now.load(Ordering::SeqCst) > had);
            }
        }
    };
    let sender = |t: usize| {
        for i in 1..=ROUNDS {
            left[t].fetch_add(1, Ordering::SeqCst);
            w.send(t, 1);
            if i % 3 == 0 {
                wait_for(&|| left[t].load(Ordering::SeqCst) == 0); // they fall asleep now and then
            }
        }
    };
    let others = || {
        let bell = w.bells.bell(SLOT);
        for i in 1..=ROUNDS {
            news.store(i, Ordering::SeqCst);
            fence();
            bell.ring();
            sent.store(i, Ordering::SeqCst);
            w.send(2, 0);
            wait_for(&|| seen_sent.iter().chain(&seen_news).all(|n| n.load(Ordering::SeqCst) >= i));
        }
    };
    std::thread::scope(|s| {
        for n in 0..6 {
            let (w, left, taken, over, sleeps) = (&w, &left, &taken, &over, &sleeps);
            s.spawn(move || {
                // Some wait in both groups, and take of either.
                let mine: &[usize] = [&[0][..], &[1], &[0, 1]][n % 3];
                let places: Vec<_> = mine.iter().map(|t| w.topics[*t].place(Some(0))).collect();
                let has = |t: &usize| left[*t].load(Ordering::SeqCst) > 0;
                while !over.load(Ordering::SeqCst) {
                    let take = |t: &usize| {
                        let less = |n: i64| (n > 0).then(|| n - 1);
                        left[*t].fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
                    };
                    match mine.iter().any(take) {
                        true => _ = taken.fetch_add(1, Ordering::SeqCst),
                        false => sleeps(&places, &|| mine.iter().any(has)),
                    }
                }
            });
        }
        for (sent_seen, news_seen) in seen_sent.iter().zip(&seen_news) {
            let (waits, w, sent, news) = (&waits, &w, &sent, &news);
            s.spawn(move || waits(&[w.topics[2].place(None)], sent, sent_seen));
            s.spawn(move || waits(&[], news, news_seen));
        }
        let rings = [s.spawn(|| sender(0)), s.spawn(others)];
        sender(1);
        rings.into_iter().for_each(|r| r.join().unwrap());
        wait_for(&|| taken.load(Ordering::SeqCst) == 2 * ROUNDS);
        over.store(true, Ordering::SeqCst);
        w.bells.wake(SLOT);
    });
    assert_eq!((taken.into_inner(), slow.into_inner()), (2 * ROUNDS, 0), "taken, and seen when they looked again");
}
