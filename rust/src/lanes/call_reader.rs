//! A reader that takes the calls of a function.

use std::time::Instant;

use super::calls::{CanBegin, Claimed, FunctionRecord, Provides};
use super::message::{Claim, Message, Taken, Taking};
use super::reader::Reader;
use crate::deadline::persist;
use crate::error::{Error, Result};
use crate::waits::Look;

impl Reader {
    /// The number by which it was joined.
    pub(crate) fn number(&self) -> u64 {
        self.membership.number
    }

    /// Rings no writer when it has taken a message, where none waits for room.
    pub(crate) fn quiet(&mut self, yes: bool) {
        self.quiet = yes;
    }

    /// Takes calls by a registration from here on. While there is no broker it leaves those that cannot begin.
    pub(crate) fn provide(&mut self, record: FunctionRecord, registration: u32, can_begin: Option<Box<CanBegin>>) {
        self.provides = Some(Provides { record, registration, can_begin });
    }

    /// Looks whether message i of a lane can begin without a broker, where one is of no use before it can: another
    /// provider may take it, or this one once there is a broker.
    #[cold]
    pub(super) fn leaves_call(&mut self, at: usize, i: u64) -> bool {
        let Reader { topic, cursors, scratch, provides, .. } = self;
        let Some(can_begin) = provides.as_ref().and_then(|p| p.can_begin.as_ref()) else { return false };
        let unclaimed = || Some(Claim { lost: 0, acknowledge: None });
        match Taking(&topic.inner).take(&cursors[at].lane, i, scratch, unclaimed) {
            Taken::Message(held) => !can_begin(&Message { held }),
            _ => false, // the attempt to take it says what there is
        }
    }

    /// Whether it takes calls still.
    pub(crate) fn provides(&self) -> bool {
        self.provides.as_ref().is_some_and(Provides::is_current)
    }

    /// The next call, waiting for one; `None` where the registration holds no more. `other`, which is asked before and
    /// after each sleep, says whether there is something else to be seen. It takes none but while it has what `room`
    /// gives, which waits for that, and is given back with a call that was not there.
    pub(crate) fn next_call<R>(
        &mut self,
        mut room: impl FnMut(&Reader) -> Result<Option<R>>,
        mut other: impl FnMut() -> bool,
    ) -> Result<Option<(Message, Claimed, R)>> {
        loop {
            if !self.provides() {
                self.pass_on();
                return Ok(None);
            }
            if let Some(room) = room(self).inspect_err(|_| self.pass_on())?
                && let Some((message, call)) = self.poll_call(None).inspect_err(|_| self.pass_on())?
            {
                return Ok(Some((message, call, room)));
            }
            let provides = self.provides.take();
            let waited = self.wait_beside(None, |look| {
                look == Look::Parked && (provides.as_ref().is_none_or(|p| !p.is_current()) || other())
            });
            self.provides = provides;
            waited?;
        }
    }

    /// The next call, if there is one. A broker that is asked for what it lies in is waited for so long.
    pub(crate) fn poll_call(&mut self, until: Option<Instant>) -> Result<Option<(Message, Claimed)>> {
        while let Some(message) = persist(until, Error::is_away, || self.poll())? {
            if let Some(call) = self.call.take() {
                return Ok(Some((message, call)));
            }
        }
        Ok(None)
    }
}
