//! The line of one session, from its first broker on, and what brokers have said of its end.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Instant;

use super::pending::{self, Line};
use super::served::{Opened, Pools, Served};
use super::thread::Thread;
use super::{Options, PendingRequest};
use crate::deadline;
use crate::error::{Code, Error, Result, denied, lost, told_lost};
use crate::ledger::Openings;
use crate::sys::{self, PerProcess};
use crate::waits::Waiter;
use crate::wire::Control;
use crate::wire::ops::Resume;

/// Why a session is lost that an operator has ended.
pub(super) const EVICTED: &str = "an operator evicted it";

/// A session's line to its broker.
pub(crate) struct Link {
    pub(crate) options: Options,
    /// By what the session is known to brokers of its instance.
    pub(super) known_as: Resume,
    line: Mutex<Line>,
    pub(super) relinked: Condvar,
    pub(crate) thread: Arc<Thread>,
    pub(crate) waiter: Waiter,
    process: u32, // that opened it
    /// In the child of a fork: that something took the session's place.
    pub(super) succeeded: PerProcess<()>,
    /// While a broker that is being stopped, or evicts the session, decides on it.
    undecided: AtomicBool,
    /// While the session's thread looks for a broker.
    searches: AtomicBool,
    /// Whether the broker has said that an operator ends this session.
    pub(super) evicted: AtomicBool,
    /// Whether no broker knows the session any more.
    unknown: AtomicBool,
    /// Why the session is over, where a broker has said so.
    lost: OnceLock<Error>,
    pub(super) openings: Openings<Option<Weak<Opened>>>,
}

impl fmt::Debug for Link {
    /// Short: it has a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("serial", &self.known_as.serial).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(
        options: Options,
        known_as: Resume,
        control: Arc<Control>,
        thread: Arc<Thread>,
        waiter: Waiter,
    ) -> Result<Link> {
        Ok(Link {
            options,
            known_as,
            line: Mutex::new(Line::new(control)),
            relinked: Condvar::new(),
            thread,
            waiter,
            process: sys::process_number()?,
            succeeded: PerProcess::new(),
            undecided: AtomicBool::new(false),
            searches: AtomicBool::new(false),
            evicted: AtomicBool::new(false),
            unknown: AtomicBool::new(false),
            lost: OnceLock::new(),
            openings: Openings::new(None),
        })
    }

    pub(crate) fn control(&self) -> Arc<Control> {
        self.line().control.clone()
    }

    pub(crate) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The number of the process that opened it.
    #[inline]
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Whether it is the session of the parent, which forked: its refcounts and its lanes are not even
    /// mapped here, its background thread is not there, and a lock may never be released. What is made
    /// of it leads to its heir; see `Opening::here`.
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        !sys::is_process(self.process)
    }

    /// Whether a broker has said that it evicts the session.
    #[inline]
    pub(crate) fn is_evicted(&self) -> bool {
        self.evicted.load(Ordering::Relaxed) // read with what the broker has said after it, if that matters
    }

    /// Whether there is no broker, as far as the session's thread has found out. It takes no lock, and orders nothing.
    #[inline]
    pub(crate) fn searches_broker(&self) -> bool {
        self.searches.load(Ordering::Relaxed)
    }

    /// Notes that it is so, or not any more.
    pub(super) fn note_search(&self, searches: bool) {
        self.searches.store(searches, Ordering::Relaxed); // a hint: a request finds out by itself
    }

    /// Whether a broker has said that the session is over.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Refuses all calls from now on, those that wait too: a broker has said that the session is over, or
    /// that it is unknown. What is held stays mapped.
    pub(super) fn lose(&self, served: &dyn Served, why: Error, unknown: bool) {
        self.unknown.store(unknown, Ordering::Relaxed);
        let opening = self.opening();
        if self.lost.set(why.clone()).is_err() {
            return;
        }
        served.pools(Pools::End);
        self.undecided.store(false, Ordering::SeqCst);
        self.control().end(why); // locked: a thread that waits for a link or a decision has looked before, or is notified
        self.over(served);
        self.thread.wake();
        self.relinked.notify_all();
        if let Some(opening) = opening {
            served.lost(&*opening);
        }
        self.waiter.wake();
    }

    /// The error of each call once it is lost, for a reason.
    pub(super) fn lost_by(&self, why: &str) -> Error {
        lost(&self.known_as.instance, self.known_as.serial, why)
    }

    /// The error of each call once it was evicted, as the broker has said where it has.
    pub(crate) fn evicted_by(&self) -> Error {
        match self.control().refusal().filter(Error::is_session_lost) {
            Some(said) => told_lost(&self.known_as.instance, self.known_as.serial, &said),
            None => self.lost_by(EVICTED),
        }
    }

    /// The error of each call once its user may not use the broker any more, as that has said.
    pub(super) fn denied_by(&self, said: &Error) -> Error {
        denied(&self.known_as.instance, self.known_as.serial, said)
    }

    /// Why a broker has said that it is over.
    pub(crate) fn why_lost(&self) -> Option<&Error> {
        self.lost.get()
    }

    /// Notes in the child of a fork that something took the session's place.
    pub(crate) fn succeed(&self) {
        let _ = self.succeeded.get_or(|| ());
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Acknowledges the notice `stopped`: this process allocates, recycles and counts nothing from here on,
    /// and ends its side of the connection. The broker notes in its file that the session is
    /// closed, and ends the connection after that. Where it does not, because its time for that is over or
    /// it dies, the session goes on.
    ///
    /// SYNC undecided: set before the broker learns of it; pairs with `hold`.
    pub(super) fn acknowledge(&self, served: &dyn Served, control: &Control) {
        self.undecided.store(true, Ordering::SeqCst);
        served.pools(Pools::Pause);
        control.end_writing();
    }

    /// Ends the undecided state of a session that was not closed.
    pub(super) fn go_on(&self, served: &dyn Served) {
        if !self.undecided.swap(false, Ordering::SeqCst) {
            return;
        }
        served.pools(Pools::Resume);
        drop(self.line()); // a thread that waits has looked before, or is notified
        self.relinked.notify_all();
    }

    /// Whether a broker that is being stopped decides on the session.
    ///
    /// SYNC undecided: looked at after the count of a reference: it is set here, or the broker, which looks at
    /// the refcounts once the notice is acknowledged, sees the count.
    #[inline]
    pub(crate) fn is_undecided(&self) -> bool {
        self.undecided.load(Ordering::SeqCst)
    }

    /// Waits until that is decided.
    #[cold]
    pub(crate) fn await_decision(&self) -> Result<()> {
        let until = deadline::of_request();
        let mut link = self.line();
        while self.is_undecided() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(Code::BrokerLost, "try again", "the broker is being stopped"));
            }
            link = self.relinked.wait_timeout(link, left).unwrap_or_else(|p| p.into_inner()).0;
        }
        Ok(())
    }

    /// Has calls that wait for a connection look again.
    pub(crate) fn wake_callers(&self) {
        self.relinked.notify_all();
    }

    /// Its opening, if it is open.
    pub(crate) fn opening(&self) -> Option<Arc<Opened>> {
        self.openings.present().flatten()?.upgrade()
    }

    /// Notes its first opening.
    pub(crate) fn open(&self, opening: Weak<Opened>) {
        self.openings.begin(Some(opening));
    }

    /// Opens it once more, where that can be.
    pub(crate) fn open_again<O>(&self, open: impl FnOnce() -> (O, Weak<Opened>)) -> Option<O> {
        self.openings.begin_again(|| {
            let (opening, noted) = open();
            (opening, Some(noted))
        })
    }

    /// Ends its opening: the thread tells the broker.
    pub(crate) fn leave(&self) {
        self.openings.leave();
        self.thread.wake();
    }

    /// Waits until the broker has confirmed that its opening was closed, and no longer than that.
    pub(crate) fn await_left(&self, until: Instant) {
        self.openings.await_left(until);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.openings.is_open()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.openings.is_over()
    }

    /// Whether the broker was told that its opening was closed, or need not be.
    pub(crate) fn is_left(&self) -> bool {
        self.openings.is_left()
    }

    /// The broker has confirmed that its opening was closed.
    pub(crate) fn left(&self) {
        self.openings.left();
    }

    /// Nothing is left to be done with it.
    pub(super) fn over(&self, served: &dyn Served) {
        served.over();
        self.openings.over();
    }

    /// Ends it if it is closed and, as `empty` finds, counts nothing.
    pub(super) fn end_if(&self, empty: impl FnOnce() -> bool) -> bool {
        self.openings.end_if(empty)
    }

    /// Does what is left of pending requests once the session is lost: those that a broker has done since, or all of them
    /// where no broker comes that would know the session. Whether nothing is left.
    pub(crate) fn end_pending(&self, all: bool) -> bool {
        let mut line = self.line();
        line.take_unanswered(self.thread.take_pending());
        let done: Vec<Box<dyn PendingRequest>> = line.take_done(all);
        let over = !line.is_behind();
        drop(line);
        done.into_iter().for_each(PendingRequest::end);
        over
    }

    /// Puts a new connection in the place of a lost one. Called by the background thread.
    pub(super) fn relink(&self, served: &dyn Served, control: Arc<Control>) {
        // Locked, so that no thread adds to what is owed, or asks the new broker before that is sent.
        let mut line = self.line();
        let answered = line.take_back(self.thread.take_pending());
        line.renew(control, &*self.thread);
        self.note_search(false);
        self.thread.connected();
        served.relinked();
        drop(line);
        pending::complete_all(answered);
        self.relinked.notify_all();
        self.waiter.wake();
    }
}
