//! The times of a lane's messages.
//!
//! A clock is read in order: the processor first ends all that it has begun, which costs a sender more than the
//! reading itself. Its counter can be read out of order. That may give a time before something that the program
//! has seen already, the message of another sender among it, which must not seem to be younger. So it is used where
//! nothing depends on that: while the topic has no other lane. Then a message has only its lane's before it.
//!
//! Other lanes that come later have stamps of the clock. So a stamp of the counter is never ahead of the clock: it
//! is a reading of the clock, not long ago, and three quarters of what has passed since, as fast as the clock went of
//! late. A kernel that corrects its clock changes its speed by a tenth at most.

use crate::sys;

/// For how many counts a reading serves: a few µs.
const SPAN: u64 = 1 << 14;
/// How old a reading is when another one is taken, where there is time.
const RENEWED: u64 = SPAN / 4;
/// Counts between the two readings that belong together: more means that the thread did not run meanwhile.
const TOGETHER: u64 = SPAN / 4;
/// Nanoseconds over which the speed is measured.
const MEASURED: std::ops::Range<u64> = 1_000_000..20_000_000;
/// Bits behind the point of a speed.
const POINT: u32 = 20;

/// The clock, and the counter a little later.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    clock: u64,
    count: u64,
}

impl Reading {
    fn take() -> Option<Reading> {
        let before = sys::counter();
        let clock = sys::monotonic();
        let count = sys::counter_behind();
        (count.wrapping_sub(before) < TOGETHER).then_some(Reading { clock, count })
    }
}

/// The times of one lane's messages.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    counts: bool, // whether the counter may be used
    last: u64,    // of the last message
    reading: Reading,
    /// Nanoseconds in a count, three quarters of what they are; 0 while that is not known.
    speed: u64,
    measured: Reading, // since when the speed is measured
}

impl Stamps {
    pub(super) fn new() -> Stamps {
        Stamps { counts: sys::counter_is_clock(), ..Stamps::default() }
    }

    /// The stamp of the message that is published next, not below that of the last. `only`: its lane is the only one.
    #[inline]
    pub(super) fn next(&mut self, only: bool) -> u64 {
        let now = if only { self.counted() } else { None };
        self.last = now.unwrap_or_else(sys::monotonic).max(self.last);
        self.last
    }

    /// The time by the counter.
    #[inline(always)]
    fn counted(&self) -> Option<u64> {
        if self.speed == 0 {
            return None;
        }
        let since = sys::counter().wrapping_sub(self.reading.count);
        (since < SPAN).then(|| self.reading.clock + ((since * self.speed) >> POINT))
    }

    /// Reads the clock for the messages to come, if that was long ago; when there is time for it.
    #[inline]
    pub(super) fn renew(&mut self) {
        if self.counts && sys::counter().wrapping_sub(self.reading.count) >= RENEWED {
            self.read();
        }
    }

    fn read(&mut self) {
        let Some(now) = Reading::take() else { return };
        self.reading = now;
        let passed = now.clock.saturating_sub(self.measured.clock);
        if passed < MEASURED.start {
            return;
        }
        // A longer time may have a sleep of the machine in it.
        if MEASURED.contains(&passed) {
            let counts = now.count.wrapping_sub(self.measured.count);
            self.speed = ((passed << POINT) / counts.max(1)).min(1 << POINT) / 4 * 3;
        }
        self.measured = now;
    }
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_never_ahead_of_the_clock_and_never_go_back() {
        let mut s = Stamps::new();
        let (mut last, mut by_count) = (0, 0);
        let until = sys::monotonic() + 100_000_000;
        while last < until {
            by_count += u32::from(s.counted().is_some());
            let stamp = s.next(true);
            let now = sys::monotonic();
            assert!(stamp >= last && stamp <= now, "{last}, then {stamp} at {now}");
            last = stamp;
            s.renew();
        }
        assert!(by_count > 0 || !s.counts, "the counter was of no use");
    }

    #[test]
    fn a_reading_serves_a_few_microseconds() {
        let mut s = Stamps { counts: true, speed: 1 << POINT, ..Stamps::default() };
        s.reading = Reading { clock: 1, count: sys::counter().wrapping_sub(SPAN) };
        assert_eq!(s.counted(), None);
        let before = sys::monotonic();
        assert!(s.next(true) >= before, "the clock itself");
    }

    #[test]
    fn one_of_several_lanes_has_the_clock() {
        let mut s = Stamps { counts: true, speed: 1 << POINT, ..Stamps::default() };
        s.reading = Reading { clock: 1, count: sys::counter() };
        let before = sys::monotonic();
        assert!(s.next(false) >= before);
    }
}
