//! Where the threads of one session sleep.
//!
//! A session has one bell. Of the threads that wait in it a few, the leaders, sleep on the bell itself; the others sleep
//! each on a word of its own. A leader that is rung finds out whom that concerns, and wakes those: a message is for the
//! threads in the set from which its sender took the session ([`ListedPlace`]): all of set 0, one of a group's, which
//! wakes another one where it has found something, so that as many are awake as there are messages. Each such ring has
//! cleared one bit. Where the bell was rung more often than bits were cleared, it rang for something else: the cause is
//! unknown, so all threads check.
//!
//! What a thread announces to other processes is the same whether it leads or not: its parked word and its bits, before
//! its second look. So a ring that is for it comes behind that, is counted while it is listed, and is found by the next
//! leader that looks at the bell. When the last leader leaves, another thread leads.
//!
//! Two lead where they can: a thread that takes a message and comes back finds another one leading, which need not be
//! woken when it goes, and sleeps on the bell itself when it comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Place;
use super::sets::ListedPlace;
use crate::crash_point;
use crate::shm::{LOOK_AGAIN, Parking, fence};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, futex_wait, futex_wake_one};

/// How many threads of a session sleep on its bell. In the models one, so that few threads are enough for others.
const MOST_LEADING: u32 = if cfg!(baton_loom) { 1 } else { 2 };

/// The threads of a session that sleep until something comes in that session alone.
#[derive(Debug)]
pub(super) struct Hub {
    parking: Arc<Parking>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The bell's value up to which rings are accounted for.
    seen: u32,
    /// Places that were found rung, beside those that `heed` finds itself, since the bell had that value.
    found: u32,
    leading: u32,
    last: u64,
    all: Vec<Listed>,
}

/// A thread that sleeps, or is about to.
#[derive(Debug)]
struct Listed {
    number: u64,
    places: Vec<ListedPlace>,
    leads: bool,
    /// It is to look.
    called: bool,
    /// It is to look in the place of all that wait in its group.
    chosen: bool,
    /// What it sleeps on while it does not lead: 0 until it is woken.
    word: Option<Arc<AtomicU32>>,
}

impl Hub {
    pub(super) fn new(parking: Arc<Parking>) -> Hub {
        Hub { parking, state: Mutex::new(State::default()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Announces a sleep in places, looks, and sleeps unless there is something; so long at most, and at most
    /// [`LOOK_AGAIN`]. After a sleep the caller looks.
    ///
    /// SYNC waiting: the bits, then the fence, then the second look; pairs with `Waiting::ring`.
    pub(super) fn sleep(&self, places: &[Place<'_>], left: Duration, look: &mut impl FnMut() -> bool) -> Slept {
        let mut state = self.state();
        let bell = self.parking.begin();
        let seat = Seat { hub: self, number: state.list(bell, places) };
        let sleeps = state.sleeps(seat.number, bell);
        drop(state);
        fence();
        if look() {
            return Slept { found: true, chosen: seat.leave(self.state()) };
        }
        let until = Instant::now() + left.min(LOOK_AGAIN);
        crash_point::at("park-sleep");
        let state = self.rest(seat.number, sleeps, until);
        crash_point::at("park-woken");
        Slept { found: false, chosen: seat.leave(state) }
    }

    /// Calls another thread in the place of one that was chosen and has found something: there may be more. It may leave
    /// that to others.
    #[cold]
    pub(super) fn pass_on(&self, places: &[Place<'_>]) {
        let mut state = self.state();
        for place in places {
            let there = state.all.iter_mut().filter(|w| w.places.iter().any(|p| p.is(place) && !p.is_for_all()));
            // Rather one that is awake, and none that sleeps on the bell where there is another.
            let Some(one) = there.max_by_key(|w| (w.called, !w.leads)) else { continue };
            one.chosen = true;
            let by_bell = one.leads && !one.called;
            one.call();
            if by_bell {
                state.found += 1;
                self.parking.wake();
            }
        }
    }

    /// Sleeps until the thread is to look, and leads meanwhile where it is to.
    fn rest(&self, number: u64, mut sleeps: Sleeps, until: Instant) -> MutexGuard<'_, State> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match &sleeps {
                _ if left.is_zero() => return self.state(),
                Sleeps::OnBell(bell) => self.parking.sleep(*bell, left),
                Sleeps::OnWord(word) => futex_wait(word, 0, left),
            }
            let mut state = self.state();
            let me = state.listed(number);
            if me.called || !me.leads || me.places.iter().any(ListedPlace::is_rung) {
                return state;
            }
            let bell = self.parking.bell();
            if matches!(sleeps, Sleeps::OnBell(before) if before == bell) {
                return state; // its time is over, or a signal has come
            }
            let woken = state.heed(bell);
            if state.listed(number).called {
                return state;
            }
            if woken > 0 && state.leading > 1 {
                // Of the two it is the one that had nothing: what was woken leads when it comes back.
                state.leading -= 1;
                state.listed(number).leads = false;
            }
            sleeps = state.sleeps(number, bell);
        }
    }
}

/// How a sleep has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slept {
    /// Whether there was something at once.
    pub(super) found: bool,
    /// Whether the thread is the one of a group that a ring was for: it passes that on where it finds something.
    pub(super) chosen: bool,
}

/// On what a thread sleeps.
enum Sleeps {
    /// While it has this value.
    OnBell(u32),
    OnWord(Arc<AtomicU32>),
}

/// A thread's entry in the list, which it takes out also where its look panics.
struct Seat<'a> {
    hub: &'a Hub,
    number: u64,
}

impl Seat<'_> {
    /// Whether the thread was chosen.
    fn leave(self, mut state: MutexGuard<'_, State>) -> bool {
        let chosen = state.unlist(self.number);
        drop(state);
        self.hub.parking.end();
        std::mem::forget(self);
        chosen
    }
}

#[cfg(not(baton_loom))] // which unwinds the threads of a deadlock, and can lock nothing then
impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.hub.state().unlist(self.number);
        self.hub.parking.end();
    }
}

impl State {
    fn listed(&mut self, number: u64) -> &mut Listed {
        let at = self.position(number);
        &mut self.all[at]
    }

    fn position(&self, number: u64) -> usize {
        self.all.iter().rposition(|w| w.number == number).expect("a thread that sleeps is listed")
    }

    /// Lists a thread that has read the bell and stored the parked word since it has the lock.
    fn list(&mut self, bell: u32, places: &[Place<'_>]) -> u64 {
        if self.all.is_empty() {
            (self.seen, self.found) = (bell, 0); // no thread was there to be rung
        } else {
            self.heed(bell); // while this one is not listed: it has not looked yet, and may sleep while the bell is so
        }
        self.last += 1;
        let leads = self.leading < MOST_LEADING;
        self.leading += u32::from(leads);
        let places = places.iter().map(|p| p.list()).collect();
        self.all.push(Listed { number: self.last, places, leads, called: false, chosen: false, word: None });
        self.last
    }

    /// On what a thread sleeps that is not called.
    fn sleeps(&mut self, number: u64, bell: u32) -> Sleeps {
        let me = self.listed(number);
        if me.leads {
            return Sleeps::OnBell(bell);
        }
        let word = me.word.get_or_insert_with(|| Arc::new(AtomicU32::new(0)));
        word.store(0, Ordering::Relaxed); // locked, as all that store it
        Sleeps::OnWord(word.clone())
    }

    /// Takes a thread out of the list and of its places. Whether it was chosen in one of them.
    fn unlist(&mut self, number: u64) -> bool {
        let at = self.position(number);
        let mut me = self.all.swap_remove(at);
        self.leading -= u32::from(me.leads);
        for place in &me.places {
            if !place.leave() {
                continue;
            }
            self.found += 1;
            me.chosen |= !place.is_for_all();
            if !self.all.is_empty() {
                fence(); // SYNC waiting: the bit is set again before this thread looks, or those that are called
                if place.is_for_all() {
                    self.call_at(place);
                }
            }
        }
        if self.leading == 0
            && let Some(next) = self.all.iter_mut().min_by_key(|w| (w.called, w.number))
        {
            next.leads = true;
            next.wake(); // not called: it leads, and looks at the bell first
            self.leading = 1;
        }
        me.chosen
    }

    /// Calls those whom the rings up to a value of the bell concern. How many were woken that did not lead: a leader
    /// sleeps on no value that this has not been called with.
    fn heed(&mut self, bell: u32) -> u32 {
        let rings = bell.wrapping_sub(self.seen);
        if rings.cast_signed() <= 0 {
            return 0; // another leader has
        }
        self.seen = bell;
        let places = self.all.iter().flat_map(|w| &w.places);
        let rung: Vec<ListedPlace> = places.filter(|p| p.take_rung()).cloned().collect();
        if !rung.is_empty() {
            fence(); // SYNC waiting: the bits are set again before those that are called look
        }
        let found = std::mem::take(&mut self.found) as usize + rung.len();
        if rings as usize > found {
            return self.all.iter_mut().map(Listed::call).sum();
        }
        rung.iter().map(|p| self.call_at(p)).sum()
    }

    /// Calls those that wait in a place that was rung: all of them, or one of a group, one that is awake where there is
    /// one. How many were woken. Those that lead are awake: the ring has changed the bell on which they sleep.
    fn call_at(&mut self, place: &ListedPlace) -> u32 {
        let there = self.all.iter_mut().filter(|w| w.places.contains(place));
        if place.is_for_all() {
            return there.map(Listed::call).sum();
        }
        let Some(one) = there.max_by_key(|w| w.leads || w.called) else { return 0 };
        one.chosen = true;
        one.call()
    }
}

impl Listed {
    /// Has it look. 1 where it was woken for that: a leader is by the bell.
    fn call(&mut self) -> u32 {
        let sleeps = !self.called && !self.leads;
        self.called = true;
        if sleeps {
            self.wake();
        }
        u32::from(sleeps)
    }

    fn wake(&self) {
        if let Some(word) = &self.word {
            word.store(1, Ordering::Relaxed); // the lock orders it
            futex_wake_one(word);
        }
    }
}

#[cfg(all(test, not(baton_loom)))]
#[path = "hub_test.rs"]
mod tests;
