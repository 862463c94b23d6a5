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
use super::sleeper::{Alarm, Sleeper};
use crate::error::{Code, Error, Result, closed};
use crate::sys::Waker;

/// The thread behind the descriptor.
pub(crate) type PollFd = Sleeper<Waker>;

impl Alarm for Waker {
    fn raise(&self) {
        self.wake();
    }

    fn lower(&self) {
        self.clear();
    }
}

impl Session {
    /// A descriptor for poll, epoll and the like: readable when something may have changed for this
    /// session, be it a message, room in a queue, a name, or its end. It is readable at first, stays
    /// so until [`clear_poll_fd`](Session::clear_poll_fd) is called, and becomes readable about once
    /// a second although nothing has changed, for the look that every wait of a session takes. Only
    /// poll it: reading, writing and closing are the session's. Errors: `TooMany`, `Closed`.
    ///
    /// The first call starts a thread. Until then a session that is not asked has neither.
    ///
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
        if inner.poll.get().is_none() {
            inner.check_open()?;
        }
        if inner.poll.get().is_none() {
            let made = Waker::new().and_then(|w| Sleeper::start(w, inner.parking.clone())).map_err(|e| {
                let what = format!("make a descriptor to poll: {e}");
                Error::new(Code::TooMany, "raise the limits of open files and threads", what)
            })?;
            if let Err(second) = inner.poll.set(made) {
                second.end(); // another thread was faster
            }
            if inner.is_closed() {
                inner.end_poll(); // meanwhile, by one who saw no descriptor to end
            }
        }
        inner.poll.get().map(|p| p.alarm.fd()).ok_or_else(|| closed("the session"))
    }

    /// Makes the descriptor of [`poll_fd`](Session::poll_fd) not readable until something may have
    /// changed after this call. Call it before looking: what came before is there to be taken, what
    /// comes later makes the descriptor readable again. When the session has ended, or no descriptor
    /// was asked for, it does nothing.
    pub fn clear_poll_fd(&self) {
        if let Some(p) = self.inner.opened_here().and_then(|inner| inner.poll.get()) {
            p.arm();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd as Polled, PollFlags, poll};

    use super::super::sleeper::State;
    use super::*;
    use crate::layout::bell_file;
    use crate::shm::{Bells, Region, fence};
    use crate::sys::Mapping;

    fn memory(bytes: u64) -> Region {
        Region::new(Arc::new(Mapping::anonymous(bytes as usize).unwrap()))
    }

    fn bells() -> Bells {
        Bells::new(memory(bell_file::BYTES))
    }

    fn readable(p: &PollFd, wait: bool) -> bool {
        let zero = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [Polled::from_borrowed_fd(p.alarm.fd(), PollFlags::IN)];
        poll(&mut fds, if wait { None } else { Some(&zero) }).unwrap() == 1
    }

    #[test]
    fn no_wake_is_lost_and_none_is_left_to_the_second_look() {
        let (bells, session) = (bells(), memory(4096));
        let (ringer, parking) = (bells.bell(5), Arc::new(bells.parking(5)));
        let p = Sleeper::start(Waker::new().unwrap(), parking.clone()).unwrap();
        assert!(readable(&p, false), "at first: what came before is to be looked at");
        let polls = std::thread::spawn({
            let (p, session) = (p.clone(), session.clone());
            move || {
                for i in 1..=5000u64 {
                    loop {
                        p.arm();
                        let state = *p.state();
                        if session.load(8) == i {
                            break;
                        }
                        assert!(readable(&p, true));
                        if let (true, State::Armed(bell_then)) = (session.load(8) == i, state) {
                            assert_ne!(parking.bell(), bell_then, "round {i}: seen without a ring");
                        }
                    }
                    session.store(16, i);
                }
            }
        });
        for i in 1..=5000u64 {
            session.store(8, i);
            fence();
            ringer.ring();
            while session.load(16) < i && !polls.is_finished() {
                std::thread::yield_now();
            }
        }
        polls.join().unwrap();
        p.end();
        assert!(readable(&p, false));
        p.arm();
        assert!(readable(&p, false), "an ended session stays readable");
    }

    #[test]
    fn nobody_rings_for_one_who_has_not_cleared() {
        let bells = bells();
        let (ringer, parking) = (bells.bell(5), Arc::new(bells.parking(5)));
        let p = Sleeper::start(Waker::new().unwrap(), parking.clone()).unwrap();
        ringer.ring();
        assert_eq!(parking.bell(), 0);
        p.arm();
        ringer.ring();
        assert_eq!(parking.bell(), 1);
        assert!(readable(&p, true) && readable(&p, false), "until it is cleared");
        ringer.ring();
        assert_eq!(parking.bell(), 1);
        p.arm();
        assert!(!readable(&p, false));
        p.end();
        parking.wake();
        assert!(readable(&p, false));
    }
}
