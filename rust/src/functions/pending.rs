//! A call that was sent, and is waited for later.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::Within;
use super::calls::Calls;
use super::convert::FromValue;
use super::doors::Loan;
use super::endpoint::Endpoint;
use super::fate::succeeded;
use super::given::Scope;
use super::known::Known;
use super::received::Received;
use super::reply::Reply;
use super::waiting::Waiting;
use crate::deadline::{deadline, sooner};
use crate::error::{Error, Result};
use crate::holding::Opening;
use crate::lanes::{Closer, Sent};

/// A call that is under way; see [`Function::submit`](crate::Function::submit). Dropped it is cancelled, unless it is
/// over.
#[must_use = "dropped it cancels the call"]
pub struct Pending {
    inner: Arc<Opening>,
    calls: Arc<Calls>,
    known: Arc<Known>,
    /// Until it is over.
    flight: Option<Flight>,
    /// How it has ended.
    ended: Option<Result<Received>>,
    until: Option<Instant>,
    closer: Closer,
}

/// What a call has that is under way.
pub(super) struct Flight {
    pub(super) endpoint: Endpoint,
    pub(super) sent: Sent,
    pub(super) until: Option<Instant>,
    pub(super) wait_until: Option<Instant>,
    pub(super) away: Option<Instant>,
    /// Its functions, which are served until it is over.
    pub(super) _loan: Option<Loan>,
    /// Of a function that came as an argument.
    pub(super) object: u64,
    pub(super) scope: Option<Arc<Scope>>,
    /// The call within which it was made.
    pub(super) outer: Option<Within>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("function", &self.known.name()).finish_non_exhaustive()
    }
}

impl Flight {
    pub(super) fn waiting<'a>(
        &'a mut self,
        inner: &'a Arc<Opening>,
        known: &'a Known,
        closer: Option<&'a Closer>,
    ) -> (Waiting<'a>, &'a Sent) {
        let Flight { endpoint, sent, until, wait_until, away, object, scope, outer, .. } = self;
        let (until, wait_until, away) = (*until, *wait_until, *away);
        let (object, scope, outer) = (*object, scope.as_deref(), outer.as_ref().map(|w| &w.outer));
        let (window, serving) = (0, None);
        let of =
            Waiting { inner, known, endpoint, until, wait_until, away, window, object, scope, closer, outer, serving };
        (of, sent)
    }
}

impl Pending {
    pub(super) fn new(inner: &Arc<Opening>, calls: &Arc<Calls>, known: Arc<Known>, flight: Flight) -> Pending {
        let (until, closer) = (flight.until, Closer::new(inner, "the call"));
        Pending { inner: inner.clone(), calls: calls.clone(), known, flight: Some(flight), ended: None, until, closer }
    }

    /// Whether it is over.
    pub fn is_over(&mut self) -> bool {
        self.look();
        self.ended.is_some()
    }

    /// Waits until it is over, so long at most; whether it is.
    pub fn wait_for(&mut self, timeout: Duration) -> bool {
        self.wait_until(deadline(timeout));
        self.ended.is_some()
    }

    /// Waits for what it returns, as [`Function::call`](crate::Function::call). Errors as of that.
    pub fn wait<R: FromValue>(mut self) -> Result<R> {
        self.wait_until(None);
        self.result()
    }

    /// Says that it is wanted no more.
    pub fn cancel(self) {}

    /// What cancels it from another thread, also while it is waited for: it ends with `Cancelled`, unless it is over.
    #[doc(hidden)]
    pub fn closer(&self) -> Closer {
        self.closer.clone()
    }

    /// Looks how it stands.
    fn look(&mut self) {
        let Some(flight) = &mut self.flight else { return };
        let (mut waiting, sent) = flight.waiting(&self.inner, &self.known, Some(&self.closer));
        let ended = waiting.look(sent);
        flight.away = waiting.away;
        if let Some(ended) = ended {
            self.end(ended);
        }
    }

    fn end(&mut self, ended: Result<Received>) {
        self.ended = Some(ended);
        let Some(flight) = self.flight.take() else { return };
        if self.inner.is_foreign() {
            return std::mem::forget(flight); // the parent's
        }
        self.calls.give_back(flight.endpoint);
    }

    fn wait_until(&mut self, until: Option<Instant>) {
        loop {
            self.look();
            let Some(flight) = &mut self.flight else { return };
            if until.is_some_and(|u| Instant::now() >= u) {
                return;
            }
            let limit = sooner(flight.until, until);
            let (mut waiting, sent) = flight.waiting(&self.inner, &self.known, Some(&self.closer));
            let waited = waiting.wait(sent, limit);
            flight.away = waiting.away;
            if let Err(e) = waited {
                self.end(Err(e));
            }
        }
    }

    fn result<R: FromValue>(mut self) -> Result<R> {
        let received = self.take()?;
        R::from_value(received.result(&self.calls)?)
    }

    fn take(&mut self) -> Result<Received> {
        let over = || Error::closed_here("the call");
        succeeded(&self.known, self.ended.take().unwrap_or_else(|| Err(over()))?, self.until)
    }

    /// As `wait`, for bindings.
    #[doc(hidden)]
    pub fn reply(mut self) -> Result<Reply> {
        self.wait_until(None);
        let until = self.until;
        self.take().map(|received| Reply { received, calls: self.calls.clone(), until })
    }

    /// As [`wait`](Pending::wait), for async tasks. Errors as of that.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let _one = session.function("one", |_, _| Ok(1))?;
    /// let pending = session.get_function("one")?.submit(())?;
    /// assert_eq!(pending.wait_async::<i64>().await?, 1);
    /// # Ok(()) }) }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn wait_async<R: FromValue>(mut self) -> Result<R> {
        let Some(flight) = &self.flight else { return self.result() };
        let (topic, until) = (flight.endpoint.topic.clone(), flight.until);
        loop {
            let over = topic.wait_for(until, || {
                self.look();
                Ok(self.flight.is_none().then_some(()))
            });
            if over.await?.is_some() {
                return self.result();
            }
            // Its time is over: the next look says so.
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(mut flight) = self.flight.take() else { return };
        if self.inner.is_foreign() {
            return std::mem::forget(flight); // the parent's
        }
        let (mut waiting, sent) = flight.waiting(&self.inner, &self.known, Some(&self.closer));
        waiting.give_up(sent);
        self.calls.give_back(flight.endpoint);
    }
}
