//! Which lanes of a topic have sent something of late, so that a reader of many lanes need not look at those that
//! are silent.
//!
//! A word has a bit for each of 48 lanes. The bits above them are the turn, which counts how often bits were cleared in
//! the word. A sender sets the bit of its lane after it has published. A reader clears the bits of silent lanes, and
//! raises the turn by the same swap. A reader that sees another turn than before looks at all lanes of the word.

use super::bits::bits;
use super::region::fence;
use super::words::Region;
use crate::layout::bell_file::ACTIVE_LANES;

const TURN: u64 = 1 << ACTIVE_LANES;

fn turn(word: u64) -> u64 {
    word >> ACTIVE_LANES
}

/// The active lanes of a topic.
#[derive(Debug, Clone)]
pub(crate) struct Active(Region);

impl Active {
    pub(super) fn new(words: Region) -> Active {
        Active(words)
    }

    /// Has readers look at a lane. The caller has published and then called [`fence`](super::fence).
    ///
    /// SYNC active: published before the fence, then the look at the bit; pairs with `Scan::look`. One that finds
    /// the bit set read the word before it was cleared, so a reader that sees the word cleared, and fences, sees what
    /// was published.
    #[inline]
    pub(crate) fn mark(&self, lane: u32) {
        let (at, bit) = (8 * u64::from(lane / ACTIVE_LANES), 1 << (lane % ACTIVE_LANES));
        if self.0.load(at) & bit == 0 {
            self.set(at, bit);
        }
    }

    #[cold]
    fn set(&self, at: u64, bit: u64) {
        self.0.or(at, bit);
        fence(); // before the caller's look at the readers asleep
    }

    fn word(&self, w: usize) -> u64 {
        self.0.load(8 * w as u64)
    }

    /// Takes out lanes that are silent, where the word is still what was seen.
    fn clear(&self, w: usize, seen: u64, silent: u64) {
        self.0.cas(8 * w as u64, seen, (seen & !silent).wrapping_add(TURN));
    }
}

/// Which lanes a reader looks at: all of few. Of many those that are active, and those in which it has not yet
/// found that nothing is left. One that it passes over holds nothing whose sender has returned.
///
/// From time to time it looks at all of them. So what a sender published that died before it marked its lane, or
/// whose mark was spoiled, is late and not lost.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    active: Option<Active>,
    /// None: the lanes are few.
    words: Vec<Scanned>,
    /// By lane: of those that `begin` was given.
    index: Vec<u16>,
    /// By index, at the last full look.
    heads: Vec<u64>,
    /// When all are looked at again, in ns of the monotonic clock.
    next: u64,
    chosen: Vec<usize>,
}

/// A word of the active lanes as a scan last saw it.
#[derive(Debug, Clone, Copy, Default)]
struct Scanned {
    seen: u64,
    /// Lanes that there are.
    all: u64,
    /// Lanes to be looked at.
    open: u64,
}

/// So many lanes are looked at one by one: more than that costs as much as the words.
const FEW: usize = 8;
/// A full look costs some tens of ns for each lane: so it is a thousandth of the time.
const FULL_LOOK_EACH: u64 = 40_000;
const FULL_LOOK_LEAST: u64 = 10_000_000;

impl Scan {
    /// A scan of lanes of these numbers, whose indices it will name.
    pub(crate) fn new(active: Active, lanes: impl ExactSizeIterator<Item = u32>) -> Scan {
        let n = lanes.len();
        if n <= FEW {
            return Scan { chosen: (0..n).collect(), ..Scan::default() };
        }
        let mut s = Scan { active: Some(active), heads: vec![0; n], ..Scan::default() };
        for (k, lane) in lanes.enumerate() {
            let (w, lane) = ((lane / ACTIVE_LANES) as usize, lane as usize);
            if s.words.len() <= w {
                s.words.resize(w + 1, Scanned::default());
            }
            if s.index.len() <= lane {
                s.index.resize(lane + 1, 0);
            }
            s.words[w].all |= 1 << (lane as u32 % ACTIVE_LANES);
            s.index[lane] = k as u16;
        }
        s.open_all();
        s
    }

    fn open_all(&mut self) {
        self.words.iter_mut().for_each(|w| w.open = w.all);
    }

    /// Whether it is time for a full look. The clock is monotonic, in ns.
    #[inline]
    pub(crate) fn is_due(&self, clock: impl FnOnce() -> u64) -> bool {
        !self.words.is_empty() && clock() >= self.next
    }

    /// Has all lanes looked at, at a time of the clock, and clears those that are active and have sent nothing since
    /// the last one. `head` tells a lane's head, `pending` whether it has anything for the reader.
    pub(crate) fn full_look(&mut self, now: u64, head: impl Fn(usize) -> u64, pending: impl Fn(usize) -> bool) {
        let Some(active) = &self.active else { return };
        self.next = now + FULL_LOOK_LEAST.max(FULL_LOOK_EACH * self.heads.len() as u64);
        for (w, known) in self.words.iter().enumerate() {
            let word = active.word(w);
            let mut silent = 0;
            for (k, bit) in named(&self.index, w, word & known.all) {
                let h = head(k);
                if h != self.heads[k] {
                    self.heads[k] = h;
                } else if !pending(k) {
                    silent |= bit;
                }
            }
            if silent != 0 {
                active.clear(w, word, silent);
            }
        }
        self.open_all();
    }

    /// The indices of the lanes to be looked at.
    ///
    /// SYNC active: the word, then a fence, then the look at a lane that is passed over from here on; pairs with
    /// `Active::mark`.
    #[inline]
    pub(crate) fn look(&mut self, pending: impl Fn(usize) -> bool) -> &[usize] {
        if !self.words.is_empty() {
            self.choose(pending);
        }
        &self.chosen
    }

    fn choose(&mut self, pending: impl Fn(usize) -> bool) {
        self.chosen.clear();
        let Some(active) = &self.active else { return };
        for (w, known) in self.words.iter_mut().enumerate() {
            let word = active.word(w);
            if turn(word) != turn(known.seen) {
                known.open = known.all;
            }
            known.seen = word;
            known.open |= word & known.all;
            let quiet = known.open & !word;
            if quiet != 0 {
                fence();
                for (_, bit) in named(&self.index, w, quiet).filter(|(k, _)| !pending(*k)) {
                    known.open &= !bit;
                }
            }
            self.chosen.extend(named(&self.index, w, known.open).map(|(k, _)| k));
        }
    }

    /// Whether `look` may name a lane that has something. It changes nothing.
    #[inline]
    pub(crate) fn is_ready(&self, pending: impl Fn(usize) -> bool) -> bool {
        let Some(active) = &self.active else { return self.chosen.iter().any(|k| pending(*k)) };
        self.words.iter().enumerate().any(|(w, known)| {
            let word = active.word(w);
            turn(word) != turn(known.seen)
                || named(&self.index, w, known.open | word & known.all).any(|(k, _)| pending(k))
        })
    }
}

/// The index and the bit of each lane that is set in a word's lanes.
fn named(index: &[u16], w: usize, lanes: u64) -> impl Iterator<Item = (usize, u64)> {
    bits(lanes).map(move |b| (usize::from(index[w * ACTIVE_LANES as usize + b as usize]), 1 << b))
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::bell::Bells;
    use super::*;
    use crate::layout::bell_file;
    use crate::sys::Mapping;

    /// A reader of lanes that are mere counters, with gaps between their numbers.
    struct Place<'a> {
        sent: &'a [AtomicU64],
        taken: RefCell<Vec<u64>>,
        scan: Scan,
    }

    fn active() -> Active {
        let file = Arc::new(Mapping::anonymous(bell_file::BYTES as usize).unwrap());
        Bells::new(Region::new(file)).waits(7).active()
    }

    fn lanes(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    fn send(sent: &[AtomicU64], a: &Active, k: usize) {
        sent[k].fetch_add(1, Ordering::SeqCst);
        fence();
        a.mark(3 * k as u32);
    }

    impl<'a> Place<'a> {
        fn new(sent: &'a [AtomicU64], a: &Active) -> Place<'a> {
            let numbers = (0..sent.len()).map(|k| 3 * k as u32);
            Place { sent, taken: RefCell::new(vec![0; sent.len()]), scan: Scan::new(a.clone(), numbers) }
        }

        fn full_look(&mut self, now: u64) {
            let (sent, taken) = (self.sent, self.taken.borrow());
            let head = |k: usize| sent[k].load(Ordering::SeqCst);
            self.scan.full_look(now, head, |k| taken[k] < head(k));
        }

        fn look(&mut self) -> Vec<usize> {
            let (sent, taken) = (self.sent, self.taken.borrow());
            self.scan.look(|k| taken[k] < sent[k].load(Ordering::SeqCst)).to_vec()
        }

        fn is_ready(&self) -> bool {
            let taken = self.taken.borrow();
            self.scan.is_ready(|k| taken[k] < self.sent[k].load(Ordering::SeqCst))
        }

        /// Takes what there is in the lanes that it looks at.
        fn take(&mut self) -> u64 {
            let mut n = 0;
            for k in self.look() {
                let taken = &mut self.taken.borrow_mut()[k];
                let head = self.sent[k].load(Ordering::SeqCst);
                n += head - *taken;
                *taken = head;
            }
            n
        }
    }

    #[test]
    fn few_lanes_are_all_looked_at() {
        let (a, sent) = (active(), lanes(FEW));
        let mut p = Place::new(&sent, &a);
        assert!(!p.scan.is_due(|| u64::MAX) && !p.is_ready());
        sent[5].store(1, Ordering::SeqCst); // and says nothing
        assert!(p.is_ready());
        assert_eq!(p.look(), (0..FEW).collect::<Vec<_>>());
    }

    #[test]
    fn silent_lanes_are_passed_over() {
        let (a, sent) = (active(), lanes(40));
        let (mut p, mut other) = (Place::new(&sent, &a), Place::new(&sent, &a));
        assert!(p.look().is_empty(), "no lane has sent");
        send(&sent, &a, 3);
        send(&sent, &a, 30);
        assert!(p.is_ready());
        assert_eq!((p.take(), p.look()), (2, vec![3, 30]), "they are active");
        assert!(!p.is_ready());
        assert!(p.scan.is_due(|| 0));
        p.full_look(1);
        assert!(!p.scan.is_due(|| FULL_LOOK_LEAST) && p.scan.is_due(|| FULL_LOOK_LEAST + 1));
        assert_eq!(p.look(), [3, 30], "they may have sent just now");
        send(&sent, &a, 30);
        assert_eq!(p.take(), 1);
        p.full_look(2);
        assert_eq!(p.look(), [30], "one is silent");
        assert!(other.is_ready(), "another one's clear is noticed");
        assert_eq!(other.look(), [3, 30], "it has not taken from the silent one");
        p.full_look(3);
        assert!(p.look().is_empty());
        assert_eq!((other.take(), other.look()), (3, vec![]));
        send(&sent, &a, 3);
        assert_eq!((p.look(), other.look()), (vec![3], vec![3]));
    }

    #[test]
    fn a_full_look_finds_what_was_not_marked() {
        let (a, sent) = (active(), lanes(20));
        let mut p = Place::new(&sent, &a);
        assert!(p.look().is_empty());
        sent[11].store(1, Ordering::SeqCst);
        assert!(p.look().is_empty());
        p.full_look(1);
        assert_eq!(p.look(), [11]);
    }

    /// Senders fall silent and send again while some readers clear what is silent and others never look at all:
    /// each gets everything, without a full look of its own.
    #[test]
    fn no_message_is_passed_over() {
        const SENDERS: usize = 2;
        const MESSAGES: usize = 2000;
        let (a, sent) = (active(), lanes(60));
        std::thread::scope(|s| {
            for first in 0..SENDERS {
                let (a, sent) = (&a, &sent);
                s.spawn(move || {
                    for i in 0..MESSAGES {
                        send(sent, a, (first + SENDERS * (i * i)) % sent.len());
                        std::thread::yield_now(); // it is silent now and then
                    }
                });
            }
            for clears in [true, false, true, false] {
                let (a, sent) = (&a, &sent);
                s.spawn(move || {
                    let (mut p, mut n) = (Place::new(sent, a), 0);
                    while n < (SENDERS * MESSAGES) as u64 {
                        if clears {
                            p.full_look(1);
                        } else {
                            // Often enough something is marked and cleared between two looks.
                            (0..20).for_each(|_| std::thread::yield_now());
                        }
                        n += p.take();
                    }
                });
            }
        });
    }
}
