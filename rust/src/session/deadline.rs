//! When waits end.

use std::time::{Duration, Instant};

/// When a timeout that begins now is over. `None` is never, and so is a time that the clock cannot
/// tell, such as `Duration::MAX`.
#[inline]
pub(crate) fn deadline(timeout: impl Into<Option<Duration>>) -> Option<Instant> {
    timeout.into().and_then(|t| Instant::now().checked_add(t))
}

/// When a call's timeout is over, for bindings whose calls wait twice: for their turn with a value
/// ([`Turns`](crate::Turns)), then with it.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The end of a timeout that begins now; without one there is none.
    pub fn after(timeout: impl Into<Option<Duration>>) -> Deadline {
        Deadline(deadline(timeout))
    }

    /// What is left of the timeout; `None`: for ever.
    pub fn left(self) -> Option<Duration> {
        self.0.map(|until| until.saturating_duration_since(Instant::now()))
    }
}
