//! What is to be looked at from time to time for messages that nothing waits for any more, by the session's thread.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use crate::holding::Opening;

/// How soon it is looked first, and how seldom later.
const SOONEST: Duration = Duration::from_millis(5);
const SELDOM: Duration = Duration::from_secs(1);

/// Has messages to come that nothing waits for.
pub(crate) trait Unawaited: Send + Sync {
    /// Lets go of those that have come.
    fn let_go(&self);

    /// Whether there are more to come. What begins to wait after this is added again.
    fn waits(&self) -> bool;
}

/// All that a session has of it.
#[derive(Default)]
pub(crate) struct Late(Mutex<State>);

#[derive(Default)]
struct State {
    all: Vec<Weak<dyn Unawaited>>,
    /// When the next look is due, and how long that waited.
    due: Option<(Instant, Duration)>,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").finish_non_exhaustive()
    }
}

impl Late {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Has the session's thread look soon, and then more and more seldom, until nothing is to come.
    pub(crate) fn add(&self, inner: &Opening, one: Weak<dyn Unawaited>) {
        let mut s = self.state();
        if !s.all.iter().any(|w| w.ptr_eq(&one)) {
            s.all.push(one);
        }
        let soon = Instant::now() + SOONEST;
        let wakes = s.due.is_none_or(|(at, _)| at > soon);
        if wakes {
            s.due = Some((soon, SOONEST));
        }
        drop(s);
        if wakes {
            inner.thread.wake();
        }
    }

    /// When it is to be looked next.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.state().due.map(|(at, _)| at)
    }

    /// Looks in the session's thread, and says when it looks again.
    pub(crate) fn look_in_turn(&self) {
        let Some((_, pause)) = self.state().due.take() else { return };
        self.look();
        let mut s = self.state();
        if s.due.is_none() && !s.all.is_empty() {
            let pause = (2 * pause).min(SELDOM);
            s.due = Some((Instant::now() + pause, pause));
        }
    }

    /// Looks now, before memory is refused.
    pub(crate) fn look(&self) {
        let all: Vec<_> = self.state().all.iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|one| one.let_go()); // unlocked: it may ask the broker
        let over = |w: &Weak<dyn Unawaited>| {
            all.iter().any(|one| std::ptr::addr_eq(w.as_ptr(), Arc::as_ptr(one)) && !one.waits())
        };
        self.state().all.retain(|w| w.strong_count() > 0 && !over(w));
    }
}
