//! When waits end.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::error::Result;

/// How long a request waits for its answer, a broker's absence included.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a broker that runs may take to answer, however short the timeout of the call that asks it.
const A_MOMENT: Duration = Duration::from_secs(1);

thread_local! {
    static LIMIT: Cell<Option<Limit>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Limit {
    /// `None`: what there is at once is all that is wanted.
    until: Option<Instant>,
    /// From the first request on.
    least: Duration,
}

/// Carries out a part of a call that has a deadline: what it asks the broker, in whatever depth, is
/// waited for until then, though for a moment at least. Without a deadline each request has its own time.
#[inline]
pub(crate) fn within<T>(until: Option<Instant>, part: impl FnOnce() -> T) -> T {
    if until.is_none() {
        return part();
    }
    limited(Some(Limit { until, least: A_MOMENT }), part)
}

/// As [`within`], of a call that does not wait. `None` too when the broker has not answered in a moment.
#[inline]
pub(crate) fn at_once<T>(look: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    answered(limited(Some(Limit { until: None, least: A_MOMENT }), look))
}

/// As [`at_once`], of a task, which must not hold up its thread: it looks again later.
#[cfg(feature = "tokio")]
pub(crate) fn shortly<T>(look: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    answered(limited(Some(Limit { until: None, least: A_MOMENT / 10 }), look))
}

fn answered<T>(found: Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(e) if e.is_unanswered() => Ok(None),
        found => found,
    }
}

/// Looks again while the broker does not answer, until there is something or the deadline has come: only
/// then is it the error.
#[inline]
pub(crate) fn persist<T>(until: Option<Instant>, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match within(until, &mut look) {
            Err(e) if e.is_unanswered() && until.is_none_or(|u| Instant::now() < u) => {}
            found => return found,
        }
    }
}

/// Calls the program's hook, whose own calls have nothing to do with the one that is under way.
pub(crate) fn unlimited(hook: fn() -> bool) -> bool {
    limited(None, hook)
}

#[inline]
fn limited<T>(limit: Option<Limit>, part: impl FnOnce() -> T) -> T {
    struct Before(Option<Limit>);
    impl Drop for Before {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _before = Before(LIMIT.replace(limit));
    part()
}

/// Until when a request that this thread makes now may wait for its answer.
pub(crate) fn of_request() -> Instant {
    let now = Instant::now();
    let Some(Limit { until, least }) = LIMIT.get() else { return now + PATIENCE };
    let until = until.map_or(now + least, |u| u.max(now + least));
    LIMIT.set(Some(Limit { until: Some(until), least: Duration::ZERO }));
    until.min(now + PATIENCE)
}

/// When a timeout that begins now is over. `None` is never, and so is a time that the clock cannot
/// tell, such as `Duration::MAX`.
#[inline]
pub(crate) fn deadline(timeout: impl Into<Option<Duration>>) -> Option<Instant> {
    timeout.into().and_then(|t| Instant::now().checked_add(t))
}

/// When a call's timeout is over, for bindings whose calls wait twice: for their turn with a value
/// ([`Turns`](crate::Turns)), then with it.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The end of a timeout that begins now; without one there is none.
    pub fn after(timeout: impl Into<Option<Duration>>) -> Deadline {
        Deadline(deadline(timeout))
    }

    /// What is left of the timeout; `None`: for ever.
    pub fn left(self) -> Option<Duration> {
        self.0.map(|until| until.saturating_duration_since(Instant::now()))
    }
}
