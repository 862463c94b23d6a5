//! When waits end.

use std::time::{Duration, Instant};

/// When a timeout that begins now is over. `None` is never, and so is a time that the clock cannot
/// tell, such as `Duration::MAX`.
#[inline]
pub(crate) fn deadline(timeout: impl Into<Option<Duration>>) -> Option<Instant> {
    timeout.into().and_then(|t| Instant::now().checked_add(t))
}
