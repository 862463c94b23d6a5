//! A call that a provider runs, as its function sees it, and as calls see it that are made within it.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::record::{Head, Link};
use crate::deadline::{deadline, is_past, sooner};
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::{Claimed, TopicState, Wanted};
use crate::sys;
use crate::waits::{Enclosing, Relay, Rung, enclosed};

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
    /// Of a function that was lent: what the thread waits for that serves it.
    pub(super) served: Option<Arc<dyn Enclosing>>,
    /// Itself, for what was made within it and may be looked at elsewhere.
    pub(super) outer: OnceLock<Arc<Outer>>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("caller", &self.caller()).finish_non_exhaustive()
    }
}

/// What is done to answer a call, whose function may have ended: it ends with the call, and with that for which its thread
/// waits.
pub(super) struct Answering {
    call: Arc<Outer>,
    served: Option<Arc<dyn Enclosing>>,
}

impl Answering {
    pub(super) fn of(call: Arc<Outer>, served: Option<&Arc<dyn Enclosing>>) -> Arc<dyn Enclosing> {
        Arc::new(Answering { call, served: served.cloned() })
    }
}

impl Enclosing for Answering {
    fn check(&self) -> Result<()> {
        self.call.look()?;
        self.served.as_ref().map_or(Ok(()), |served| served.check())
    }

    fn deadline(&self) -> Option<Instant> {
        sooner(self.call.deadline(), self.served.as_ref().and_then(|served| served.deadline()))
    }

    fn relays(&self, each: &mut dyn FnMut(&Arc<Relay>)) {
        self.call.relays(each);
        if let Some(served) = &self.served {
            served.relays(each);
        }
    }
}

/// A call within which others are made, or functions were lent, as these see it from any thread.
#[doc(hidden)]
pub struct Outer {
    wanted: Wanted,
    /// Until when its caller waits, by the clock of all processes; 0: without a limit.
    time: u64,
    lent_in: Option<Arc<Outer>>,
    /// The calls within which it is made, and itself.
    chain: Box<[Link]>,
    state: AtomicU8,
}

/// Values of `Outer::state`.
const RUNS: u8 = 0;
const ENDED: u8 = 1;
/// It was over when its function ended: what was made within it ends too.
const ENDED_OVER: u8 = 2;

impl fmt::Debug for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outer").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Outer {
    /// One that was claimed and has not begun.
    pub(super) fn claimed(claimed: &Claimed, head: &Head) -> Arc<Outer> {
        let (wanted, state) = (claimed.wanted().clone(), AtomicU8::new(RUNS));
        Arc::new(Outer { wanted, time: head.time, lent_in: None, chain: [].into(), state })
    }

    /// Why it is over: the error `Timeout` if its deadline has passed, `Cancelled` if the caller wants it no more,
    /// `Closed` or `SessionLost` if the session that provides the function is over. Nothing once it has ended in order.
    pub(super) fn check(&self) -> Result<()> {
        match self.state.load(Ordering::SeqCst) {
            RUNS => {}
            ENDED_OVER => return Err(unwanted()),
            _ => return Ok(()),
        }
        match self.look() {
            // Behind that: it has ended before the caller uses its slot again.
            Err(e) if self.state.load(Ordering::SeqCst) != ENDED => Err(e),
            _ => Ok(()),
        }
    }

    /// As `check`, whether its function has ended or not, until it is answered.
    fn look(&self) -> Result<()> {
        check_time(self.time, self.session())?; // first: a caller cancels what is late
        if self.wanted.is_cancelled() || self.lent_in.as_ref().is_some_and(|o| o.is_cancelled()) {
            return Err(unwanted());
        }
        // In the child of a fork it is the parent's, and goes on there.
        let over = !self.session().is_foreign() && self.session().is_closed();
        if over { self.session().check_open() } else { Ok(()) }
    }

    /// Whether its caller wants it no more, or it is over otherwise.
    pub(super) fn is_cancelled(&self) -> bool {
        self.check().is_err()
    }

    /// The session that runs it.
    fn session(&self) -> &Arc<Opening> {
        self.wanted.session()
    }

    /// Until when the caller waits; `None`: without a limit.
    pub(super) fn deadline(&self) -> Option<Instant> {
        instant(self.time)
    }

    /// The calls within which one is that is made within it.
    pub(super) fn chain(&self) -> &[Link] {
        &self.chain
    }

    /// Runs what may make calls within it, in any thread, also after its function. For the bindings alone.
    #[doc(hidden)]
    pub fn within<T>(self: &Arc<Self>, run: impl FnOnce() -> T) -> T {
        Current::Outer(self.into()).while_running(run)
    }

    /// Whether its function has ended, and it was not over then.
    fn has_ended(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ENDED
    }

    /// Notes that its function has ended. Once: what is seen later, as that the slot has the caller's next call, says
    /// nothing of this one.
    fn end(&self) {
        let ended = if self.look().is_err() { ENDED_OVER } else { ENDED };
        // SeqCst: pairs with the second look of `check`. The caller has its slot again after this alone.
        let _ = self.state.compare_exchange(RUNS, ended, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl Enclosing for Outer {
    fn check(&self) -> Result<()> {
        Outer::check(self)
    }

    fn deadline(&self) -> Option<Instant> {
        Outer::deadline(self)
    }

    fn relays(&self, each: &mut dyn FnMut(&Arc<Relay>)) {
        each(&self.session().relay);
        if let Some(outer) = &self.lent_in {
            outer.relays(each);
        }
    }
}

#[cold]
fn unwanted() -> Error {
    Error::new(Code::Cancelled, "end the function", "the caller wants the call no more")
}

/// The error `Timeout` where a time has passed. In the child of a fork the call is the parent's.
fn check_time(time: u64, session: &Opening) -> Result<()> {
    if is_late(time, session) {
        return Err(Error::new(Code::Timeout, "end the function", "the call's deadline has passed"));
    }
    Ok(())
}

#[inline]
fn is_late(time: u64, session: &Opening) -> bool {
    time != 0 && sys::monotonic() >= time && !session.is_foreign()
}

/// A time by the clock of all processes, of which 0 is none.
fn instant(time: u64) -> Option<Instant> {
    let left = |time: u64| Duration::from_nanos(time.saturating_sub(sys::monotonic()));
    (time != 0).then(|| Instant::now().checked_add(left(time)))?
}

/// What a thread runs.
#[derive(Clone, Copy)]
enum Current {
    Nothing,
    Call(NonNull<Call>),
    /// Something else within a call.
    Outer(NonNull<Arc<Outer>>),
}

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current::Nothing) };
}

impl Current {
    /// Runs something that is so. Its waits are not those of what waits around it.
    fn while_running<T>(self, run: impl FnOnce() -> T) -> T {
        struct Before(Current);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _before = Before(CURRENT.replace(self));
        run()
    }
}

/// Runs a part of a call's function.
pub(super) fn within<T>(call: &Call, run: impl FnOnce() -> T) -> T {
    Current::Call(call.into()).while_running(run)
}

/// Looks at the call within which this thread runs, if there is one. In the child of a fork it is the parent's. What goes
/// on after a call that has ended in order is within none.
#[inline]
pub(super) fn current<T>(look: impl FnOnce(Option<&Arc<Outer>>) -> T) -> T {
    let outer = match CURRENT.get() {
        Current::Nothing => None,
        // SAFETY: it is set while `within` borrows the call, in this thread.
        Current::Call(call) => Some(unsafe { &*call.as_ptr() }.as_outer()),
        // SAFETY: it is set while `Outer::within` borrows it, in this thread.
        Current::Outer(outer) => Some(unsafe { &*outer.as_ptr() }),
    };
    look(outer.filter(|o| !o.session().is_foreign() && !o.has_ended()))
}

/// The call within which this thread runs, to be looked at elsewhere.
pub(super) fn outer() -> Option<Arc<Outer>> {
    current(|outer| outer.cloned())
}

/// The error of the call within which this thread runs, if that is over.
pub(super) fn check_current() -> Result<()> {
    current(|outer| outer.map_or(Ok(()), |outer| outer.check()))
}

/// Carries out a part of a call that may wait: what it waits for ends with the call within which this thread runs, and
/// then its error is that of the call.
#[inline]
pub(super) fn ending<T>(part: impl FnOnce() -> Result<T>) -> Result<T> {
    match outer() {
        None => part(),
        Some(outer) => ending_with(outer, part),
    }
}

/// As `ending`, with a call that is known.
pub(super) fn ending_with<T>(outer: Arc<Outer>, part: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = enclosed(Some(outer.clone()), part);
    match done {
        Err(e) if e.is_away() => Err(outer.check().err().unwrap_or(e)),
        done => done,
    }
}

/// A call that is registered to be looked at where the call is over within which it was made. Its own session is rung
/// then.
#[derive(Debug)]
pub(super) struct Within {
    pub(super) outer: Arc<Outer>,
    _rung: Rung,
}

impl Within {
    /// Of a call of a session, which any thread may wait for.
    pub(super) fn new(outer: Arc<Outer>, inner: &Opening) -> Within {
        let call: Arc<dyn Enclosing> = outer.clone();
        Within { _rung: Rung::by_bell(&call, &inner.waiter.parking), outer }
    }
}

impl Call {
    /// Whether nothing waits for it any more: the caller has cancelled the call, or has gone, its deadline has passed, or
    /// the session that provides the function is over, so that no reply can be sent. A function that runs long looks now and then, and ends by an error of its choice; no caller sees what it
    /// returns.
    #[inline]
    pub fn cancelled(&self) -> bool {
        self.is_unwanted() || self.is_late() || self.is_over()
    }

    /// The error `Timeout` if its deadline has passed, `Cancelled` if the caller wants it no more, `Closed` or
    /// `SessionLost` if the session that provides the function is over.
    pub fn check(&self) -> Result<()> {
        self.check_time()?; // first: a caller cancels what is late
        if self.is_unwanted() {
            return Err(unwanted());
        }
        if self.is_over() { self.opening().check_open() } else { Ok(()) }
    }

    /// Whether the session that replies is over. In the child of a fork it is the parent's, and goes on there.
    #[inline]
    fn is_over(&self) -> bool {
        self.is_here() && self.opening().is_closed()
    }

    /// The error `Timeout` where its deadline has passed.
    pub(super) fn check_time(&self) -> Result<()> {
        check_time(self.head.time, self.opening())
    }

    #[inline]
    fn is_unwanted(&self) -> bool {
        self.claimed.is_cancelled() || self.lent_in.as_ref().is_some_and(|o| o.is_cancelled())
    }

    #[inline]
    fn is_late(&self) -> bool {
        is_late(self.head.time, self.opening())
    }

    /// Waits until it is [`cancelled`](Call::cancelled); false at the timeout. `Closed` in the child of a fork, which runs
    /// no call.
    pub fn wait_cancelled(&self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        if !self.is_here() {
            return Err(Error::closed_here("the call"));
        }
        let ends = self.deadline();
        let over = || self.is_unwanted() || self.is_over();
        let wait = || self.opening().wait(None, None, sooner(deadline(timeout), ends), over);
        Ok(self.in_chain(wait)? || is_past(ends))
    }

    /// Until when the caller waits; `None`: without a limit.
    pub fn deadline(&self) -> Option<Instant> {
        instant(self.head.time)
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

    /// Notes that its function has ended, before it is replied to: what its caller does once it has the reply is no
    /// cancelling.
    pub(super) fn returned(&self) {
        if let Some(outer) = self.outer.get() {
            outer.end();
        }
    }

    /// Ends it, behind a reply or without one.
    pub(super) fn end(&mut self, replied: bool) {
        self.returned();
        self.claimed.end(replied);
    }

    /// Waits in the session that runs it. Of a function that was lent the call may be cancelled within which it was.
    pub(super) fn in_chain<T>(&self, wait: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.lent_in {
            Some(_) => ending_with(self.as_outer().clone(), wait),
            None => wait(),
        }
    }

    /// What is done to answer it.
    pub(super) fn answering(&self) -> Arc<dyn Enclosing> {
        Answering::of(self.as_outer().clone(), self.served.as_ref())
    }

    pub(super) fn as_outer(&self) -> &Arc<Outer> {
        self.outer.get_or_init(|| {
            let (wanted, lent_in) = (self.claimed.wanted().clone(), self.lent_in.clone());
            let chain = self.chain.iter().copied().chain([self.link]).collect();
            Arc::new(Outer { wanted, time: self.head.time, lent_in, chain, state: AtomicU8::new(RUNS) })
        })
    }

    fn opening(&self) -> &Opening {
        self.claimed.opening()
    }
}
