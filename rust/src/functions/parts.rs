//! The parts of a call, as its caller takes them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use super::calls::Calls;
use super::convert::FromValue;
use super::fate::succeeded;
use super::known::Known;
use super::pending::Flight;
use super::received::Received;
use super::record::IS_PART;
use super::reply::Reply;
use crate::deadline::sooner;
use crate::error::{Error, Result};
use crate::holding::Opening;
use crate::lanes::Closer;
use crate::value::Value;

/// The parts of a call; see [`Function::stream`](crate::Function::stream). As an iterator it waits for each, and ends
/// when the function has returned, or with the error of the call. Dropped it cancels the call, unless that is over.
#[must_use = "dropped it cancels the call"]
pub struct Parts<T> {
    inner: Arc<Opening>,
    calls: Arc<Calls>,
    known: Arc<Known>,
    /// Until it is over.
    flight: Option<Flight>,
    /// How it has ended, until that was told.
    ended: Option<Result<Received>>,
    /// What cancels it from other threads, once that was asked for.
    closer: Option<Closer>,
    until: Option<Instant>,
    part: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Parts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("function", &self.known.name()).finish_non_exhaustive()
    }
}

impl<T> Parts<T> {
    pub(super) fn new(inner: &Arc<Opening>, calls: &Arc<Calls>, known: Arc<Known>, flight: Flight) -> Parts<T> {
        let (inner, calls, until, part) = (inner.clone(), calls.clone(), flight.until, PhantomData);
        Parts { inner, calls, known, flight: Some(flight), ended: None, closer: None, until, part }
    }

    /// The next part, if it has come. Parts that are there are wanted no more once the call is over within which this one
    /// is made.
    fn look(&mut self) -> Option<Result<Received>> {
        let flight = self.flight.as_mut()?;
        let (mut waiting, sent) = flight.waiting(&self.inner, &self.known, self.closer.as_ref());
        let found = match waiting.unwanted() {
            Some(e) => {
                waiting.give_up(sent);
                Some(Err(e))
            }
            None => waiting.look(sent),
        };
        flight.away = waiting.away;
        match found {
            Some(Ok(part)) if part.head.flags & IS_PART != 0 => Some(Ok(part)),
            Some(ended) => {
                self.end(ended);
                None
            }
            None => None,
        }
    }

    fn end(&mut self, ended: Result<Received>) {
        let Some(mut flight) = self.flight.take() else { return };
        let until = flight.until;
        if self.inner.is_foreign() {
            std::mem::forget(flight); // the parent's
        } else if ended.is_ok() {
            flight.endpoint.take_parts(false);
            self.calls.give_back(flight.endpoint);
        }
        self.ended = Some(ended.and_then(|reply| succeeded(&self.known, reply, until)));
    }

    /// The next part, waiting for it; `None` once there are no more.
    fn next_part(&mut self) -> Option<Received> {
        self.next_part_until(None).flatten()
    }

    /// As `next_part`, waiting until a time at most: `None` where there may come more.
    fn next_part_until(&mut self, limit: Option<Instant>) -> Option<Option<Received>> {
        loop {
            if let Some(part) = self.look() {
                return Some(part.ok());
            }
            let Some(flight) = self.flight.as_mut() else { return Some(None) };
            if limit.is_some_and(|l| Instant::now() >= l) {
                return None;
            }
            let until = sooner(flight.until, limit);
            let (mut waiting, sent) = flight.waiting(&self.inner, &self.known, self.closer.as_ref());
            let waited = waiting.wait(sent, until);
            flight.away = waiting.away;
            if let Err(e) = waited {
                self.end(Err(e));
            }
        }
    }

    /// The error with which it has ended, once.
    fn failure(&mut self) -> Option<Error> {
        match self.ended.take() {
            Some(Err(e)) => Some(e),
            ended => {
                self.ended = ended;
                None
            }
        }
    }

    fn reply(&self, received: Received) -> Reply {
        Reply { received, calls: self.calls.clone(), until: self.until }
    }

    fn is_over(&self) -> bool {
        self.flight.is_none()
    }

    /// What the function has returned at its end. Parts that were not taken are let go. Errors as of
    /// [`Function::call`](crate::Function::call).
    pub fn result<R: FromValue>(mut self) -> Result<R> {
        while self.next_part().is_some() {}
        R::from_value(self.end_of()?.result(&self.calls)?)
    }

    fn end_of(&mut self) -> Result<Received> {
        self.ended.take().unwrap_or_else(|| Err(Error::closed_here("the call")))
    }

    /// Says that no more parts are wanted.
    pub fn cancel(self) {}

    /// The next part for bindings, as `next` gives it.
    #[doc(hidden)]
    pub fn next_reply(&mut self) -> Option<Result<Reply>> {
        match self.next_part() {
            Some(part) => Some(Ok(self.reply(part))),
            None => self.failure().map(Err),
        }
    }

    /// The next part for bindings, if it has come: `None` if there may come more.
    #[doc(hidden)]
    pub fn try_next_reply(&mut self) -> Option<Option<Result<Reply>>> {
        match self.look() {
            Some(part) => Some(Some(part.map(|part| self.reply(part)))),
            None if self.is_over() => Some(self.failure().map(Err)),
            None => None,
        }
    }

    /// The next part, waiting until a time at most: `None` if there may come more.
    #[doc(hidden)]
    pub fn next_value(&mut self, limit: Option<Instant>) -> Option<Option<Result<Value>>> {
        Some(match self.next_part_until(limit)? {
            Some(part) => Some(part.result(&self.calls)),
            None => self.failure().map(Err),
        })
    }

    /// What cancels it from another thread, also while it is waited for: it ends with `Cancelled`, unless it is over.
    #[doc(hidden)]
    pub fn closer(&mut self) -> Closer {
        self.closer.get_or_insert_with(|| Closer::new(&self.inner, "the call")).clone()
    }

    /// What the function has returned, for bindings: the parts that were not taken are let go.
    #[doc(hidden)]
    pub fn result_reply(&mut self) -> Result<Reply> {
        while self.next_part().is_some() {}
        self.end_of().map(|end| self.reply(end))
    }
}

impl<T: FromValue> Iterator for Parts<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        match self.next_part() {
            Some(part) => Some(part.result(&self.calls).and_then(T::from_value)),
            None => self.failure().map(Err),
        }
    }
}

#[cfg(feature = "tokio")]
impl<T: FromValue> Parts<T> {
    /// As the iterator's `next`, for async tasks: the thread is free for others meanwhile. After an error
    /// there are no more.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let _count = session.provide("count")?.serve_parts(|_, _, parts| (0..3).try_for_each(|i| parts.send(i)))?;
    /// let mut parts = session.get_function("count")?.stream::<i64>(())?;
    /// let mut sum = 0;
    /// while let Some(part) = parts.next_async().await {
    ///     sum += part?;
    /// }
    /// assert_eq!(sum, 3);
    /// # Ok(()) }) }
    /// ```
    pub async fn next_async(&mut self) -> Option<Result<T>> {
        if let Some(flight) = &self.flight {
            let (topic, until) = (flight.endpoint.topic.clone(), flight.until);
            loop {
                let found = topic.wait_for(until, || Ok(self.look().map(Some).or(self.is_over().then_some(None))));
                match found.await {
                    Ok(Some(Some(part))) => return Some(part.and_then(|p| T::from_value(p.result(&self.calls)?))),
                    Ok(Some(None)) => break,
                    Ok(None) => {} // its time is over: the next look says so
                    Err(e) => self.end(Err(e)),
                }
            }
        }
        self.failure().map(Err)
    }
}

impl<T> Drop for Parts<T> {
    fn drop(&mut self) {
        let Some(mut flight) = self.flight.take() else { return };
        if self.inner.is_foreign() {
            return std::mem::forget(flight); // the parent's
        }
        let (mut waiting, sent) = flight.waiting(&self.inner, &self.known, self.closer.as_ref());
        waiting.give_up(sent);
    }
}
