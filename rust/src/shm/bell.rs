//! Waiting and waking: the parked word of a session that sleeps, and its bell, which others ring.

use std::time::Duration;

use super::region::fence;
use super::words::Region;
use crate::crash_point;
use crate::error::Result;
use crate::layout::{bell_file, bell_record};
use crate::sync::{AtomicU64, Mutex, Ordering, futex_wait_any};

/// How long a parked session sleeps at most: false data, or a ringer that is suspended between publishing and
/// ringing, costs a delay and never a hang.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Microseconds for which a session is taken to be still about on a processor where it began to wait.
const A_MOMENT: u64 = 100;

/// The bell file of an instance: the bells of its sessions, and which sessions wait in which topic.
#[derive(Debug, Clone)]
pub(crate) struct Bells(pub(super) Region);

impl Bells {
    /// Views a mapping of the whole file.
    pub(crate) fn new(file: Region) -> Bells {
        Bells(file)
    }

    /// Notes that a session waits on a processor, and tells whether another one began to wait there a moment ago: then
    /// each looks for what the other has to do first. A hint, which any session may have written.
    pub(crate) fn crowds(&self, processor: usize, slot: u32, now: u64) -> bool {
        const TIME: u64 = (1 << 48) - 1; // of microseconds, above the slot
        let at = bell_file::WAITERS + 8 * (processor as u64 % bell_file::MOST_WAITERS);
        let (last, time) = (self.0.load(at), (now / 1000) & TIME);
        self.0.store(at, time << 16 | u64::from(slot));
        last as u16 != slot as u16 && time.wrapping_sub(last >> 16) & TIME < A_MOMENT
    }

    /// What belongs to a session slot, which is below [`SESSIONS`](crate::layout::limits::SESSIONS).
    pub(super) fn record(&self, slot: u32) -> Region {
        self.0.sub(bell_file::record(slot), bell_record::SIZE)
    }

    /// The waiting side of the session of a slot.
    pub(crate) fn parking(&self, slot: u32) -> Parking {
        Parking { record: self.record(slot), sleepers: Mutex::new(0) }
    }

    /// The session of a slot, to be rung.
    pub(crate) fn bell(&self, slot: u32) -> Bell {
        Bell { record: self.record(slot), rung: AtomicU64::new(0) }
    }

    /// Makes the session of a slot look again, whatever its parked word says.
    pub(crate) fn wake(&self, slot: u32) {
        wake(&self.0, bell_file::record(slot) + bell_record::BELL);
    }
}

/// The waiting side of a session. Any number of its threads sleep on the one bell: each makes the
/// parked word another odd number, so a ringer that rang for an earlier sleeper rings again. It goes on
/// from the number that it finds, be it that of a session that died in the slot.
#[derive(Debug)]
pub(crate) struct Parking {
    record: Region,
    sleepers: Mutex<u32>,
}

impl Parking {
    /// Announces that the calling thread is going to sleep and returns the bell's value. The caller
    /// then looks once more at everything it waits for, and calls `sleep` or not, then `end`.
    ///
    /// SYNC parked: the store, then a fence, then the second look; pairs with `Bell::ring`, which
    /// publishes, fences, then looks at parked. One of the two sees the other.
    pub(crate) fn begin(&self) -> u32 {
        let e = self.bell();
        let mut n = self.sleepers.lock().unwrap_or_else(|p| p.into_inner());
        *n += 1;
        let p = self.record.load(bell_record::PARKED);
        self.record.store(bell_record::PARKED, p.wrapping_add(1) | 1);
        drop(n);
        fence();
        crash_point::at("park-begin");
        e
    }

    /// The bell's value, which changes with each ring.
    pub(crate) fn bell(&self) -> u32 {
        self.record.load32(bell_record::BELL)
    }

    /// Sleeps until the bell differs from `e`, at most `time` and at most [`LOOK_AGAIN`].
    pub(crate) fn sleep(&self, e: u32, time: Duration) {
        if !time.is_zero() {
            self.record.futex_wait(bell_record::BELL, e, time.min(LOOK_AGAIN));
        }
    }

    /// As `sleep`, on the bells of several sessions, while each has its value. Error where the kernel knows no such
    /// sleep.
    pub(crate) fn sleep_any(bells: &[(&Parking, u32)], time: Duration) -> Result<()> {
        if time.is_zero() {
            return Ok(());
        }
        let words: Vec<_> = bells.iter().map(|(p, e)| (p.record.word32(bell_record::BELL), *e)).collect();
        futex_wait_any(&words, time.min(LOOK_AGAIN))
    }

    /// Announces that the thread is awake; with the last one the word becomes even.
    pub(crate) fn end(&self) {
        let mut n = self.sleepers.lock().unwrap_or_else(|p| p.into_inner());
        *n -= 1;
        if *n == 0 {
            let p = self.record.load(bell_record::PARKED);
            self.record.store(bell_record::PARKED, (p | 1).wrapping_add(1));
        }
    }

    /// Makes every thread that sleeps look again.
    pub(crate) fn wake(&self) {
        wake(&self.record, bell_record::BELL);
    }
}

/// A session as seen by a session that rings it.
#[derive(Debug)]
pub(crate) struct Bell {
    record: Region,
    rung: AtomicU64,
}

impl Bell {
    /// Wakes the session if it is parked and was not rung for this sleep. The caller has published
    /// and then called [`fence`]. Two threads that ring at once may ring twice, which is harmless.
    ///
    /// SYNC parked: pairs with `Parking::begin`.
    pub(crate) fn ring(&self) {
        let p = self.record.load(bell_record::PARKED);
        if p & 1 == 0 || p == self.rung.load(Ordering::Relaxed) {
            return;
        }
        wake(&self.record, bell_record::BELL);
        self.rung.store(p, Ordering::Relaxed);
    }
}

/// Rings unconditionally.
///
/// SYNC bell: the increment makes a futex wait with the former value return.
fn wake(r: &Region, bell: u64) {
    r.add32(bell, 1);
    crash_point::at("bell-added");
    r.futex_wake(bell);
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sys::Mapping;

    const SLOT: u32 = crate::layout::limits::SESSIONS - 1;

    fn bells() -> Bells {
        Bells::new(Region::new(Arc::new(Mapping::anonymous(bell_file::BYTES as usize).unwrap())))
    }

    #[test]
    fn a_processor_is_crowded_while_two_sessions_wait_there() {
        let bells = bells();
        let us = 1000;
        assert!(!bells.crowds(1, 7, 1000 * us), "no session has waited");
        assert!(!bells.crowds(1, 7, 1010 * us), "itself");
        assert!(bells.crowds(1, 8, 1020 * us));
        assert!(!bells.crowds(2, 7, 1025 * us), "another processor");
        assert!(bells.crowds(1, 7, 1030 * us));
        assert!(!bells.crowds(1, 8, 2000 * us), "that is long ago");
    }

    #[test]
    fn a_second_sleeper_is_rung_after_the_first_was() {
        let bells = bells();
        let (parking, ringer) = (bells.parking(SLOT), bells.bell(SLOT));
        let e1 = parking.begin();
        ringer.ring();
        let e2 = parking.begin();
        assert_ne!(e1, e2);
        ringer.ring();
        assert_ne!(parking.begin(), e2, "the second sleeper was rung too");
    }

    #[test]
    fn a_sleeper_is_rung_once_for_a_sleep() {
        let bells = bells();
        let (parking, ringer) = (bells.parking(SLOT), bells.bell(SLOT));
        let e = parking.begin();
        ringer.ring();
        ringer.ring();
        assert_eq!(parking.bell(), e + 1);
        parking.end();
        ringer.ring();
        assert_eq!(parking.bell(), e + 1, "awake: nothing to ring");
    }

    #[test]
    fn a_session_is_rung_although_one_died_asleep_in_its_slot() {
        let bells = bells();
        let ringer = bells.bell(SLOT);
        bells.parking(SLOT).begin();
        ringer.ring();
        let parking = bells.parking(SLOT);
        let e = parking.begin();
        ringer.ring();
        assert_eq!(parking.bell(), e + 1);
    }

    #[test]
    fn a_ring_between_look_and_sleep_is_not_lost() {
        let bells = bells();
        let parking = Arc::new(bells.parking(SLOT));
        let ringer = bells.bell(SLOT);
        let shared = Region::new(Arc::new(Mapping::anonymous(4096).unwrap()));
        let waiter = std::thread::spawn({
            let shared = shared.clone();
            move || {
                for i in 1..=2000u64 {
                    while shared.load(8) < i {
                        let e = parking.begin();
                        if shared.load(8) < i {
                            parking.sleep(e, LOOK_AGAIN);
                        }
                        parking.end();
                    }
                    shared.store(16, i);
                }
            }
        });
        for i in 1..=2000u64 {
            shared.store(8, i);
            fence();
            ringer.ring();
            while shared.load(16) < i {
                std::thread::yield_now();
            }
        }
        waiter.join().unwrap();
    }
}
