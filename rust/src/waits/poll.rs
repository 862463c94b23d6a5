//! The descriptor that a [`Sleeper`] makes readable.

use super::sleeper::{Alarm, Sleeper};
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
