//! When waits end.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long a request waits for its answer, a broker's absence included.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a broker that runs may take to answer, however short the timeout of the call that asks it.
pub(crate) const A_MOMENT: Duration = Duration::from_secs(1);

thread_local! {
    static LIMIT: Cell<Limit> = const { Cell::new(Limit::None) };
}

/// How long the requests of a part of a call may wait. It is small, for each receive and put sets it.
#[derive(Clone, Copy)]
enum Limit {
    None,
    /// Of a call with a deadline; it has a moment at least, from its first request on.
    Until(Instant),
    /// Of the call of a function: its deadline, however soon that is.
    By(Instant),
    /// Of a call that does not wait: a moment, from its first request on.
    AtOnce,
    /// Of a look of the call of a function: as much, or until its deadline.
    AtOnceBy(Instant),
    /// Of a task: a tenth of that.
    #[cfg(feature = "tokio")]
    Shortly,
    /// Of what has asked already.
    Begun(Instant),
    /// Of a request that may take longer than others.
    Long(Instant),
}

/// Carries out a part of a call that has a deadline: what it asks the broker, in whatever depth, is
/// waited for until then, though for a moment at least. Without a deadline each request has its own time.
#[inline]
pub(crate) fn within<T>(until: Option<Instant>, part: impl FnOnce() -> T) -> T {
    match until {
        Some(until) => limited(Limit::Until(until), part),
        None => part(),
    }
}

/// As [`within`], of the call of a function, whose deadline holds however soon it is.
#[inline]
pub(crate) fn by<T>(until: Option<Instant>, part: impl FnOnce() -> T) -> T {
    match until {
        Some(until) => limited(Limit::By(until), part),
        None => part(),
    }
}

/// Carries out a part of a call whose one request may take longer than others, unless the call has less time.
pub(crate) fn long<T>(until: Instant, part: impl FnOnce() -> T) -> T {
    match LIMIT.get() {
        Limit::None => limited(Limit::Long(until), part),
        _ => part(),
    }
}

/// As [`within`], of a call that does not wait. `None` too when the broker has not answered in a moment.
#[inline]
pub(crate) fn at_once<T>(look: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    answered(limited(Limit::AtOnce, look))
}

/// As [`at_once`], of a task, which must not hold up its thread: it looks again later.
#[cfg(feature = "tokio")]
pub(crate) fn shortly<T>(look: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    answered(limited(Limit::Shortly, look))
}

/// Carries out a look of a call that waits for other things as well: what it asks the broker is waited for a moment at
/// most, or for what is left of a shorter time, as until the deadline of the call.
#[inline]
pub(crate) fn for_a_moment<T>(until: Option<Instant>, look: impl FnOnce() -> T) -> T {
    let moment = |until: Option<Instant>| until.map_or(Limit::AtOnce, Limit::AtOnceBy);
    match LIMIT.get() {
        Limit::None | Limit::Until(_) => limited(moment(until), look),
        Limit::By(by) => limited(moment(sooner(Some(by), until)), look),
        Limit::Begun(until) => limited(Limit::Begun(until.min(Instant::now() + A_MOMENT)), look),
        _ => look(),
    }
}

fn answered<T>(found: Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(e) if e.is_away() => Ok(None),
        found => found,
    }
}

/// Looks again after errors that pass, as that no broker answers, until there is something or the deadline has come:
/// only then is it the error.
#[inline]
pub(crate) fn persist<T>(
    until: Option<Instant>,
    passes: impl Fn(&Error) -> bool,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    again(until, passes, || within(until, &mut look))
}

#[inline]
fn again<T>(until: Option<Instant>, passes: impl Fn(&Error) -> bool, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match look() {
            Err(e) if passes(&e) && until.is_none_or(|u| Instant::now() < u) => {}
            found => return found,
        }
    }
}

/// `persist`, of a part of the call of a function, while no broker answers: without a deadline no request's own time ends
/// the call, and with one it holds. Before each further look `goes_on` says why the call is waited for no more.
#[inline]
pub(crate) fn unanswered<T>(
    until: Option<Instant>,
    goes_on: impl Fn() -> Result<()>,
    mut part: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut before = false;
    again(until, Error::is_unanswered, || {
        if std::mem::replace(&mut before, true) {
            goes_on()?;
        }
        by(until, &mut part)
    })
}

/// Calls the program's hook, whose own calls have nothing to do with the one that is under way.
pub(crate) fn unlimited(hook: fn() -> bool) -> bool {
    limited(Limit::None, hook)
}

#[inline]
fn limited<T>(limit: Limit, part: impl FnOnce() -> T) -> T {
    struct Before(Limit);
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
    let until = match LIMIT.get() {
        Limit::None => return now + PATIENCE,
        Limit::Until(until) => until.max(now + A_MOMENT),
        Limit::By(until) => until,
        Limit::AtOnce => now + A_MOMENT,
        Limit::AtOnceBy(until) => until.min(now + A_MOMENT),
        #[cfg(feature = "tokio")]
        Limit::Shortly => now + A_MOMENT / 10,
        Limit::Begun(until) => until,
        Limit::Long(until) => return until,
    };
    LIMIT.set(Limit::Begun(until));
    until.min(now + PATIENCE)
}

/// When a timeout that begins now is over. `None` is never, and so is a time that the clock cannot
/// tell, such as `Duration::MAX`.
#[inline]
pub(crate) fn deadline(timeout: impl Into<Option<Duration>>) -> Option<Instant> {
    timeout.into().and_then(|t| Instant::now().checked_add(t))
}

/// When a call's timeout is over, for bindings whose calls wait twice: for their turn with a value
/// ([`Turns`](crate::bindings::Turns)), then with it.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The end of a timeout that begins now; without one there is none.
    pub fn after(timeout: impl Into<Option<Duration>>) -> Deadline {
        Deadline(deadline(timeout))
    }

    /// What is left of the timeout; `None`: no limit.
    pub fn left(self) -> Option<Duration> {
        self.0.map(|until| until.saturating_duration_since(Instant::now()))
    }
}

/// The sooner of two times.
pub(crate) fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Whether a time is over; one without a limit never is.
pub(crate) fn is_past(until: Option<Instant>) -> bool {
    until.is_some_and(|u| Instant::now() >= u)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_of_a_call_holds_for_its_requests() {
        let soon = Instant::now() + A_MOMENT / 10;
        assert_eq!(by(Some(soon), of_request), soon);
        assert_eq!(by(Some(soon), || for_a_moment(None, of_request)), soon);
        assert_eq!(for_a_moment(Some(soon), of_request), soon);
        let later = Instant::now() + 10 * A_MOMENT;
        assert_eq!(by(Some(later), of_request), later);
        assert!(for_a_moment(Some(later), of_request) < later);
        assert!(within(Some(soon), of_request) > soon, "a put has a moment");
        assert_eq!(unanswered(Some(soon), || Ok(()), || Ok(of_request())).ok(), Some(soon));
    }
}
