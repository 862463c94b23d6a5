//! Requests of one opening of a session to the broker, and the waits for their answers.

use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Link;
use crate::deadline::{self, unlimited};
use crate::error::{Code, Error, Result, closed, interrupted, unanswered};
use crate::ledger::Closed;
use crate::turns::{Turn, Turnstile};
use crate::waits::{Enclosing, Look, Place, Rouse, Rung, Side, enclosed, enclosing, wait};
use crate::wire::ops::{Ignored, Nothing};
use crate::wire::{Control, Reply, decode};

/// How often a thread that waits for an answer looks for signals.
pub(super) const NOTICE: Duration = Duration::from_millis(100);

/// What is to answer a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Broker {
    /// The broker that is there, or while there is none the next one: until the request's time is over.
    Any,
    /// The broker that is there: `BrokerLost` when it goes away before it has answered.
    This,
}

/// The right of one opening to ask the broker, from the connect to the close.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) link: Arc<Link>,
    pub(crate) closed: Closed,
}

/// A request whose answer is waited for.
struct AnswerAwaited {
    control: Arc<Control>,
    id: u64,
    op: &'static str,
}

impl Rouse for AnswerAwaited {
    fn rouse(&self) {
        self.control.abandon(self.id, unanswered(self.op));
    }
}

/// A wait for the next broker.
struct LinkAwaited(Arc<Link>);

impl Rouse for LinkAwaited {
    fn rouse(&self) {
        drop(self.0.line()); // what waits has looked before, or is notified
        self.0.relinked.notify_all();
    }
}

impl Deref for Client {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Client {
    pub(crate) fn new(link: Arc<Link>) -> Client {
        Client { link, closed: Closed::default() }
    }

    /// Whether the connection is down right now.
    pub(crate) fn broker_away(&self) -> bool {
        self.control().is_lost()
    }

    /// Makes a request of the broker and decodes the answer.
    pub(crate) fn call<B: Serialize, R: DeserializeOwned>(&self, op: &'static str, body: &B) -> Result<R> {
        self.call_fds(op, body).map(|(r, _)| r)
    }

    /// As `call`, with the descriptors of the answer.
    pub(crate) fn call_fds<B: Serialize, R: DeserializeOwned>(
        &self,
        op: &'static str,
        body: &B,
    ) -> Result<(R, Vec<OwnedFd>)> {
        self.call_of(Broker::Any, op, body, &[])
    }

    /// As `call_fds`, with descriptors for the broker.
    pub(crate) fn call_with<B: Serialize, R: DeserializeOwned>(
        &self,
        op: &'static str,
        body: &B,
        with: &[BorrowedFd<'_>],
    ) -> Result<(R, Vec<OwnedFd>)> {
        self.call_of(Broker::Any, op, body, with)
    }

    /// As `call_with`, of the broker that is meant.
    pub(crate) fn call_of<B: Serialize, R: DeserializeOwned>(
        &self,
        of: Broker,
        op: &'static str,
        body: &B,
        with: &[BorrowedFd<'_>],
    ) -> Result<(R, Vec<OwnedFd>)> {
        self.call_noting(of, op, body, with, &mut false)
    }

    /// As `call_of`. `before` tells whether another broker was asked, and went away before it had answered.
    pub(crate) fn call_noting<B: Serialize, R: DeserializeOwned>(
        &self,
        of: Broker,
        op: &'static str,
        body: &B,
        with: &[BorrowedFd<'_>],
        before: &mut bool,
    ) -> Result<(R, Vec<OwnedFd>)> {
        let until = deadline::of_request();
        let within = enclosing();
        loop {
            let (link, asked) = self.request(op, body, with)?;
            let sent = asked.is_ok();
            match asked.and_then(|(id, from)| self.answer(&link, op, id, &from, until, within.as_ref())) {
                Err(e) if e.code() == Code::BrokerLost && of == Broker::Any && !self.thread.is_current() => {
                    *before |= sent;
                    self.await_link(&link, until, within.as_ref(), e).map_err(|e| e.away(op))?
                }
                // What a session takes part in ends with it, before those that wait for an answer know of its end.
                answer => return answer.map_err(|e| self.refused(e)),
            }
        }
    }

    /// Sends a request. None comes to the broker after the word that the session was closed, where it
    /// would be the next opening's.
    #[allow(clippy::type_complexity)]
    fn request<B: Serialize>(
        &self,
        op: &'static str,
        body: &B,
        with: &[BorrowedFd<'_>],
    ) -> Result<(Arc<Control>, Result<(u64, Receiver<Reply>)>)> {
        let line = self.line();
        self.check_open()?;
        Ok((line.control.clone(), line.control.request(op, body, with)))
    }

    /// Awaits an answer, and reads the connection meanwhile unless another thread does. Within a call the session's thread
    /// reads it, so that the end of the call ends the wait: then it has no answer.
    fn answer<R: DeserializeOwned>(
        &self,
        link: &Arc<Control>,
        op: &'static str,
        id: u64,
        from: &Receiver<Reply>,
        until: Instant,
        within: Option<&Arc<dyn Enclosing>>,
    ) -> Result<(R, Vec<OwnedFd>)> {
        let _rung = within.filter(|_| !self.thread.is_current()).map(|call| {
            let wait: Arc<dyn Rouse> = Arc::new(AnswerAwaited { control: link.clone(), id, op });
            Rung::new(call, &wait, |_| false)
        });
        if within.is_some_and(|call| call.check().is_err()) {
            link.abandon(id, unanswered(op));
        }
        let until = within.and_then(|call| call.deadline()).map_or(until, |d| until.min(d));
        let reply = if self.thread.is_current() {
            self.thread.pump_for(link, from)
        } else {
            loop {
                let now = Instant::now();
                let left = until.saturating_duration_since(now);
                let notice = now + left.min(NOTICE);
                if (within.is_none() || !self.thread.is_running())
                    && let Some(reply) = self.thread.read_for(link, from, notice)
                {
                    break reply;
                }
                match from.recv_timeout(notice.saturating_duration_since(Instant::now())) {
                    Ok(reply) => break reply,
                    Err(RecvTimeoutError::Timeout) if self.interrupted() => {
                        break link.give_up(id, from).unwrap_or_else(|| Err(interrupted()));
                    }
                    Err(RecvTimeoutError::Timeout) if self.is_closed() => {
                        break link.give_up(id, from).unwrap_or_else(|| Err(self.why_closed()));
                    }
                    Err(RecvTimeoutError::Timeout)
                        if left > NOTICE && within.is_none_or(|call| call.check().is_ok()) => {}
                    Err(RecvTimeoutError::Timeout) => {
                        break link.give_up(id, from).unwrap_or_else(|| Err(unanswered(op)));
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        break Err(Error::new(Code::BrokerLost, "try again", "the connection ended"));
                    }
                }
            }
        };
        let (json, fds) = reply?;
        Ok((decode(op, &json)?, fds))
    }

    /// The turn of a call that may ask the broker meanwhile, which others wait for as for their own answers.
    #[inline]
    pub(crate) fn turn<'a, T>(&self, of: &'a Turnstile<T>) -> Result<Turn<'a, T>> {
        match of.try_lock() {
            Some(turn) => Ok(turn),
            None => self.await_turn(of),
        }
    }

    /// Within a call it is looked now and then whether that is over.
    #[cold]
    fn await_turn<'a, T>(&self, of: &'a Turnstile<T>) -> Result<Turn<'a, T>> {
        let (until, within) = (deadline::of_request(), enclosing());
        loop {
            let notice = if within.is_some() { until.min(Instant::now() + NOTICE) } else { until };
            if let Some(turn) = of.lock_until(Some(notice), || self.interrupted())? {
                return Ok(turn);
            }
            if notice == until || within.as_ref().is_some_and(|call| call.check().is_err()) {
                return Err(unanswered("another thread"));
            }
        }
    }

    fn await_link(
        &self,
        lost: &Arc<Control>,
        until: Instant,
        within: Option<&Arc<dyn Enclosing>>,
        why: Error,
    ) -> Result<()> {
        let _rung = within.map(|call| {
            let wait: Arc<dyn Rouse> = Arc::new(LinkAwaited(self.link.clone()));
            Rung::new(call, &wait, |_| false)
        });
        let until = within.and_then(|call| call.deadline()).map_or(until, |d| until.min(d));
        loop {
            let now = self.line();
            if !Arc::ptr_eq(&now.control, lost) || self.is_closed() {
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || within.is_some_and(|call| call.check().is_err()) {
                return Err(match &*self.thread.hindrance() {
                    Some(e) => Error::new(why.code(), e.remedy(), format!("{}; then {}", why.message(), e.message())),
                    None => why,
                });
            }
            drop(self.relinked.wait_timeout(now, left.min(NOTICE)).unwrap_or_else(|p| p.into_inner()));
            self.check_interrupted()?; // unlocked: the hook may use the session
        }
        Ok(())
    }

    /// Asks the broker whether the session goes on: that it is over may stand in shared memory before the thread has read
    /// why. The error of each call, where it is lost.
    pub(crate) fn check_lost(&self) -> Result<()> {
        let asked: Result<Ignored> = self.call("ping", &Nothing {}); // what was said before is read with the answer
        let told = self.evicted.load(Ordering::Relaxed) || asked.is_err_and(|e| e.is_session_lost());
        let until = deadline::of_request();
        let mut line = self.line();
        while (told || self.is_undecided()) && !self.is_closed() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            line = self.relinked.wait_timeout(line, left).unwrap_or_else(|p| p.into_inner()).0;
        }
        drop(line);
        self.why_lost().map_or(Ok(()), |lost| Err(lost.clone()))
    }

    /// Sends a request whose answer is not needed. A broker that goes away before it has answered leaves it to
    /// the next one.
    pub(crate) fn tell<B: Serialize>(&self, op: &'static str, body: &B) {
        let line = self.line();
        // Closing undoes it, and after that it would be the next opening's. No broker knows one that is lost.
        if !self.closed.is_set() && !self.is_lost() {
            let _ = line.control.tell(op, body);
        }
    }

    /// Whether the session takes no calls here any more: it was closed or lost, or is the parent's.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_set() || self.is_lost() || self.is_foreign()
    }

    /// Refuses what cannot be done any more: the session was closed, or it is the parent's and a call
    /// was under way when this process was forked.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(self.why_closed()) } else { Ok(()) }
    }

    #[cold]
    pub(crate) fn why_closed(&self) -> Error {
        if let Some(lost) = self.why_lost() {
            return lost.clone();
        }
        if !self.is_foreign() {
            return closed("the session");
        }
        let during = || Error::new(Code::Closed, "make it again", "this process was forked during the call");
        if self.succeeded.get().is_some() { during() } else { forked() }
    }

    /// Why something is refused: that the session has ended, where it has. For then the session's own refcounts may look
    /// full, as the broker has cleared it, and what is dropped after that lowers it below zero; and what
    /// a lease of the session protected is gone.
    #[cold]
    pub(crate) fn refused(&self, why: Error) -> Error {
        self.check_open().err().unwrap_or(why)
    }

    /// Whether the program's hook wants waits of this thread to end.
    pub(crate) fn interrupted(&self) -> bool {
        self.options.interrupted.is_some_and(|hook| enclosed(None, || unlimited(hook)))
    }

    /// Ends a wait of this thread where the program's hook wants that.
    pub(crate) fn check_interrupted(&self) -> Result<()> {
        if self.interrupted() { Err(interrupted()) } else { Ok(()) }
    }

    /// Ends a wait of this thread that was woken: where the program's hook wants that, or has forked.
    pub(crate) fn check_woken(&self) -> Result<()> {
        self.check_interrupted()?;
        match self.is_foreign() {
            true => self.check_open(),
            false => Ok(()),
        }
    }

    /// Returns true when `look` says so, false at the deadline, `Timeout` when the program's hook ends the wait; see
    /// [`waits::wait`](crate::waits::wait).
    #[inline]
    pub(crate) fn wait(
        &self,
        spin: Option<u64>,
        place: Option<Place<'_>>,
        until: Option<Instant>,
        mut look: impl FnMut() -> bool,
    ) -> Result<bool> {
        self.wait_looking(spin, place, until, |_| look())
    }

    /// As `wait`, of what is told when it looks.
    #[inline]
    pub(crate) fn wait_looking(
        &self,
        spin: Option<u64>,
        place: Option<Place<'_>>,
        until: Option<Instant>,
        look: impl FnMut(Look) -> bool,
    ) -> Result<bool> {
        let side = Side { waiter: &self.waiter, places: place.as_slice() };
        wait(side, &[], spin, until, look, || self.check_woken())
    }
}

/// The error of a session that came into this process by an unnoticed fork.
pub(crate) fn forked() -> Error {
    let what = "the session was opened by the process that this one was forked from, without the C library's fork";
    Error::new(Code::Closed, "use fork(), or open a session here", what)
}
