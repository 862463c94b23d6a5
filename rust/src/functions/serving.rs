//! What a thread does while it waits for a call.

use std::sync::Arc;
use std::time::Instant;

use super::call::Outer;
use crate::deadline::{is_past, sooner};
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::Closer;
use crate::waits::{Enclosing, Relay};

/// What a thread does while it waits for a call: it serves the functions that it has lent.
pub(super) struct Serving {
    pub(super) inner: Arc<Opening>,
    pub(super) until: Option<Instant>,
    pub(super) closer: Option<Closer>,
    pub(super) outer: Option<Arc<Outer>>,
}

impl Enclosing for Serving {
    fn check(&self) -> Result<()> {
        if is_past(self.until) {
            return Err(Error::new(Code::Timeout, "wait longer", "the call has not ended in time"));
        }
        if self.closer.as_ref().is_some_and(Closer::is_closed) {
            return Err(Error::new(Code::Cancelled, "", "the call was cancelled here"));
        }
        self.outer.as_ref().map_or(Ok(()), |outer| outer.check())
    }

    fn deadline(&self) -> Option<Instant> {
        sooner(self.until, self.outer.as_ref().and_then(|outer| outer.deadline()))
    }

    fn relays(&self, each: &mut dyn FnMut(&Arc<Relay>)) {
        each(&self.inner.relay);
        if let Some(outer) = &self.outer {
            outer.relays(each);
        }
    }
}
