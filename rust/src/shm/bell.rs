//! Waiting and waking: the parked word that a session writes, and the bell that others ring.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::region::{Region, fence};
use crate::crash_point;
use crate::layout::{BELL_WORD, session_file};
use crate::sync::{AtomicU64, Mutex};

/// How long a parked session sleeps at most: a lie, or a ringer stopped between publishing and
/// ringing, costs a delay and never a hang.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The waiting side of a session. Any number of its threads sleep on the one bell: each makes the
/// parked word another odd number, so a ringer that rang for an earlier sleeper rings again.
#[derive(Debug)]
pub(crate) struct Parking {
    session: Region,
    bell: Region,
    sleepers: Mutex<u32>,
}

impl Parking {
    pub(crate) fn new(session: Region, bell: Region) -> Parking {
        Parking { session, bell, sleepers: Mutex::new(0) }
    }

    /// Announces that the calling thread is going to sleep and returns the bell's value. The caller
    /// then looks once more at everything it waits for, and calls `sleep` or not, then `end`.
    ///
    /// SYNC parked: the store, then a fence, then the second look; pairs with `Bell::ring`, which
    /// publishes, fences, then looks at parked. One of the two sees the other.
    pub(crate) fn begin(&self) -> u32 {
        let e = self.bell.load32(BELL_WORD);
        let mut n = self.sleepers.lock().unwrap_or_else(|p| p.into_inner());
        *n += 1;
        let p = self.session.load(session_file::PARKED);
        self.session.store(session_file::PARKED, (p + 1) | 1);
        drop(n);
        fence();
        crash_point::at("park-begin");
        e
    }

    /// Sleeps until the bell differs from `e`, at most `time` and at most [`LOOK_AGAIN`].
    pub(crate) fn sleep(&self, e: u32, time: Duration) {
        if !time.is_zero() {
            self.bell.futex_wait(BELL_WORD, e, time.min(LOOK_AGAIN));
        }
    }

    /// Tells whether the bell was rung since it read `e`.
    pub(crate) fn rung(&self, e: u32) -> bool {
        self.bell.load32(BELL_WORD) != e
    }

    /// Announces that the thread is awake; with the last one the word becomes even.
    pub(crate) fn end(&self) {
        let mut n = self.sleepers.lock().unwrap_or_else(|p| p.into_inner());
        *n -= 1;
        if *n == 0 {
            let p = self.session.load(session_file::PARKED);
            self.session.store(session_file::PARKED, (p | 1) + 1);
        }
    }

    /// Makes every thread that sleeps look again.
    pub(crate) fn wake(&self) {
        wake_bell(&self.bell);
    }
}

/// A session as seen by one who rings it.
#[derive(Debug)]
pub(crate) struct Bell {
    session: Region,
    bell: Region,
    rung: AtomicU64,
}

impl Bell {
    pub(crate) fn new(session: Region, bell: Region) -> Bell {
        Bell { session, bell, rung: AtomicU64::new(0) }
    }

    /// Wakes the session if it is parked and was not rung for this sleep. The caller has published
    /// and then called [`fence`]. Two threads that ring at once may ring twice, which is harmless.
    ///
    /// SYNC parked: pairs with `Parking::begin`.
    pub(crate) fn ring(&self) {
        let p = self.session.load(session_file::PARKED);
        if p & 1 == 0 || p == self.rung.load(Ordering::Relaxed) {
            return;
        }
        wake_bell(&self.bell);
        self.rung.store(p, Ordering::Relaxed);
    }
}

/// Rings a bell file unconditionally.
///
/// SYNC bell: the increment makes a futex wait with the former value return.
fn wake_bell(bell: &Region) {
    bell.add32(BELL_WORD, 1);
    crash_point::at("bell-added");
    bell.futex_wake(BELL_WORD);
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sys::Mapping;

    fn pages() -> (Region, Region) {
        let page = || Region::new(Arc::new(Mapping::anonymous(4096).unwrap()));
        (page(), page())
    }

    #[test]
    fn a_second_sleeper_is_rung_after_the_first_was() {
        let (session, bell) = pages();
        let parking = Parking::new(session.clone(), bell.clone());
        let ringer = Bell::new(session, bell);
        let e1 = parking.begin();
        ringer.ring();
        let e2 = parking.begin();
        assert_ne!(e1, e2);
        ringer.ring();
        assert_ne!(parking.begin(), e2, "the second sleeper was rung too");
    }

    #[test]
    fn a_sleeper_is_rung_once_for_a_sleep() {
        let (session, bell) = pages();
        let parking = Parking::new(session.clone(), bell.clone());
        let ringer = Bell::new(session, bell.clone());
        let e = parking.begin();
        ringer.ring();
        ringer.ring();
        assert_eq!(bell.load32(BELL_WORD), e + 1);
        parking.end();
        ringer.ring();
        assert_eq!(bell.load32(BELL_WORD), e + 1, "awake: nothing to ring");
    }

    #[test]
    fn a_ring_between_look_and_sleep_is_not_lost() {
        let (session, bell) = pages();
        let parking = Arc::new(Parking::new(session.clone(), bell.clone()));
        let ringer = Bell::new(session.clone(), bell);
        let waiter = std::thread::spawn({
            let parking = parking.clone();
            let session = session.clone();
            move || {
                for i in 1..=2000u64 {
                    while session.load(8) < i {
                        let e = parking.begin();
                        if session.load(8) < i {
                            parking.sleep(e, LOOK_AGAIN);
                        }
                        parking.end();
                    }
                    session.store(16, i);
                }
            }
        });
        for i in 1..=2000u64 {
            session.store(8, i);
            fence();
            ringer.ring();
            while session.load(16) < i {
                std::thread::yield_now();
            }
        }
        waiter.join().unwrap();
    }
}
