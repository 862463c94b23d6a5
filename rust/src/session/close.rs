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

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::sync::Arc;

    use crate::devices::Point;
    use crate::error::Code;
    use crate::holding::fixture::{Parts, opening};
    use crate::layout::session_file;
    use crate::link::fixture::lose;
    use crate::message::Order;
    use crate::shm::Region;
    use crate::sys::Mapping;

    /// Of a sender that dies then no broker would tell.
    #[test]
    fn a_wait_for_a_stream_ends_with_the_session() {
        let (inner, _broker, _files) = opening(Parts::default());
        let page = Region::new(Arc::new(Mapping::anonymous(session_file::STREAMS as usize + 8).unwrap()));
        let point = Point::of(&page, Order { stream: 1, ready: 7 });
        std::thread::scope(|s| {
            let waits = s.spawn(|| point.wait(&inner, None));
            lose(&inner.link);
            assert_eq!(waits.join().unwrap().unwrap_err().code(), Code::SessionLost);
        });
        page.store(session_file::STREAMS, 7);
        point.wait(&inner, None).unwrap(); // it can be read
    }
}
