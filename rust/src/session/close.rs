//! The end of an opening.

use std::time::{Duration, Instant};

use crate::crash_point;
use crate::devices::Devices;
use crate::holding::Opening;
use crate::lanes::Topics;

/// How long a close waits for the broker, and for sends that are under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// Ends the session. What was sent is still received; what its tensors hold stays until they are dropped.
pub(crate) fn close(inner: &Opening, wait: bool) {
    if inner.closed.set() {
        return;
    }
    if inner.is_foreign() {
        if let Some(s) = inner.heir().and_then(|h| h.opened()) {
            close(s, wait);
        }
        return;
    }
    let wait = wait && !inner.thread.is_current();
    let until = Instant::now() + PATIENCE;
    if wait {
        // No reader would see a later message, and a later claim would stay.
        inner.await_claims();
        if let Ok(topics) = Topics::of(inner) {
            topics.end_writing(until);
        }
    }
    if let Some(d) = Devices::known(&inner.memory) {
        d.end(inner);
    }
    inner.leave();
    if wait {
        inner.await_left(until);
    }
    crash_point::at("bye-said");
    inner.wake_callers();
    inner.watchers.end();
    inner.waiter.wake();
}
