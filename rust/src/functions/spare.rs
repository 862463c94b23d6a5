//! The topics for replies that no call has now: those for the next calls, and those of calls that ended here before
//! their replies came. What comes there is let go of, so that nothing holds the memory of a result that nothing takes.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use crate::deadline::{by, for_a_moment};
use crate::error::Result;
use crate::holding::Opening;
use crate::lanes::{Topics, Unawaited};

/// Topics for replies that stay for the next calls.
const SPARE: usize = 256;

/// Topics to which replies are to come that nothing waits for, before another call has one of them: until it is waited
/// for it lets go of none of these. While there is no broker, which makes another topic, any is taken.
const OWING: usize = 8;

/// How long a broker is waited for where a call is given up.
const BRIEFLY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Spare {
    free: Mutex<Vec<Endpoint>>,
    owing: Mutex<Owing>,
}

#[derive(Debug, Default)]
struct Owing {
    all: Vec<Endpoint>,
    /// Threads that look at some, which are not among them meanwhile.
    looking: u32,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|p| p.into_inner())
}

/// One of the function of a topic, or the last.
#[cold]
fn take_of(free: &mut Vec<Endpoint>, of: u64) -> Option<Endpoint> {
    match free.iter().rposition(|e| e.of == of) {
        Some(at) => Some(free.remove(at)), // the others stay in the order in which they were used
        None => free.pop(),
    }
}

impl Spare {
    /// One for a call of the function of a topic: rather one that its provider has replied to before, which needs no
    /// broker then. `all_replied`: no reply of a call before is to come there.
    #[inline]
    pub(super) fn take(&self, inner: &Arc<Opening>, of: u64, all_replied: bool) -> Result<Endpoint> {
        let mut free = locked(&self.free);
        let found = match free.last() {
            Some(e) if e.of == of => free.pop(),
            _ => take_of(&mut free, of),
        };
        drop(free);
        let mut e = match found {
            Some(e) if e.is_fit() => e,
            over => {
                drop(over);
                self.take_another(inner, of, all_replied)?
            }
        };
        e.of = of;
        Ok(e)
    }

    #[cold]
    fn take_another(&self, inner: &Arc<Opening>, of: u64, all_replied: bool) -> Result<Endpoint> {
        let owing = || {
            let all = &mut locked(&self.owing).all;
            if all.len() < OWING && !inner.searches_broker() {
                return None; // which makes another
            }
            let of_it = all.iter().position(|e| e.is_fit() && e.of == of);
            let at = of_it.or_else(|| all.iter().position(Endpoint::is_fit));
            at.map(|at| all.remove(at))
        };
        match if all_replied { None } else { owing() } {
            Some(e) => Ok(e),
            None => Endpoint::new(inner),
        }
    }

    /// Keeps one for the next calls, and for the replies that are to come.
    #[inline]
    pub(super) fn give_back(self: &Arc<Spare>, e: Endpoint) {
        if e.has_all_replies() { self.keep(e) } else { self.owe(e) }
    }

    #[inline]
    fn keep(&self, e: Endpoint) {
        if e.is_fit() {
            let mut free = locked(&self.free);
            if free.len() < SPARE {
                free.push(e);
            }
        }
    }

    #[cold]
    fn owe(self: &Arc<Spare>, mut e: Endpoint) {
        let inner = e.topic.inner.clone();
        // A broker may have to say where a reply lies that has come.
        if !inner.broker_away() {
            by(Some(Instant::now() + BRIEFLY), || e.let_go());
        }
        if e.has_all_replies() {
            return self.keep(e);
        }
        if inner.is_closed() || e.topic.is_closed() {
            return;
        }
        locked(&self.owing).all.push(e);
        if let Ok(topics) = Topics::of(&inner) {
            let me: Weak<Spare> = Arc::downgrade(self);
            topics.late().add(&inner, me);
        }
    }
}

impl Unawaited for Spare {
    fn let_go(&self) {
        let mut owing = locked(&self.owing);
        owing.looking += 1;
        let all = std::mem::take(&mut owing.all);
        drop(owing); // a look may ask the broker
        let mut left = Vec::new();
        for mut e in all {
            // SYNC claim: before the look at the lanes, which finds what a provider has sent before it ended a call.
            let over = e.owes_nothing_more();
            for_a_moment(None, || e.let_go());
            if e.has_all_replies() {
                self.keep(e);
            } else if !over && !e.topic.inner.is_closed() && !e.topic.is_closed() {
                left.push(e);
            } // else what comes still goes with the topic
        }
        let mut owing = locked(&self.owing);
        owing.looking -= 1;
        owing.all.append(&mut left);
    }

    fn waits(&self) -> bool {
        let owing = locked(&self.owing);
        owing.looking > 0 || !owing.all.is_empty()
    }
}
