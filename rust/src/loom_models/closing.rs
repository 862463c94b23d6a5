//! The end of a closed session.

use loom::sync::Arc;
use loom::thread;

use super::{INDEX, check, check_most};
use crate::layout::session_file;
use crate::ledger::{Closed, Openings, Refcounts};
use crate::shm::{Region, fence};

/// A session that holds a storage, is closed, and is over once its refcounts count nothing.
#[derive(Clone)]
struct Closing {
    file: Region,
    openings: Arc<Openings<Arc<Closed>>>,
}

/// How a model of closing is broken.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    No,
    /// A thread that takes a reference looks whether the session was closed before it counts.
    LooksBefore,
    /// The refcounts are looked at, and the session said to be over, while another may open it.
    EndsBeside,
}

impl Closing {
    /// What the refcounts say and, once it is set, that the broker has recycled the storage.
    const GIVEN_BACK: u64 = 0;

    fn refcounts(&self) -> Refcounts {
        Refcounts::new(&self.file)
    }

    fn counts(&self) -> bool {
        self.refcounts().count(INDEX) > 0
    }

    fn assert_kept(&self) {
        assert_eq!(self.file.load(Self::GIVEN_BACK), 0, "held and given back");
    }

    /// Takes one more reference in an opening, and drops it.
    fn take(&self, opening: &Closed, broken: Broken) {
        let keeps = match broken {
            Broken::LooksBefore => !opening.is_set() && self.refcounts().take(INDEX).is_ok(),
            _ => {
                let keeps = opening.take(&self.refcounts(), INDEX).unwrap();
                if !keeps {
                    self.refcounts().drop(INDEX);
                }
                keeps
            }
        };
        if keeps {
            self.assert_kept();
            self.refcounts().drop(INDEX);
        }
    }

    /// What the thread of the session does when it is closed: `bye` with `keep`, and once the refcounts count
    /// nothing the end.
    fn part(&self, broken: Broken) {
        self.openings.left();
        let ends = match broken {
            Broken::EndsBeside => {
                let ends = !self.openings.is_open() && !self.counts();
                if ends {
                    self.openings.over();
                }
                ends
            }
            _ => self.openings.end_if(|| !self.counts()),
        };
        if ends {
            self.file.store(Self::GIVEN_BACK, 1); // the broker has confirmed it
            self.openings.over();
        }
    }

    /// The next connect of the process.
    fn connect_again(&self, broken: Broken) {
        let make = || {
            let opening = Arc::new(Closed::default());
            (opening.clone(), opening)
        };
        if let Some(opening) = self.openings.begin_again(make) {
            self.take(&opening, broken);
        }
    }
}

/// A session is closed and comes to its end while other threads drop what it held last, take one more
/// reference, and open it again.
fn closing(broken: Broken) {
    let word = session_file::REFCOUNTS + 8 * u64::from(INDEX);
    let file = Region::zeroed(session_file::BYTES).make(&[word, Closing::GIVEN_BACK]);
    let first = Arc::new(Closed::default());
    let s = Closing { file, openings: Arc::new(Openings::new(first.clone())) };
    let (takes, opening) = (s.clone(), first.clone());
    s.refcounts().take(INDEX).unwrap();
    let taker = thread::spawn(move || takes.take(&opening, broken));
    let others = s.clone();
    let other = thread::spawn(move || {
        others.assert_kept();
        others.refcounts().drop(INDEX);
        others.connect_again(broken);
    });
    first.set();
    s.openings.leave();
    s.part(broken);
    taker.join().unwrap();
    other.join().unwrap();
    if !s.openings.is_open() {
        s.part(broken);
        assert!(s.openings.is_over(), "nothing is counted, and it goes on");
    }
}

#[test]
fn a_closed_session_ends_when_nothing_is_held() {
    check_most(false, || closing(Broken::No));
}

#[test]
#[should_panic(expected = "held and given back")]
fn broken_a_taker_that_looks_before_it_counts_whether_the_session_was_closed() {
    check(false, || closing(Broken::LooksBefore));
}

#[test]
#[should_panic(expected = "held and given back")]
fn broken_a_session_that_ends_while_it_is_opened_again() {
    check(false, || closing(Broken::EndsBeside));
}

#[test]
#[should_panic(expected = "held and given back")]
fn broken_closing_without_full_fences() {
    check(true, || closing(Broken::No));
}
