//! What all parts of one session share.

use std::fmt;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::core::Core;
use super::got::AllGot;
use super::heir::forked;
use super::leave::Topics;
use super::open::RefusedLeases;
use super::pages::Pages;
use crate::crash_point;
use crate::deadline;
use crate::error::{Code, Error, Result, closed, interrupted, unanswered};
use crate::ledger::Closed;
use crate::turns::{Turn, Turnstile};
#[cfg(feature = "tokio")]
use crate::waits::Tasks;
use crate::waits::{Place, PollFd};
use crate::wire::ops::Nothing;
use crate::wire::{Control, Reply, decode};

/// How long a close waits for the broker, and for sends that are under way.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a thread that waits for an answer looks for signals.
pub(super) const NOTICE: Duration = Duration::from_millis(100);

/// Who is to answer a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Broker {
    /// The broker that is there, or while there is none the next one: until the request's time is over.
    Any,
    /// The broker that is there: `BrokerLost` when it goes away before it has answered.
    This,
}

/// One opening of a [`Core`]. Tensors, topics and readers keep it; the last to go ends it.
pub(crate) struct Inner {
    core: Arc<Core>,
    pub(crate) poll: OnceLock<Arc<PollFd>>,
    #[cfg(feature = "tokio")]
    pub(crate) tasks: OnceLock<Arc<Tasks>>,
    pub(crate) topics: Topics,
    pub(super) got: AllGot,
    pub(crate) handovers: AtomicU64,
    pub(crate) closed: Closed,
    pub(super) refused_leases: RefusedLeases,
    /// Held for reading from the look whether the session is closed to a claim or its acknowledgement.
    claiming: RwLock<()>,
    /// Whether the core's thread made it for itself, of a core that is not open.
    helper: bool,
}

impl Deref for Inner {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl fmt::Debug for Inner {
    /// Short: whatever is shared has its session in it. And it has a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pages { slot, serial, .. } = &self.pages;
        f.debug_struct("Session").field("slot", slot).field("serial", serial).finish_non_exhaustive()
    }
}

impl Inner {
    /// A new opening of a core, which the caller notes there.
    pub(super) fn new(core: Arc<Core>) -> Arc<Inner> {
        core.users.fetch_add(1, Ordering::Relaxed);
        Arc::new(Inner::of(core, false))
    }

    /// What the thread of a core that is not open works with.
    pub(super) fn helper(core: Arc<Core>) -> Arc<Inner> {
        Arc::new(Inner::of(core, true))
    }

    fn of(core: Arc<Core>, helper: bool) -> Inner {
        Inner {
            core,
            poll: OnceLock::new(),
            #[cfg(feature = "tokio")]
            tasks: OnceLock::new(),
            topics: Topics::default(),
            got: AllGot::default(),
            handovers: AtomicU64::new(0),
            closed: Closed::default(),
            refused_leases: RefusedLeases::default(),
            claiming: RwLock::new(()),
            helper,
        }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Whether the connection is down right now.
    pub(crate) fn broker_away(&self) -> bool {
        self.link().is_lost()
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
        loop {
            let (link, asked) = self.request(op, body, with)?;
            let sent = asked.is_ok();
            match asked.and_then(|(id, from)| self.answer(&link, op, id, &from, until)) {
                Err(e) if e.code() == Code::BrokerLost && of == Broker::Any && !self.background.is_current() => {
                    *before |= sent;
                    self.await_link(&link, until, e)?
                }
                answer => return answer,
            }
        }
    }

    /// Sends a request. None comes to the broker behind the word that the session was closed, where it
    /// would be the next opening's.
    #[allow(clippy::type_complexity)]
    fn request<B: Serialize>(
        &self,
        op: &'static str,
        body: &B,
        with: &[BorrowedFd<'_>],
    ) -> Result<(Arc<Control>, Result<(u64, Receiver<Reply>)>)> {
        let link = self.link_locked();
        self.check_open()?;
        Ok((link.control.clone(), link.control.request(op, body, with)))
    }

    /// Asks over one connection, and reads it meanwhile unless another thread does.
    pub(crate) fn ask<B: Serialize, R: DeserializeOwned>(
        &self,
        link: &Control,
        op: &'static str,
        body: &B,
        fds: &[BorrowedFd<'_>],
        until: Instant,
    ) -> Result<(R, Vec<OwnedFd>)> {
        let (id, from) = link.request(op, body, fds)?;
        self.answer(link, op, id, &from, until)
    }

    fn answer<R: DeserializeOwned>(
        &self,
        link: &Control,
        op: &'static str,
        id: u64,
        from: &Receiver<Reply>,
        until: Instant,
    ) -> Result<(R, Vec<OwnedFd>)> {
        let reply = if self.background.is_current() {
            self.background.pump_for(link, from)
        } else {
            loop {
                let now = Instant::now();
                let left = until.saturating_duration_since(now);
                let notice = now + left.min(NOTICE);
                if let Some(reply) = self.background.read_for(link, from, notice) {
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
                    Err(RecvTimeoutError::Timeout) if left > NOTICE => {}
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
            None => of
                .lock_until(Some(deadline::of_request()), || self.interrupted())?
                .ok_or_else(|| unanswered("another thread")),
        }
    }

    fn await_link(&self, lost: &Arc<Control>, until: Instant, why: Error) -> Result<()> {
        let mut now = self.link_locked();
        while Arc::ptr_eq(&now.control, lost) && !self.is_closed() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(match &*self.background.hindrance() {
                    Some(e) => Error::new(why.code(), e.remedy(), format!("{}; then {}", why.message(), e.message())),
                    None => why,
                });
            }
            now = self.relinked.wait_timeout(now, left).unwrap_or_else(|p| p.into_inner()).0;
        }
        Ok(())
    }

    /// Sends a request whose answer nobody needs. A broker that goes away before it has answered leaves it to
    /// the next one.
    pub(crate) fn tell<B: Serialize>(&self, op: &'static str, body: &B) {
        let link = self.link_locked();
        // Closing undoes it, and behind that it would be the next opening's. No broker knows one that is lost.
        if !self.closed.is_set() && !self.is_lost() {
            let _ = link.control.tell(op, body);
        }
    }

    /// Whether the session takes no calls here any more: it was closed or lost, or is the parent's.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_set() || self.is_lost() || self.is_foreign()
    }

    /// Whether nothing can be done with the session any more, nor in the child of a fork with its heir.
    pub(crate) fn is_ended(&self) -> bool {
        let ended = || self.heir.get().is_none_or(|h| h.opened().is_some_and(|s| s.is_closed()));
        self.closed.is_set() || self.is_lost() || self.is_foreign() && ended()
    }

    /// Refuses what cannot be done any more: the session was closed, or it is the parent's and a call
    /// was under way when this process was forked.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(self.why_closed()) } else { Ok(()) }
    }

    #[cold]
    pub(super) fn why_closed(&self) -> Error {
        if let Some(lost) = self.lost.get() {
            return lost.clone();
        }
        if !self.is_foreign() {
            return closed("the session");
        }
        let during = || Error::new(Code::Closed, "make it again", "this process was forked during the call");
        self.heir.get().map_or_else(forked, |_| during())
    }

    /// Counts one reference up in the own row.
    #[inline]
    pub(crate) fn count_up(&self, index: u32) -> Result<()> {
        self.pages.row.take(index).map_err(|e| self.refused(e))
    }

    /// Why something is refused: that the session has ended, where it has. For then the own row may look
    /// full, as the broker has cleared it, and what is dropped after that lowers it below zero; and what
    /// a lease of the session protected is gone.
    #[cold]
    pub(super) fn refused(&self, why: Error) -> Error {
        self.check_open().err().unwrap_or(why)
    }

    /// Of a holding that is made now; what it holds is counted already.
    ///
    /// SYNC era: read after the row was raised; pairs with `pin_all`.
    #[inline]
    pub(crate) fn era(&self) -> u32 {
        self.era.load(Ordering::SeqCst)
    }

    /// Ends the session. What was sent is still received; what its tensors hold stays until they are dropped.
    pub(crate) fn close(&self, wait: bool) {
        if self.closed.set() {
            return;
        }
        if self.is_foreign() {
            if let Some(s) = self.heir.get().and_then(|h| h.opened()) {
                s.close(wait);
            }
            return;
        }
        let wait = wait && !self.background.is_current();
        let until = Instant::now() + PATIENCE;
        if wait {
            self.quiesce(until);
        }
        if let Some(d) = self.devices.get() {
            d.end(self);
        }
        self.leave();
        if wait {
            self.await_left(until);
        }
        crash_point::at("bye-said");
        self.relinked.notify_all();
        self.end_poll();
        self.waiter.wake();
    }

    /// Lets what writes to groups and lanes end, now that the session is marked closed: no reader would see
    /// a later message, and a later claim would stay. A send that waits for an answer of the broker is not
    /// waited for much longer than that takes. What lanes name is counted down once the broker counts for
    /// it.
    fn quiesce(&self, until: Instant) {
        drop(self.claiming.write().unwrap_or_else(|p| p.into_inner()));
        for topic in self.topics.all() {
            topic.end_writing(Some(until));
        }
    }

    /// The right to change claims of a group; `None` when the session is closed: nobody would undo a
    /// claim, and one of before may be another's.
    #[inline]
    pub(super) fn claiming(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let right = self.claiming.read().unwrap_or_else(|p| p.into_inner());
        (!self.is_closed()).then_some(right)
    }

    /// Whether a poll loop or a task has announced that it waits: what it looks at is to ring.
    pub(super) fn is_watching(&self) -> bool {
        let watching = self.poll.get().is_some_and(|p| p.is_armed());
        #[cfg(feature = "tokio")]
        let watching = watching || self.tasks.get().is_some_and(|t| t.is_armed());
        watching
    }

    /// Lets a program that polls, and tasks, see that the session has ended.
    pub(crate) fn end_poll(&self) {
        if let Some(p) = self.poll.get() {
            p.end();
        }
        #[cfg(feature = "tokio")]
        if let Some(t) = self.tasks.get() {
            t.end();
        }
    }

    /// Looks for storages that are no longer held and gives empty memory back to the broker: all, or what
    /// this process has not just allocated in.
    pub(crate) fn collect(&self, all: bool) -> u64 {
        self.settle();
        self.pool.collect(self, all) + self.collect_devices(all) + self.huge.get().map_or(0, |h| h.collect(self, all))
    }

    /// Withdraws queue messages that are done, which frees storages.
    pub(crate) fn settle(&self) {
        let topics = self.topics.all();
        topics.iter().for_each(|t| t.withdraw_done());
    }

    /// Returns true when `look` says so, false at the deadline, `Timeout` when the program's hook ends the wait; see
    /// [`Waiter::wait`](crate::waits::Waiter::wait).
    #[inline]
    pub(crate) fn wait(
        &self,
        spin: Option<u64>,
        place: Option<Place<'_>>,
        until: Option<Instant>,
        look: impl FnMut() -> bool,
    ) -> Result<bool> {
        self.waiter.wait(spin, place, until, look, || {
            self.check_interrupted()?;
            match self.is_foreign() {
                true => self.check_open(), // what the program's hook did has forked
                false => Ok(()),
            }
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.helper {
            return;
        }
        let last = self.users.fetch_sub(1, Ordering::AcqRel) == 1;
        if self.is_foreign() {
            if last && let Some(s) = self.heir.get().and_then(|h| h.opened()) {
                s.close(false);
            }
            return;
        }
        if !self.background.is_running() {
            let _ = self.link().tell("bye", &Nothing {}); // it came to nothing
            return;
        }
        if !self.closed.is_set() {
            self.close(false);
        } else if last {
            self.background.wake(); // nothing can be counted any more
        }
    }
}
