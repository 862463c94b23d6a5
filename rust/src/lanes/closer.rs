//! Closing a reader or a watch while another thread uses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::holding::Opening;

/// Closes a [`Reader`](crate::Reader) or a [`Watch`](crate::Watch) from any thread, also one in which a signal has interrupted its
/// wait: a call that waits fails with `Closed`, and so does each later one. It waits for nothing itself.
/// The topic is left when the reader is dropped. In the child of a fork it closes the child's reader alone.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let mut reader = session.topic("batches")?.reader(baton::Start::New)?;
/// let closer = reader.closer();
/// let waits = std::thread::spawn(move || reader.recv(None).map(drop));
/// closer.close();
/// assert_eq!(waits.join().unwrap().unwrap_err().code(), baton::Code::Closed);
/// assert!(closer.is_closed());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Closer {
    closed: Arc<AtomicBool>,
    inner: Weak<Opening>, // it keeps no session open
    what: &'static str,
}

impl Closer {
    pub(crate) fn new(inner: &Arc<Opening>, what: &'static str) -> Closer {
        Closer { closed: Arc::default(), inner: Arc::downgrade(inner), what }
    }

    /// Ends what waits by the reader. A second call does nothing.
    pub fn close(&self) {
        // The wait has read its session's bell before it looks whether it is to end, and the bell changes
        // after this: so it has seen this, or does not sleep.
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Has what waits look again.
    pub(super) fn wake(&self) {
        if let Some(here) = self.session().as_ref().and_then(Opening::opened_here) {
            here.waiter.wake();
        }
    }

    /// The session of the reader, unless that is gone.
    pub(super) fn session(&self) -> Option<Arc<Opening>> {
        self.inner.upgrade()
    }

    /// Whether [`close`](Closer::close) was called.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Refuses what is done by a reader that was closed.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_closed() { Err(Error::closed_here(self.what)) } else { Ok(()) }
    }
}
