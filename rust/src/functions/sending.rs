//! A call that is to be sent, and waits before that for a provider and for room.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::arguments::{Arguments, give_back};
use super::call::{self, Within};
use super::calls::Calls;
use super::doors::{Lending, Loan};
use super::endpoint::Endpoint;
use super::known::{Known, Times, await_provider};
use super::parts::Parts;
use super::pending::{Flight, Pending};
use super::record::Link;
use super::target::{LentTo, Limits, Target};
use crate::crash_point;
use crate::deadline::{by, for_a_moment, is_past, sooner};
use crate::error::{Error, Result};
use crate::holding::Opening;
use crate::lanes::Sent;
use crate::value::Payload;

/// A call that is to be sent. Dropped before that nothing was sent.
#[doc(hidden)]
pub struct Sending {
    inner: Arc<Opening>,
    calls: Arc<Calls>,
    known: Arc<Known>,
    lent: Option<LentTo>,
    limits: Limits,
    until: Option<Instant>,
    wait_until: Option<Instant>,
    /// How many parts may be ahead; 0 of a call that takes none.
    window: u32,
    /// The calls within which it is made.
    chain: Vec<Link>,
    /// The innermost of them, which whatever thread waits looks at.
    outer: Option<Within>,
    stage: Stage,
}

enum Stage {
    /// Waits for a provider, whose signature says what the arguments are to be.
    Given(Arguments),
    /// Waits for room.
    Fit(Arguments),
    /// Waits for room, which another thread had taken.
    Made(Made),
    Sent(Made, Sent),
    /// What was left of it by an error.
    Over,
}

struct Made {
    endpoint: Endpoint,
    payload: Payload,
    loan: Option<Loan>,
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("function", &self.known.name()).finish_non_exhaustive()
    }
}

impl Sending {
    pub(super) fn new(
        target: &Target<'_>,
        known: Arc<Known>,
        limits: Limits,
        (until, wait_until): Times,
        window: u32,
        args: Arguments,
    ) -> Result<Sending> {
        let chain = call::current(|outer| outer.map_or(Ok(Vec::new()), |outer| target.chain(outer)))?;
        let (inner, calls) = (target.inner.clone(), target.calls.clone());
        let outer = call::outer().map(|outer| Within::new(outer, &inner));
        let (lent, stage) = (target.lent.cloned(), Stage::Given(args));
        let mut sending = Sending { inner, calls, known, lent, limits, until, wait_until, window, chain, outer, stage };
        sending.is_ready()?; // what does not fit is refused at once
        Ok(sending)
    }

    fn target(&self) -> Target<'_> {
        let Sending { inner, calls, known, lent, .. } = self;
        Target { inner, calls, known, lent: lent.as_ref() }
    }

    /// The same, of a task: the call within which it is made cancels that, and what it waits for.
    #[must_use]
    pub fn of_task(mut self) -> Sending {
        self.outer = None;
        self
    }

    /// The deadline of the call.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Until when what is next is waited for.
    pub fn until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Given(_) => sooner(self.until, self.wait_until),
            _ => self.until,
        }
    }

    /// The number of the function's topic.
    pub fn topic(&self) -> u64 {
        self.known.topic.info.id
    }

    /// Whether it was sent.
    pub fn is_sent(&self) -> bool {
        matches!(self.stage, Stage::Sent(..))
    }

    /// Whether there is a provider, whom the arguments fit, or was one before. `NoProvider` if none is waited for
    /// any more, `Timeout` at its deadline.
    pub fn is_ready(&mut self) -> Result<bool> {
        if !matches!(self.stage, Stage::Given(_)) {
            return Ok(true);
        }
        if !self.target().is_provided(self.limits, (self.until, self.wait_until))? {
            return Ok(false);
        }
        if let Stage::Given(mut args) = std::mem::replace(&mut self.stage, Stage::Over) {
            self.target().fit(&mut args, self.window > 0)?;
            self.stage = Stage::Fit(args);
        }
        Ok(true)
    }

    /// Carries out a part of it within the call within which it is made, whichever thread does.
    fn within<T>(&mut self, part: impl FnOnce(&mut Sending) -> Result<T>) -> Result<T> {
        match self.outer.as_ref().map(|within| within.outer.clone()) {
            Some(outer) => outer.within(|| part(self)),
            None => part(self),
        }
    }

    /// Sends it if there is room; whether it was sent. `Full` at its deadline, `Timeout` if no broker is there then.
    pub fn try_send(&mut self) -> Result<bool> {
        self.within(Sending::try_send_now).map_err(|e| self.known.by_deadline(e, self.until))
    }

    fn try_send_now(&mut self) -> Result<bool> {
        if self.is_sent() {
            return Ok(true);
        }
        if !self.is_ready()? || !self.has_room()? {
            return Ok(false);
        }
        let mut made = match self.made(false) {
            Err(e) if e.is_unanswered() && !is_past(self.until) => return Ok(false),
            made => made?,
        };
        let until = self.until;
        match by(until, || self.known.topic.attempt_call(&mut made.payload, until)) {
            Ok(Some(sent)) => self.has_sent(made, sent),
            Err(e) if !e.is_unanswered() || is_past(until) => Err(self.unsent(made, e)),
            Ok(None) | Err(_) => {
                self.stage = Stage::Made(made);
                Ok(false)
            }
        }
    }

    /// Sends it, waiting in this thread. `Timeout` and `Full` at its deadline, `NoProvider` after its wait.
    pub fn wait(&mut self) -> Result<()> {
        self.within(Sending::wait_here).map_err(|e| self.known.by_deadline(e, self.until))
    }

    fn wait_here(&mut self) -> Result<()> {
        if self.is_sent() {
            return Ok(());
        }
        self.goes_on()?;
        if !self.is_ready()? {
            await_provider(&self.inner, &self.known, (self.until, self.wait_until))?;
            if !self.is_ready()? {
                return Err(self.known.no_provider()); // it has left again
            }
        }
        let mut made = self.made(true)?;
        let send = || self.known.topic.send_call(&mut made.payload, self.until, &|| self.goes_on());
        match call::ending(send) {
            Ok(sent) => self.has_sent(made, sent).map(drop),
            Err(e) => Err(self.unsent(made, e)),
        }
    }

    /// Whether it can be made still, and the call within which it is made is wanted.
    fn goes_on(&self) -> Result<()> {
        self.target().goes_on()?;
        self.outer.as_ref().map_or(Ok(()), |within| within.outer.check())
    }

    /// Whether there is room, as far as others do not take it; `Full` where it was waited for until now.
    fn has_room(&self) -> Result<bool> {
        self.goes_on()?;
        let known = &self.known;
        let room = match for_a_moment(self.until, || known.topic.has_room()) {
            Err(e) if e.is_unanswered() && !is_past(self.until) => false,
            room => room.map_err(|e| known.unsent(e))?,
        };
        if !room && is_past(self.until) {
            return Err(known.topic.full());
        }
        Ok(room)
    }

    /// What is sent, with the place of its reply. `waits`: also for a broker that does not answer.
    fn made(&mut self, waits: bool) -> Result<Made> {
        let parts = self.window > 0;
        let open = || self.calls.endpoint(&self.inner, &self.known, parts);
        let mut endpoint = match self.stage {
            Stage::Given(_) | Stage::Fit(_) if waits => self.target().persist(self.until, open)?,
            Stage::Given(_) | Stage::Fit(_) => call::ending(|| for_a_moment(self.until, open))?,
            Stage::Made(_) | Stage::Sent(..) | Stage::Over => {
                return match std::mem::replace(&mut self.stage, Stage::Over) {
                    Stage::Made(made) => Ok(made),
                    over => {
                        self.stage = over;
                        Err(Error::closed_here("the call"))
                    }
                };
            }
        };
        let (Stage::Given(mut args) | Stage::Fit(mut args)) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Err(Error::closed_here("the call"));
        };
        endpoint.take_parts(parts);
        let mut lending =
            Lending::new(&self.inner, &self.calls, false, self.outer.as_ref().map(|w| w.outer.clone()), self.until);
        let mut waiting = self.target().waiting(&mut endpoint, (self.until, self.wait_until));
        waiting.window = self.window;
        match waiting.payload(&mut args, &self.chain, &mut |f| lending.lend(f)) {
            Ok(payload) => Ok(Made { endpoint, payload, loan: lending.loan() }),
            Err(e) => {
                endpoint.take_parts(false);
                self.calls.give_back(endpoint);
                Err(e)
            }
        }
    }

    fn has_sent(&mut self, mut made: Made, sent: Sent) -> Result<bool> {
        give_back(&mut made.payload);
        made.payload = Payload::default();
        crash_point::at("call-sent");
        self.stage = Stage::Sent(made, sent);
        Ok(true)
    }

    #[cold]
    fn unsent(&self, made: Made, e: Error) -> Error {
        self.let_go(made);
        self.known.unsent(e)
    }

    fn let_go(&self, made: Made) {
        let Made { mut endpoint, payload, loan } = made;
        drop((payload, loan));
        endpoint.take_parts(false);
        self.calls.give_back(endpoint);
    }

    fn flight(&mut self) -> Result<Flight> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sent(Made { endpoint, loan, .. }, sent) => {
                let (object, scope) = (self.lent.as_ref().map_or(0, |l| l.object), self.lent.as_ref());
                let scope = scope.map(|l| l.scope.clone());
                let (until, wait_until, outer) = (self.until, self.wait_until, self.outer.take());
                Ok(Flight { endpoint, sent, until, wait_until, away: None, _loan: loan, object, scope, outer })
            }
            before => {
                self.stage = before;
                Err(Error::closed_here("the call"))
            }
        }
    }

    /// The call that was sent.
    pub fn pending(mut self) -> Result<Pending> {
        let flight = self.flight()?;
        Ok(Pending::new(&self.inner, &self.calls, self.known.clone(), flight))
    }

    /// The parts of the call that was sent.
    pub fn parts<T>(mut self) -> Result<Parts<T>> {
        let flight = self.flight()?;
        Ok(Parts::new(&self.inner, &self.calls, self.known.clone(), flight))
    }

    /// Sends it, waiting as a task. Those that wait for room of one function are sent in their order.
    #[cfg(feature = "tokio")]
    pub(super) async fn wait_async(&mut self) -> Result<()> {
        self.wait_task().await.map_err(|e| self.known.by_deadline(e, self.until))
    }

    #[cfg(feature = "tokio")]
    async fn wait_task(&mut self) -> Result<()> {
        let known = self.known.clone();
        while !self.is_ready()? {
            let until = self.until();
            let look = || {
                self.goes_on()?;
                self.is_ready().map(|ready| ready.then_some(()))
            };
            known.topic.wait_for(until, look).await?;
        }
        let turn = match self.until {
            None => known.turns.lock().await,
            Some(until) => match tokio::time::timeout_at(until.into(), known.turns.lock()).await {
                Ok(turn) => turn,
                Err(_) => return Err(known.topic.full()),
            },
        };
        while !self.try_send()? {
            // Only a look at the room: what is asked of the broker to send it has its time.
            known.topic.wait_for(self.until, || self.has_room().map(|room| room.then_some(()))).await?;
        }
        drop(turn);
        Ok(())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            // The parent's, in the child of a fork.
            Stage::Made(made) if self.inner.is_foreign() => std::mem::forget(made),
            Stage::Made(made) => self.let_go(made),
            stage @ Stage::Sent(..) => {
                self.stage = stage;
                if let Ok(flight) = self.flight() {
                    Parts::<()>::new(&self.inner, &self.calls, self.known.clone(), flight).cancel();
                }
            }
            _ => {}
        }
    }
}
