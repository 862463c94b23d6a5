//! Calls that a binding takes, whose language runs the function in a thread of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::args::Args;
use super::arguments::Arguments;
use super::call::{self, Call};
use super::provider::{Provided, Provider};
use crate::error::Result;

/// A call that has begun. Dropped it is over without a reply.
#[doc(hidden)]
pub struct Taken {
    state: Arc<Provider>,
    call: Call,
    /// Until it is replied to.
    args: Option<Args>,
}

impl Provided {
    /// The next call of a function that was registered by `Provide::register`, waiting for one; `None` once it is provided
    /// no more.
    #[doc(hidden)]
    pub fn take(&self) -> Option<Taken> {
        let state = &self.state;
        while !state.topic.inner.is_foreign()
            && let Some((message, claimed)) = state.next()
        {
            match state.begin(message, claimed) {
                Some((received, call)) => {
                    let args = Some(Args::new(received, state.signature.clone()));
                    return Some(Taken { state: state.clone(), call, args });
                }
                None => state.running.fetch_sub(1, Ordering::Relaxed),
            };
        }
        if !state.topic.inner.is_foreign() {
            state.closer.close();
            state.leave();
        }
        None
    }

    /// Takes no more calls.
    #[doc(hidden)]
    pub fn close(&self) {
        if !self.state.topic.inner.is_foreign() {
            self.state.closer.close();
        }
    }
}

impl Taken {
    /// The call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Its arguments.
    pub fn args(&self) -> Option<&Args> {
        self.args.as_ref()
    }

    /// Runs what may make calls within it.
    pub fn within<T>(&self, run: impl FnOnce() -> T) -> T {
        call::within(&self.call, run)
    }

    /// Whether it was taken in this process: in the child of a fork it stays the parent's.
    pub fn is_here(&self) -> bool {
        !self.state.topic.inner.is_foreign()
    }

    /// Replies with what the function has returned, an argument that has no name, or the error with which it has failed.
    pub fn reply(mut self, outcome: Result<Arguments>) {
        self.args = None; // its tensors are free once the caller has the reply
        if self.is_here() {
            self.state.finish(&mut self.call, outcome);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.args = None;
        if self.is_here() {
            self.call.end();
            if self.state.running.fetch_sub(1, Ordering::Relaxed) == 1 && self.state.closer.is_closed() {
                self.state.leave();
            }
        }
    }
}
