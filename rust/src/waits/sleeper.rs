//! A thread that sleeps on the session's bell in the place of those that cannot: poll loops and async
//! tasks.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use crate::shm::{LOOK_AGAIN, Parking};
use crate::sys::own_thread;

/// What the thread reports of a ring.
pub(crate) trait Alarm: Send + Sync + 'static {
    /// Something may have changed.
    fn raise(&self);
    /// The program is about to look.
    fn lower(&self) {}
}

/// What the thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing: the alarm was raised and not lowered since.
    Rung,
    /// Sleeps until the bell differs from this value.
    Armed(u32),
    /// The session has ended: raised for good.
    Ended,
}

/// The bridge from the bell to an alarm.
#[derive(Debug)]
pub(crate) struct Sleeper<A> {
    pub(crate) alarm: A,
    parking: Arc<Parking>,
    state: Mutex<State>,
    changed: Condvar,
}

impl<A: Alarm> Sleeper<A> {
    /// Raises the alarm and starts the thread, which ends with [`end`](Sleeper::end).
    pub(crate) fn start(alarm: A, parking: Arc<Parking>) -> io::Result<Arc<Sleeper<A>>> {
        let (state, changed) = (Mutex::new(State::Rung), Condvar::new());
        let p = Arc::new(Sleeper { alarm, parking, state, changed });
        p.alarm.raise();
        let thread = p.clone();
        own_thread("baton-sleeper", None, move |_| thread.run())?;
        Ok(p)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            match *state {
                State::Rung => state = self.changed.wait(state).unwrap_or_else(|p| p.into_inner()),
                State::Ended => return,
                State::Armed(bell) => {
                    drop(state);
                    // When the time is over it may be without a ring. The program looks once, as every
                    // wait does: a ringer stopped before it rang costs a delay and never a hang.
                    // A late wake of an earlier ring ends the sleep early, and is none of this one's.
                    let until = Instant::now() + LOOK_AGAIN;
                    while self.parking.bell() == bell {
                        let left = until.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            break;
                        }
                        self.parking.sleep(bell, left);
                    }
                    self.parking.end();
                    state = self.state();
                    if *state != State::Ended {
                        *state = State::Rung;
                        self.alarm.raise();
                    }
                }
            }
        }
    }

    /// Announces the sleep, unless that has been done since the last ring. What the caller looks at
    /// afterwards is the second look; whatever is published later rings.
    pub(crate) fn arm(&self) {
        let mut state = self.state();
        if *state == State::Rung {
            self.alarm.lower();
            *state = State::Armed(self.parking.begin());
            self.changed.notify_one();
        }
    }

    /// Whether the sleep is announced.
    pub(crate) fn is_armed(&self) -> bool {
        matches!(*self.state(), State::Armed(_))
    }

    /// Raises the alarm for good and ends the thread, which may have to be rung for it.
    pub(crate) fn end(&self) {
        *self.state() = State::Ended;
        self.alarm.raise();
        self.changed.notify_one();
    }
}
