//! Atomics as loom sees them, with the orders that the code asks for, or one of them weaker.
//!
//! Loom takes sequentially consistent accesses for acquire-release ones. So each is joined with a sequentially
//! consistent fence here, in the two ways in which compilers make such accesses of fences, one model after the
//! other ([`Sc`]): with the fence before each access, or after each. Two accesses of which the first alone, or the
//! second alone, is sequentially consistent are ordered in one of the two only.
//!
//! `BATON_WEAKEN=FILE:LINE:COLUMN=ORDER` weakens the access that stands there, `none` takes a fence away: a mutant,
//! which some model is to find. `BATON_SITES` set, the models say where they access what.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::Location;
use std::sync::LazyLock;
use std::time::Duration;

use loom::sync::atomic as loomed;
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::sync::atomic::Ordering;

use super::Load;

/// What a sequentially consistent access is to loom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sc {
    /// A fence, then the access.
    Before,
    /// The access, then a fence.
    Behind,
    /// No more than acquire and release, and full fences are none: of models that must fail then.
    Weak,
}

thread_local! {
    static SC: Cell<Sc> = const { Cell::new(Sc::Before) };
    static SEEN: RefCell<HashSet<(&'static Location<'static>, &'static str)>> = RefCell::default();
}

/// Says what sequentially consistent accesses are in the models that run on this thread: loom runs the threads of
/// a model on the one that started it.
pub(crate) fn sequential(sc: Sc) {
    SC.set(sc);
}

/// An access to be weakened: its place and its order, where it is to be any.
static WEAKEN: LazyLock<Option<(String, Option<Ordering>)>> = LazyLock::new(|| {
    let asked = std::env::var("BATON_WEAKEN").ok()?;
    let (place, order) = asked.split_once('=').expect("FILE:LINE:COLUMN=ORDER");
    let order = match order {
        "none" => None,
        "Relaxed" => Some(Ordering::Relaxed),
        "Acquire" => Some(Ordering::Acquire),
        "Release" => Some(Ordering::Release),
        "AcqRel" => Some(Ordering::AcqRel),
        other => panic!("no weaker order: {other}"),
    };
    Some((place.to_owned(), order))
});
static SITES: LazyLock<bool> = LazyLock::new(|| std::env::var_os("BATON_SITES").is_some());

/// The order of the access or fence at a place, which loom is to see.
#[track_caller]
fn order_of(what: &'static str, order: Ordering) -> Option<Ordering> {
    let at = Location::caller();
    if *SITES && SEEN.with_borrow_mut(|s| s.insert((at, what))) {
        println!("\nSITE {at} {what} {order:?}");
    }
    match &*WEAKEN {
        Some((place, weaker)) if what != "failure" && at.to_string().ends_with(place) => *weaker,
        _ => Some(order),
    }
}

fn full() {
    if SC.get() != Sc::Weak {
        loomed::fence(Ordering::SeqCst);
    }
}

/// An access in an order that loom knows, between what makes it sequentially consistent.
fn ordered<T>(order: Ordering, weaker: Ordering, access: impl FnOnce(Ordering) -> T) -> T {
    if order != Ordering::SeqCst {
        return access(order);
    }
    if SC.get() == Sc::Before {
        full();
    }
    let value = access(weaker);
    if SC.get() == Sc::Behind {
        full();
    }
    value
}

#[track_caller]
pub(crate) fn fence(order: Ordering) {
    match order_of("fence", order) {
        Some(Ordering::SeqCst) => full(),
        Some(Ordering::Relaxed) | None => {}
        Some(order) => loomed::fence(order),
    }
}

#[track_caller]
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}

loom::lazy_static! {
    static ref ASLEEP: (Mutex<Asleep>, Condvar) = (Mutex::new(Asleep::default()), Condvar::new());
}

/// The threads that sleep, the first one first: by which number, and on which words.
#[derive(Debug, Default)]
struct Asleep {
    last: u64,
    all: Vec<(u64, Vec<usize>)>,
}

/// Sleeps without a limit where a process would look again after a while: loom reports a wake that is missing as a
/// deadlock.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, time: Duration) {
    let _ = futex_wait_any(&[(word, value)], time);
}

/// As `futex_wait`, while each of several words has its value.
pub(crate) fn futex_wait_any(words: &[(&AtomicU32, u32)], _: Duration) -> crate::error::Result<()> {
    let mut asleep = ASLEEP.0.lock().unwrap();
    if words.iter().any(|(word, value)| word.0.load(Ordering::Relaxed) != *value) {
        return Ok(());
    }
    asleep.last += 1;
    let number = asleep.last;
    asleep.all.push((number, words.iter().map(|(word, _)| address(word)).collect()));
    while asleep.all.iter().any(|(n, _)| *n == number) {
        asleep = ASLEEP.1.wait(asleep).unwrap();
    }
    Ok(())
}

pub(crate) fn futex_wake(word: &AtomicU32) {
    wake(word, usize::MAX);
}

pub(crate) fn futex_wake_one(word: &AtomicU32) {
    wake(word, 1);
}

fn wake(word: &AtomicU32, mut most: usize) {
    let mut asleep = ASLEEP.0.lock().unwrap();
    asleep.all.retain(|(_, words)| {
        let woken = most > 0 && words.contains(&address(word));
        most -= usize::from(woken);
        !woken
    });
    ASLEEP.1.notify_all();
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

macro_rules! atomic {
    ($name:ident $(<$p:ident>)?, $value:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name$(<$p>)?(loomed::$name$(<$p>)?);

        impl$(<$p>)? $name$(<$p>)? {
            pub(crate) fn new(value: $value) -> Self {
                $name(loomed::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                let order = order_of("load", order).unwrap_or(Ordering::Relaxed);
                ordered(order, Ordering::Acquire, |o| self.0.load(o))
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                let order = order_of("store", order).unwrap_or(Ordering::Relaxed);
                ordered(order, Ordering::Release, |o| self.0.store(value, o))
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                let order = order_of("swap", order).unwrap_or(Ordering::Relaxed);
                ordered(order, Ordering::AcqRel, |o| self.0.swap(value, o))
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let order = order_of("compare_exchange", order).unwrap_or(Ordering::Relaxed);
                let failure = order_of("failure", failure).unwrap_or(Ordering::Relaxed);
                let failure = if failure == Ordering::SeqCst { Ordering::Acquire } else { failure };
                ordered(order, Ordering::AcqRel, |o| self.0.compare_exchange(old, new, o, failure))
            }

            pub(crate) fn get_mut(&mut self) -> GetMut<$value> {
                // SAFETY: the borrow of self is exclusive.
                GetMut(unsafe { self.0.unsync_load() })
            }
        }
    };
}

/// A copy of the value of an atomic that no other thread has.
pub(crate) struct GetMut<T>(T);

impl<T> std::ops::Deref for GetMut<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

macro_rules! number {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl $name {
            #[track_caller]
            pub(crate) fn fetch_add(&self, n: $value, order: Ordering) -> $value {
                let order = order_of("fetch_add", order).unwrap_or(Ordering::Relaxed);
                ordered(order, Ordering::AcqRel, |o| self.0.fetch_add(n, o))
            }

            #[track_caller]
            pub(crate) fn fetch_sub(&self, n: $value, order: Ordering) -> $value {
                let order = order_of("fetch_sub", order).unwrap_or(Ordering::Relaxed);
                ordered(order, Ordering::AcqRel, |o| self.0.fetch_sub(n, o))
            }

            #[track_caller]
            pub(crate) fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                let order = order_of("fetch_or", order).unwrap_or(Ordering::Relaxed);
                ordered(order, Ordering::AcqRel, |o| self.0.fetch_or(bits, o))
            }

            #[track_caller]
            pub(crate) fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                let order = order_of("fetch_and", order).unwrap_or(Ordering::Relaxed);
                ordered(order, Ordering::AcqRel, |o| self.0.fetch_and(bits, o))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name::new(0)
            }
        }

        impl Load for $name {
            type Value = $value;

            #[track_caller]
            fn load_page(&self, order: Ordering) -> $value {
                self.load(order)
            }
        }
    };
}

number!(AtomicU64, u64);
number!(AtomicU32, u32);
number!(AtomicUsize, usize);
atomic!(AtomicBool, bool);
atomic!(AtomicPtr<T>, *mut T);

impl Default for AtomicBool {
    fn default() -> Self {
        AtomicBool::new(false)
    }
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        AtomicPtr::new(std::ptr::null_mut())
    }
}
