//! The waits of a session's threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Place;
use super::hub::{Hub, Slept};
use super::spinner::MOST_SPIN;
use crate::crash_point;
use crate::error::Result;
use crate::shm::{Bells, LOOK_AGAIN, Parking, pause};
use crate::sys;

/// How many waits do not yield after one for which that took long.
const SHY_WAITS: u32 = 32;

/// When a wait looks at what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Again and again.
    Spinning,
    /// Before and after a sleep: what is not seen then is slept over.
    Parked,
}

/// What the waits of one session have in common.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) parking: Arc<Parking>,
    hub: Hub,
    bells: Bells,
    slot: u32,
    /// Whether there are several processors, so that spinning may be of use.
    pub(crate) spins: bool,
    /// Whether the last wait was on one processor with another session, perhaps the one waited for.
    crowded: AtomicBool,
    /// Waits that do not yield, since that took long.
    shy: AtomicU32,
}

impl Waiter {
    pub(crate) fn new(bells: &Bells, slot: u32, spins: bool) -> Waiter {
        let parking = Arc::new(bells.parking(slot));
        Waiter {
            hub: Hub::new(parking.clone()),
            parking,
            bells: bells.clone(),
            slot,
            spins,
            crowded: AtomicBool::new(false),
            shy: AtomicU32::new(0),
        }
    }

    /// Has all threads of the session that sleep look again.
    pub(crate) fn wake(&self) {
        self.parking.wake();
    }

    /// Looks until it succeeds or the time is over. Where both processes of a pair run on one processor, a spin
    /// keeps the other one from what it is waited for: there it lets the other one run, and sleeps no more than
    /// that one, so that the kernel sees two that want to run and moves one of them to a processor that is idle.
    fn spin_until(&self, at: u64, look: &mut impl FnMut() -> bool) -> bool {
        let mut crowded = self.crowded.load(Ordering::Relaxed); // from the last wait: a hint
        let mut known = false;
        loop {
            let looks = if crowded { 1 } else { 16 };
            for _ in 0..looks {
                if look() {
                    return true;
                }
                pause();
            }
            let now = sys::monotonic();
            if now >= at {
                return false;
            }
            if !known {
                known = true;
                let shy = self.shy.load(Ordering::Relaxed);
                if shy > 0 {
                    self.shy.store(shy - 1, Ordering::Relaxed);
                }
                let is = self.bells.crowds(sys::processor(), self.slot, now) && shy == 0;
                if is != crowded {
                    crowded = is;
                    self.crowded.store(is, Ordering::Relaxed);
                }
            }
            if !crowded {
                continue;
            }
            sys::let_others_run();
            if sys::monotonic() - now > MOST_SPIN {
                // To a thread that computes: a sleeper is let run sooner.
                self.shy.store(SHY_WAITS, Ordering::Relaxed);
                self.crowded.store(false, Ordering::Relaxed);
                return look();
            }
        }
    }
}

/// What a thread waits for in one session: where messages come, in no place for anything else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) waiter: &'a Waiter,
    pub(crate) places: &'a [Place<'a>],
}

impl Side<'_> {
    /// Announces the sleep, and returns the bell's value. The caller looks once more, sleeps or not, and calls `leave`.
    fn enter(&self) -> u32 {
        let e = self.waiter.parking.begin();
        self.places.iter().for_each(|p| p.enter());
        e
    }

    fn leave(&self) {
        self.places.iter().for_each(|p| p.leave());
        self.waiter.parking.end();
    }
}

/// Returns true when `look` says so, false at the deadline, an error that `woken`, which is called after each
/// sleep, ends the wait with. It spins until the time `spin` at most, then sleeps; a sleeper looks again at least
/// once a second. What is waited for may be in several sessions: the thread sleeps on the bells of all. Error:
/// `Unsupported`, where the kernel cannot do that.
///
/// `look` is told what it is for: what is seldom so, and slow to look at, need not be looked at while it spins.
pub(crate) fn wait(
    first: Side<'_>,
    others: &[Side<'_>],
    spin: Option<u64>,
    until: Option<Instant>,
    mut look: impl FnMut(Look) -> bool,
    woken: impl Fn() -> Result<()>,
) -> Result<bool> {
    let w = first.waiter;
    let mut often = || look(Look::Spinning);
    if often() || w.spins && spin.is_some_and(|s| w.spin_until(sooner(s, until), &mut often)) {
        return Ok(true);
    }
    let mut look = || look(Look::Parked);
    #[cfg(not(baton_loom))]
    let _rung = super::enclosing().map(|call| {
        let wait: Arc<dyn super::Rouse> = w.parking.clone();
        let hears = |bell: &Parking| [&first].into_iter().chain(others).any(|s| std::ptr::eq(bell, &*s.waiter.parking));
        super::Rung::new(&call, &wait, hears)
    });
    loop {
        let left = until.map_or(LOOK_AGAIN, |u| u.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(false);
        }
        let (here, slept) = match others {
            [] => (w.hub.sleep(first.places, left, &mut look), Ok(())),
            others => sleep_in_several(first, others, left, &mut look),
        };
        if here.found || look() {
            if here.chosen {
                w.hub.pass_on(first.places);
            }
            return Ok(true);
        }
        slept?;
        woken()?;
    }
}

/// Sleeps on the bells of several sessions, unless there is something.
#[cold]
fn sleep_in_several(
    first: Side<'_>,
    others: &[Side<'_>],
    left: Duration,
    look: &mut impl FnMut() -> bool,
) -> (Slept, Result<()>) {
    let all = || [&first].into_iter().chain(others);
    let bells: Vec<_> = all().map(|s| (&*s.waiter.parking, s.enter())).collect();
    let found = look();
    let mut slept = Ok(());
    if !found {
        crash_point::at("park-sleep");
        slept = Parking::sleep_any(&bells, left);
        crash_point::at("park-woken");
    }
    all().for_each(|s| s.leave());
    (Slept { found, chosen: false }, slept)
}

/// A time, or a deadline where that comes first.
fn sooner(at: u64, deadline: Option<Instant>) -> u64 {
    let Some(d) = deadline else { return at };
    let left = d.saturating_duration_since(Instant::now()).as_nanos() as u64;
    at.min(sys::monotonic().saturating_add(left))
}
