//! Calls that a binding takes, whose language runs the function in a thread of its own.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::answers::{Answers, Part, Progress};
use super::args::Args;
use super::arguments::Arguments;
use super::call::{self, Call, Outer};
use super::places::Ticket;
use super::provider::{Provided, Provider, Seat};
use super::received::Received;
use crate::deadline::{by, sooner};
use crate::error::Result;

/// A call that has begun. Dropped it is over without a reply.
#[doc(hidden)]
pub struct Taken {
    answers: Arc<Answers>,
    call: Call,
    /// Until it is replied to.
    args: Option<Args>,
    progress: Progress,
    /// Of a provided function; of one that was lent there is none.
    of: Option<Provides>,
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").field("topic", &self.answers.topic.info.name).finish_non_exhaustive()
    }
}

struct Provides {
    provider: Arc<Provider>,
    seat: Option<Seat>,
    /// The turn at a place, of a call that waits for its caller to take parts.
    waits: Mutex<Option<Ticket>>,
}

/// A part that waits until the caller has taken enough of those before.
#[doc(hidden)]
pub struct Waits(Part);

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits").finish_non_exhaustive()
    }
}

impl Provided {
    /// The next call of a function that was registered by `Provide::register`, waiting for one; `None` once it is provided
    /// no more, or there are threads enough that take calls.
    #[doc(hidden)]
    pub fn take(&self) -> Option<Taken> {
        let state = &self.state;
        let is_foreign = || state.answers.inner().is_foreign();
        while !is_foreign() && !state.is_surplus() {
            let Some((message, claimed, seat)) = state.next() else {
                if !is_foreign() {
                    state.closer.close();
                }
                break;
            };
            let answers = &state.answers;
            match answers.begin(message, claimed) {
                Some((received, call)) => {
                    let of = Provides { provider: state.clone(), seat, waits: Mutex::default() };
                    return Some(Taken::new(answers, call, received, Some(of)));
                }
                None => {
                    drop(seat);
                    state.running.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        if !is_foreign() && state.closer.is_closed() {
            state.leave();
        }
        None
    }

    /// Takes no more calls.
    #[doc(hidden)]
    pub fn close(&self) {
        if !self.state.answers.inner().is_foreign() {
            self.state.closer.close();
        }
    }
}

impl Taken {
    fn new(answers: &Arc<Answers>, call: Call, received: Received, of: Option<Provides>) -> Taken {
        let args = Some(Args::new(received, answers.clone()));
        Taken { answers: answers.clone(), call, args, progress: Progress::default(), of }
    }

    /// A call of a function that was lent.
    pub(super) fn lent(answers: &Arc<Answers>, call: Call, received: Received) -> Taken {
        Taken::new(answers, call, received, None)
    }

    /// The call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Its arguments.
    pub fn args(&self) -> Option<&Args> {
        self.args.as_ref()
    }

    /// Makes what it is answered with: a broker that is asked for memory is waited for until the call's deadline, and
    /// until that of the call for which this thread waits.
    pub fn making<T>(&self, part: impl FnOnce() -> T) -> T {
        let served = self.call.served.as_ref().and_then(|served| served.deadline());
        by(sooner(self.call.deadline(), served), part)
    }

    /// Runs what may make calls within it.
    pub fn within<T>(&self, run: impl FnOnce() -> T) -> T {
        call::within(&self.call, run)
    }

    /// The call for what is made within it elsewhere, also after its end.
    pub fn outer(&self) -> Arc<Outer> {
        self.call.as_outer().clone()
    }

    /// Whether it was taken in this process: in the child of a fork it stays the parent's.
    pub fn is_here(&self) -> bool {
        !self.answers.inner().is_foreign()
    }

    /// Gives a part, waiting until the caller has taken enough of those before.
    pub fn send_part(&self, part: Arguments) -> Result<()> {
        let relieve = || self.of.as_ref().is_some_and(|of| of.provider.relieve());
        self.answers.send_part(&self.call, &self.progress, part, relieve)
    }

    /// Gives a part if the caller has taken enough of those before; else what is to be tried again, while others have
    /// the place of the call.
    pub fn try_part(&self, part: Arguments) -> Result<Option<Waits>> {
        let mut part = self.answers.part(&self.call, &self.progress, part)?;
        if self.answers.try_part(&self.call, &self.progress, &mut part)? {
            return Ok(None);
        }
        if let Some(seat) = self.of.as_ref().and_then(|of| of.seat.as_ref()) {
            seat.leave();
        }
        Ok(Some(Waits(part)))
    }

    /// Gives a part that waits; whether it did.
    pub fn retry_part(&self, part: &mut Waits) -> Result<bool> {
        self.answers.try_part(&self.call, &self.progress, &mut part.0)
    }

    /// Has the place of the call again, if it is its turn; then it may go on.
    pub fn regain_place(&self) -> bool {
        let Some((seat, waits)) = self.of.as_ref().and_then(|of| Some((of.seat.as_ref()?, &of.waits))) else {
            return true;
        };
        seat.regain(&mut waits.lock().unwrap_or_else(|p| p.into_inner()))
    }

    /// Waits for its place no more, which is others' turn then.
    pub fn forget_place(&self) {
        let Some(of) = &self.of else { return };
        let ticket = of.waits.lock().unwrap_or_else(|p| p.into_inner()).take();
        if let Some((ticket, places)) = ticket.zip(self.answers.places.as_ref()) {
            places.forget(self.answers.inner(), ticket);
        }
    }

    /// Replies with what the function has returned, an argument that has no name, or the error with which it has failed.
    pub fn reply(mut self, outcome: Result<Arguments>) {
        self.args = None; // its tensors are free once the caller has the reply
        if self.is_here() {
            self.answers.finish(&mut self.call, outcome);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.args = None;
        if !self.is_here() {
            return;
        }
        self.call.end(false);
        self.forget_place();
        let Some(Provides { provider, seat, .. }) = &mut self.of else { return };
        *seat = None;
        if provider.running.fetch_sub(1, Ordering::Relaxed) == 1 && provider.closer.is_closed() {
            provider.leave();
        }
    }
}
