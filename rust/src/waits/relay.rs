//! What rings the waits that are made within a call.
//!
//! When a call is over, the bell of the session that runs it is rung. What its function waits for may lie elsewhere: at
//! another session's bell, or at a broker that does not answer. Such a wait is registered while it sleeps with the relay
//! of each session on which the end of its call depends. The relay's thread sleeps on the bell of that session, looks at
//! the calls of all that are registered, and rings those whose call is over. It is started with the first, and ends a second or
//! two after the last.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::error::Result;
use crate::shm::{LOOK_AGAIN, Parking, fence};
use crate::sys::{PerProcess, own_thread};

/// The call that a wait is within.
pub(crate) trait Enclosing: Send + Sync {
    /// Why what waits within it is to end, where it is.
    fn check(&self) -> Result<()>;

    /// Until when it may take.
    fn deadline(&self) -> Option<Instant>;

    /// The relays of the sessions that are rung where it is over.
    fn relays(&self, each: &mut dyn FnMut(&Arc<Relay>));
}

/// What ends a sleep.
pub(crate) trait Rouse: Send + Sync {
    /// Has what sleeps look again.
    fn rouse(&self);
}

impl Rouse for Parking {
    fn rouse(&self) {
        self.wake();
    }
}

thread_local! {
    /// What the waits of this thread are within.
    static ENCLOSING: RefCell<Option<Arc<dyn Enclosing>>> = const { RefCell::new(None) };
}

/// Carries out a part of a call that waits, within another call or within none.
pub(crate) fn enclosed<T>(call: Option<Arc<dyn Enclosing>>, part: impl FnOnce() -> T) -> T {
    struct Before(Option<Arc<dyn Enclosing>>);
    impl Drop for Before {
        fn drop(&mut self) {
            let before = self.0.take();
            drop(ENCLOSING.with(|e| e.replace(before)));
        }
    }
    let _before = Before(ENCLOSING.with(|e| e.replace(call)));
    part()
}

/// What the waits of this thread are within. A thread that is ending has none.
#[inline]
pub(crate) fn enclosing() -> Option<Arc<dyn Enclosing>> {
    ENCLOSING.try_with(|e| e.borrow().clone()).ok().flatten()
}

/// A wait that is registered with relays, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Rung(Vec<(Arc<Relay>, u64)>);

impl Rung {
    /// Registers a wait within a call, for sessions whose bells do not end it: `hears` says of which they do.
    ///
    /// SYNC parked: after the fence the caller looks at the call, before it sleeps; pairs with `Relay::run`.
    pub(crate) fn new(call: &Arc<dyn Enclosing>, wait: &Arc<dyn Rouse>, hears: impl Fn(&Parking) -> bool) -> Rung {
        let mut rung = Rung::default();
        call.relays(&mut |relay| {
            if !hears(&relay.parking)
                && !rung.0.iter().any(|(r, _)| Arc::ptr_eq(r, relay))
                && let Some(number) = relay.register(call, wait)
            {
                rung.0.push((relay.clone(), number));
            }
        });
        fence();
        rung
    }

    /// As `new`, of what the bell of a session ends.
    pub(crate) fn by_bell(call: &Arc<dyn Enclosing>, bell: &Arc<Parking>) -> Rung {
        let wait: Arc<dyn Rouse> = bell.clone();
        Rung::new(call, &wait, |other| std::ptr::eq(other, &**bell))
    }
}

impl Drop for Rung {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(relay, number)| relay.remove(number));
    }
}

/// The relay of one session.
pub(crate) struct Relay {
    parking: Arc<Parking>,
    state: PerProcess<Mutex<State>>,
}

#[derive(Default)]
struct State {
    last: u64,
    all: Vec<Registered>,
    /// Whether the thread is there.
    runs: bool,
    /// Since when there has been no wait, and which was the last then.
    idle: Option<(Instant, u64)>,
}

struct Registered {
    number: u64,
    call: Arc<dyn Enclosing>,
    wait: Arc<dyn Rouse>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|p| p.into_inner())
}

impl Relay {
    /// The relay of the session that sleeps so.
    pub(crate) fn new(parking: &Arc<Parking>) -> Arc<Relay> {
        Arc::new(Relay { parking: parking.clone(), state: PerProcess::new() })
    }

    /// Registers a wait. Nothing where no thread can be started: then the look once a second is for it.
    fn register(self: &Arc<Self>, call: &Arc<dyn Enclosing>, wait: &Arc<dyn Rouse>) -> Option<u64> {
        let mut state = locked(self.state.get_or(Mutex::default).ok()?);
        if !state.runs {
            let relay = self.clone();
            own_thread("baton-relay", None, move |_| relay.run()).ok()?;
            (state.runs, state.idle) = (true, None);
        }
        state.last += 1;
        let number = state.last;
        state.all.push(Registered { number, call: call.clone(), wait: wait.clone() });
        Some(number)
    }

    fn remove(&self, number: u64) {
        let Some(state) = self.state.get() else { return }; // the parent's
        let mut state = locked(state);
        let at = state.all.iter().position(|r| r.number == number);
        let gone = at.map(|at| state.all.swap_remove(at));
        drop(state);
        drop(gone); // unlocked: it may be the last that has its session
    }

    /// Looks at the calls, and sleeps until the session is rung.
    ///
    /// SYNC parked: the parked word, then a fence, then the look under the lock. A wait that is registered after that look
    /// fences and looks itself: it sees the end of its call, or what ends that sees the parked word and rings.
    fn run(&self) {
        let Some(state) = self.state.get() else { return };
        loop {
            let bell = self.parking.begin();
            let mut locked = locked(state);
            let over: Vec<_> = locked.all.extract_if(.., |r| r.call.check().is_err()).collect();
            let goes_on = locked.goes_on();
            drop(locked);
            over.iter().for_each(|r| r.wait.rouse());
            if over.is_empty() && goes_on {
                self.parking.sleep(bell, LOOK_AGAIN);
            }
            self.parking.end();
            if !goes_on {
                return;
            }
        }
    }
}

impl State {
    /// Whether the thread is of use still. It stays for a second without waits, for the next.
    fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        match (self.all.is_empty(), self.idle) {
            (false, _) => self.idle = None,
            (true, Some((since, last))) if last == self.last => self.runs = now - since < LOOK_AGAIN,
            (true, _) => self.idle = Some((now, self.last)),
        }
        self.runs
    }
}
