//! A descriptor for poll loops.
//!
//! Ringers wake a futex, which no poll sees. So a thread, started when a descriptor is first asked
//! for, sleeps on the session's bell in the program's stead and makes the descriptor readable when it
//! is rung. [`Session::clear_poll_fd`] begins a wait as every other one begins: it announces the
//! sleep, and what the program looks at afterwards is the second look. A reader that has nothing for
//! it then puts the session into a wait set of its topic, and looks once more. Whatever is published
//! later rings. Between a ring and the next clearing nothing is announced: a program that is busy
//! costs its senders nothing.

use std::os::fd::BorrowedFd;

use super::Session;
use crate::error::{Code, Error, Result, closed};
use crate::sys::Waker;
use crate::waits::Sleeper;

impl Session {
    /// A descriptor for poll, epoll and the like: readable when something may have changed for this
    /// session, be it a message, room in a queue, a name, or its end. It is readable at first, stays
    /// so until [`clear_poll_fd`](Session::clear_poll_fd) is called, and becomes readable about once
    /// a second although nothing has changed, for the look that every wait of a session takes. Only
    /// poll it: reading, writing and closing are the session's.
    ///
    /// # Errors
    /// `TooMany`, `Closed`.
    ///
    /// The first call starts a thread. Until then a session that is not asked has neither.
    ///
    /// # Example
    /// ```no_run
    /// # fn main() -> Result<(), baton::Error> {
    /// # use std::{os::fd::AsFd, time::Duration};
    /// # fn wait_until_readable(_: impl AsFd) {}
    /// let session = baton::Session::connect()?;
    /// let mut reader = session.topic("batches")?.reader(baton::Start::New)?;
    /// loop {
    ///     wait_until_readable(session.poll_fd()?);
    ///     session.clear_poll_fd(); // first clear, then take all there is
    ///     while let Some(message) = reader.try_recv()? {
    ///         println!("{}", message.sequence());
    ///     }
    /// }
    /// # }
    /// ```
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        let inner = self.inner()?;
        if inner.watchers.poll.get().is_none() {
            inner.check_open()?;
        }
        if inner.watchers.poll.get().is_none() {
            let made = Waker::new().and_then(|w| Sleeper::start(w, inner.waiter.parking.clone())).map_err(|e| {
                let what = format!("make a descriptor to poll: {e}");
                Error::new(Code::TooMany, "raise the limits of open files and threads", what)
            })?;
            if let Err(second) = inner.watchers.poll.set(made) {
                second.end(); // another thread was faster
            }
            if inner.is_closed() {
                inner.watchers.end(); // meanwhile, by a thread that saw no descriptor to end
            }
        }
        inner.watchers.poll.get().map(|p| p.alarm.fd()).ok_or_else(|| closed("the session"))
    }

    /// Makes the descriptor of [`poll_fd`](Session::poll_fd) not readable until something may have
    /// changed after this call. Call it before looking: what came before is there to be taken, what
    /// comes later makes the descriptor readable again. When the session has ended, or no descriptor
    /// was asked for, it does nothing.
    pub fn clear_poll_fd(&self) {
        if let Some(p) = self.inner.opened_here().and_then(|inner| inner.watchers.poll.get()) {
            p.arm();
        }
    }
}
