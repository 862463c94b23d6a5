//! Whether a wait spins before it sleeps.

use crate::sys;

/// Nanoseconds for which a wait spins at most: what a sleep and a wake cost.
pub(crate) const MOST_SPIN: u64 = 50_000;
/// Waits that sleep at once when spinning has found nothing again and again.
const MOST_REST: u32 = 63;

/// Learns from waits whether spinning would have seen their end. What counts is how long a wait lasted
/// until it was answered, not how far apart answers come: two processes that sleep while each waits for
/// the other answer late because of that, and would else never find out that they need not sleep.
#[derive(Debug, Default)]
pub(crate) struct Spinner {
    began: Option<u64>, // when the wait that is under way began to spin
    rest: u32,          // waits that sleep at once
    futile: u32,        // as many there were after the last one that spun without a result
}

impl Spinner {
    /// Until when the wait that begins is to spin, if it is to.
    pub(crate) fn until(&mut self) -> Option<u64> {
        self.until_from(sys::monotonic)
    }

    fn until_from(&mut self, now: impl FnOnce() -> u64) -> Option<u64> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        let now = now();
        self.began = Some(now);
        Some(now + MOST_SPIN)
    }

    /// Notes when what was waited for happened; without a wait that spun it tells nothing.
    pub(crate) fn happened(&mut self, at: u64) {
        let Some(began) = self.began.take() else { return };
        self.futile = match at.saturating_sub(began) > MOST_SPIN {
            true => (2 * self.futile + 1).min(MOST_REST),
            false => 0,
        };
        self.rest = self.futile;
    }

    /// Notes that what was waited for did not happen.
    pub(crate) fn gave_up(&mut self) {
        self.happened(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits that spin among `n`, each answered after some time.
    fn spins(s: &mut Spinner, n: usize, after: u64) -> usize {
        let spun = (0..n).filter(|_| {
            let until = s.until_from(|| 1000);
            s.happened(1000 + after);
            until.is_some()
        });
        spun.count()
    }

    #[test]
    fn it_spins_where_that_is_soon_answered_and_seldom_elsewhere() {
        let mut s = Spinner::default();
        assert_eq!(spins(&mut s, 100, 20_000), 100);
        assert!(spins(&mut s, 10_000, 1_000_000) < 200);
        spins(&mut s, 64, 20_000);
        assert_eq!(spins(&mut s, 100, 20_000), 100, "it finds out when answers come soon again");
    }

    #[test]
    fn a_wait_in_vain_counts_as_a_long_one() {
        let mut s = Spinner::default();
        assert_eq!(s.until_from(|| 1), Some(1 + MOST_SPIN));
        s.gave_up();
        assert_eq!(s.until_from(|| 2), None);
    }
}
