//! A call that a provider runs, as its function sees it, and as calls see it that are made within it.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::record::{Head, Link};
use crate::deadline::{deadline, is_past, sooner};
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::{Claimed, TopicState, Wanted};
use crate::sys;

/// The call that a function runs for. Calls that the function makes in the same thread end with it: at its deadline, and
/// when it is cancelled.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use std::time::Duration;
///
/// let _slow = session.function("slow", |_, call| {
///     assert!(call.deadline().is_some() && !call.caller().is_empty() && !call.cancelled());
///     for _ in 0.. {
///         call.check()?; // whether the caller still waits
///         call.wait_cancelled(Duration::from_millis(1))?;
///     }
///     Ok(())
/// })?;
/// let slow = session.calling("slow")?.timeout(Duration::from_millis(20));
/// assert_eq!(slow.call::<()>(()).unwrap_err().code(), baton::Code::Timeout);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Call {
    pub(super) claimed: Claimed,
    pub(super) head: Head,
    /// Where its caller waits.
    pub(super) place: Arc<TopicState>,
    /// The calls within which it is made.
    pub(super) chain: Vec<Link>,
    /// Itself, for calls within it.
    pub(super) link: Link,
    pub(super) began: u64,
    /// Of a function that was lent: the call within which it was.
    pub(super) lent_in: Option<Arc<Outer>>,
    /// Itself, for what was made within it and may be looked at elsewhere.
    pub(super) outer: OnceLock<Arc<Outer>>,
}

/// A call within which others were made, or functions were lent, as these see it from any thread.
#[derive(Debug)]
pub(super) struct Outer {
    wanted: Wanted,
    lent_in: Option<Arc<Outer>>,
    over: AtomicBool,
}

impl Outer {
    /// Whether it runs still, and its caller wants it no more.
    pub(super) fn is_cancelled(&self) -> bool {
        let cancelled = self.wanted.is_cancelled() || self.lent_in.as_ref().is_some_and(|o| o.is_cancelled());
        // Behind that: it is over before the caller uses its slot again.
        cancelled && !self.over.load(Ordering::SeqCst)
    }

    /// The error `Cancelled` where it is.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(unwanted()) } else { Ok(()) }
    }
}

#[cold]
fn unwanted() -> Error {
    Error::new(Code::Cancelled, "end the function", "the caller wants the call no more")
}

thread_local! {
    /// The call that this thread runs.
    static CURRENT: Cell<Option<NonNull<Call>>> = const { Cell::new(None) };
}

/// Runs a part of a call's function.
pub(super) fn within<T>(call: &Call, run: impl FnOnce() -> T) -> T {
    struct Before(Option<NonNull<Call>>);
    impl Drop for Before {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _before = Before(CURRENT.replace(Some(call.into())));
    run()
}

/// Looks at the call that this thread runs, if it runs one. In the child of a fork it is the parent's.
#[inline]
pub(super) fn current<T>(look: impl FnOnce(Option<&Call>) -> T) -> T {
    // SAFETY: it is set while `within` borrows the call, in this thread.
    look(CURRENT.get().map(|call| unsafe { &*call.as_ptr() }).filter(|call| call.is_here()))
}

/// The call that this thread runs, to be looked at elsewhere.
pub(super) fn outer() -> Option<Arc<Outer>> {
    current(|call| call.map(|call| call.as_outer().clone()))
}

impl Call {
    /// Whether nothing waits for it any more: the caller has cancelled the call, or has gone, or its deadline has
    /// passed. A function that runs long looks now and then, and ends by an error of its choice; no caller sees what it
    /// returns.
    #[inline]
    pub fn cancelled(&self) -> bool {
        self.is_unwanted() || self.is_late()
    }

    /// The error `Timeout` where its deadline has passed, `Cancelled` where the caller wants it no more.
    pub fn check(&self) -> Result<()> {
        self.check_time()?; // first: a caller cancels what is late
        if self.is_unwanted() { Err(unwanted()) } else { Ok(()) }
    }

    /// The error `Timeout` where its deadline has passed.
    pub(super) fn check_time(&self) -> Result<()> {
        if self.is_late() {
            return Err(Error::new(Code::Timeout, "end the function", "the call's deadline has passed"));
        }
        Ok(())
    }

    #[inline]
    fn is_unwanted(&self) -> bool {
        self.claimed.is_cancelled() || self.lent_in.as_ref().is_some_and(|o| o.is_cancelled())
    }

    #[inline]
    fn is_late(&self) -> bool {
        self.head.time != 0 && sys::monotonic() >= self.head.time && self.is_here()
    }

    /// Waits until the caller wants it no more, or its deadline has passed; false at the timeout. `Closed` in the child of
    /// a fork, which runs no call.
    pub fn wait_cancelled(&self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        if !self.is_here() {
            return Err(Error::closed_here("the call"));
        }
        let ends = self.deadline();
        let over = || self.is_unwanted() || self.opening().is_closed();
        Ok(self.opening().wait(None, None, sooner(deadline(timeout), ends), over)? || is_past(ends))
    }

    /// Until when the caller waits; `None`: without a limit.
    pub fn deadline(&self) -> Option<Instant> {
        let left = |time: u64| Duration::from_nanos(time.saturating_sub(sys::monotonic()));
        (self.head.time != 0).then(|| Instant::now().checked_add(left(self.head.time)))?
    }

    /// How often it was begun, this time included: more than once of an idempotent function alone, whose provider has
    /// ended.
    pub fn attempt(&self) -> u32 {
        self.claimed.begun_before() + 1
    }

    /// The name of the session that calls.
    pub fn caller(&self) -> &str {
        self.claimed.caller()
    }

    /// Whether it runs in this process: in the child of a fork it is the parent's, and not cancelled.
    #[doc(hidden)]
    #[inline]
    pub fn is_here(&self) -> bool {
        !self.opening().is_foreign()
    }

    /// Ends it, behind a reply or without one.
    pub(super) fn end(&mut self, replied: bool) {
        if let Some(outer) = self.outer.get() {
            outer.over.store(true, Ordering::SeqCst);
        }
        self.claimed.end(replied);
    }

    fn as_outer(&self) -> &Arc<Outer> {
        self.outer.get_or_init(|| {
            let (wanted, lent_in) = (self.claimed.wanted().clone(), self.lent_in.clone());
            Arc::new(Outer { wanted, lent_in, over: AtomicBool::new(false) })
        })
    }

    fn opening(&self) -> &Opening {
        self.claimed.opening()
    }
}
