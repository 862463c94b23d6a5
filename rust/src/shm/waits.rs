//! The sessions that sleep until a message comes in a topic: set 0, all rung at each message, and a
//! set for each group, of which one session is rung. The sets say only when a session looks: one that is
//! forgotten looks a second later by itself.

use super::active::Active;
use super::bell::Bells;
use super::bits::bits;
use super::words::Region;
use crate::crash_point;
use crate::layout::{bell_file, limits, wait_area};

/// The wait sets of a topic.
#[derive(Debug)]
pub(crate) struct Waits {
    bells: Bells,
    area: Region,
}

/// What was missing of a session that has put itself into a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Its own bit: it was new in the set, or was claimed since, and is rung for that.
    pub(crate) member: bool,
    /// That of its word.
    pub(crate) word: bool,
}

/// A set of sessions by slot: a bit for each, and one word that says which words have any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitSet<'a> {
    of: &'a Waits,
    number: u32,
}

impl Bells {
    /// The wait sets of a topic, whose index is below [`TOPICS`](crate::layout::limits::TOPICS).
    pub(crate) fn waits(&self, topic: u32) -> Waits {
        Waits::new(self.clone(), self.0.sub(bell_file::waits(topic), wait_area::SIZE))
    }
}

impl Waits {
    /// Views the area of a topic.
    fn new(bells: Bells, area: Region) -> Waits {
        Waits { bells, area }
    }

    /// The lanes of the topic that have sent of late.
    pub(crate) fn active(&self) -> Active {
        Active::new(self.area.sub(wait_area::ACTIVE, wait_area::MEMBERS - wait_area::ACTIVE))
    }

    /// The sessions that are rung at each message.
    pub(crate) fn all(&self) -> WaitSet<'_> {
        self.set(0)
    }

    /// Those members of a group that take what they are woken for. The group's number is below
    /// [`GROUPS`](limits::GROUPS).
    pub(crate) fn group(&self, number: u32) -> WaitSet<'_> {
        self.set(1 + number)
    }

    /// A set by its number.
    pub(crate) fn set(&self, number: u32) -> WaitSet<'_> {
        WaitSet { of: self, number }
    }
}

impl WaitSet<'_> {
    fn words_at(self) -> u64 {
        wait_area::WORDS + 8 * u64::from(self.number)
    }

    fn members_at(self, w: u32) -> u64 {
        bell_file::members(self.number) + 8 * u64::from(w)
    }

    fn words(self) -> u64 {
        self.of.area.load(self.words_at())
    }

    fn members(self, w: u32) -> u64 {
        self.of.area.load(self.members_at(w))
    }

    /// Notes that a session is going to sleep. The caller has read the bell, and fences and looks once more
    /// afterwards. Which bits of it were missing.
    ///
    /// SYNC waiting: the bits, then a fence, then the second look; pairs with `ring` and `ring_one`, after a
    /// publish and a fence. One of the two sees the other. Bits that are set already were not claimed since: a
    /// claim is followed by a ring. The look at the word is sequentially consistent, after the member's bit, as
    /// that of `tidy` at the members is, after the word's: one of these two sees the other as well.
    pub(crate) fn add(self, slot: u32) -> Missing {
        let (w, bit) = (slot / 64, 1 << (slot % 64));
        let member = !self.has(slot);
        if member {
            self.of.area.or(self.members_at(w), bit);
        }
        crash_point::at("wait-member");
        let word = self.of.area.load_seq_cst(self.words_at()) >> w & 1 == 0;
        if word {
            self.of.area.or(self.words_at(), 1 << w);
        }
        Missing { member, word }
    }

    /// Whether a session is in the set: it was not claimed since it came.
    pub(crate) fn has(self, slot: u32) -> bool {
        self.members(slot / 64) >> (slot % 64) & 1 == 1
    }

    /// Notes that a session does not sleep any more. Whether it was in the set.
    pub(crate) fn remove(self, slot: u32) -> bool {
        self.has(slot) && self.claim(slot)
    }

    /// Takes a session out, and tells whether it was in.
    ///
    /// SYNC waiting: of several that claim one alone succeeds, and rings.
    fn claim(self, slot: u32) -> bool {
        let (w, bit) = (slot / 64, 1 << (slot % 64));
        let before = self.of.area.and(self.members_at(w), !bit);
        if before == bit {
            self.tidy(w);
        }
        before & bit != 0
    }

    /// Notes that a word has no members, unless one has come meanwhile. That one is rung: a sender that
    /// looked in between did not see it.
    ///
    /// SYNC waiting: a session that came before the word's bit was cleared is seen by the second look at the
    /// word, one that comes later sets the bit itself.
    fn tidy(self, w: u32) {
        self.of.area.and(self.words_at(), !(1 << w));
        crash_point::at("wait-tidied");
        let members = self.of.area.load_seq_cst(self.members_at(w));
        if members != 0 {
            self.of.area.or(self.words_at(), 1 << w);
            self.wake(w, members);
        }
    }

    /// Rings sessions of a word.
    fn wake(self, w: u32, members: u64) {
        crash_point::at("wait-claimed");
        bits(members).for_each(|b| self.of.bells.wake(w * 64 + b));
    }

    /// Rings every session in the set. The caller has published and then called [`fence`](super::fence).
    #[inline]
    pub(crate) fn ring(self) {
        let words = self.words();
        if words != 0 {
            self.ring_words(words);
        }
    }

    #[cold]
    fn ring_words(self, words: u64) {
        for w in bits(words) {
            let members = self.of.area.and(self.members_at(w), 0);
            self.tidy(w);
            self.wake(w, members);
        }
    }

    /// Rings one session of the set, if there is any: the one whose turn it is behind the last one, which
    /// it notes. The caller has published and then called [`fence`](super::fence).
    #[inline]
    pub(crate) fn ring_one(self, last: &mut u32) {
        let words = self.words();
        if words != 0 {
            self.ring_next(words, last);
        }
    }

    #[cold]
    fn ring_next(self, words: u64, last: &mut u32) {
        const WORDS: u32 = limits::BITMAP_WORDS as u32;
        // From the word of the last one on, and round to its begin.
        let (first, behind) = (*last / 64, u64::MAX.checked_shl(*last % 64 + 1).unwrap_or(0));
        for k in 0..=WORDS {
            let w = (first + k) % WORDS;
            if words >> w & 1 == 0 {
                continue;
            }
            let candidates = self.members(w) & if k == 0 { behind } else { u64::MAX };
            let claimed = bits(candidates).map(|b| w * 64 + b).find(|slot| self.claim(*slot));
            if let Some(slot) = claimed {
                *last = slot;
                return self.wake(w, 1 << (slot % 64));
            }
            if k > 0 && self.members(w) == 0 {
                self.tidy(w);
            }
        }
    }
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
    use std::time::Duration;

    use super::super::bell::Parking;
    use super::super::region::fence;
    use super::*;
    use crate::layout::bell_record;
    use crate::sys::Mapping;

    const MOST: u32 = limits::SESSIONS - 1;

    fn file() -> Region {
        Region::new(Arc::new(Mapping::anonymous(bell_file::BYTES as usize).unwrap()))
    }

    /// The sessions that were rung, as often as they were.
    fn rung(bells: &Bells, slots: &[u32]) -> Vec<u32> {
        let times = |slot: &u32| std::iter::repeat_n(*slot, bells.parking(*slot).bell() as usize);
        slots.iter().flat_map(times).collect()
    }

    #[test]
    fn each_message_wakes_one_of_those_who_wait_in_a_group() {
        let bells = Bells::new(file());
        let waits = bells.waits(7);
        let (set, slots) = (waits.group(limits::GROUPS - 1), [1, 63, 64, MOST]);
        for slot in slots {
            assert!(set.add(slot).member && !set.add(slot).member && set.has(slot));
        }
        let mut last = 63;
        for want in [&[64][..], &[64, MOST], &[1, 64, MOST], &[1, 63, 64, MOST]] {
            set.ring_one(&mut last);
            assert_eq!(rung(&bells, &slots), want);
        }
        set.ring_one(&mut last);
        assert_eq!(rung(&bells, &slots), slots, "no session waits any more");
        assert_eq!(set.words(), 0, "which one word tells");

        set.add(63);
        set.ring_one(&mut last);
        assert_eq!(rung(&bells, &[63]), [63; 2], "the last one again, where it is alone");
        set.add(64);
        set.remove(64);
        set.ring_one(&mut last);
        assert_eq!(rung(&bells, &[64]), [64]);
    }

    #[test]
    fn each_message_wakes_all_who_wait_in_set_nought() {
        let bells = Bells::new(file());
        let waits = bells.waits(limits::TOPICS - 1);
        for slot in [0, 5, 64, MOST] {
            waits.all().add(slot);
        }
        waits.group(0).add(9);
        waits.all().ring();
        waits.all().ring();
        assert_eq!(rung(&bells, &[0, 5, 6, 9, 64, MOST]), [0, 5, 64, MOST]);
        assert_eq!(bells.waits(limits::TOPICS - 2).all().words(), 0, "the areas lie apart");
    }

    /// One that waits for items, of which each is one taker's.
    fn take_all(parking: &Parking, set: WaitSet<'_>, slot: u32, left: &AtomicI64, taken: &AtomicU64, items: u64) {
        let take = || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n > 0).then(|| n - 1)).is_ok();
        while taken.load(Ordering::SeqCst) < items {
            if take() {
                taken.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let e = parking.begin();
            set.add(slot);
            fence();
            if left.load(Ordering::SeqCst) == 0 && taken.load(Ordering::SeqCst) < items {
                let hour = Duration::from_secs(3600);
                set.of.bells.record(slot).futex_wait(bell_record::BELL, e, hour);
            }
            set.remove(slot);
            parking.end();
        }
    }

    /// One of two waiters is woken for each item, and neither may be forgotten: a test that relied on their
    /// looking again would take an hour.
    #[test]
    fn no_item_is_slept_over() {
        const ITEMS: u64 = 4000;
        let bells = Bells::new(file());
        let waits = bells.waits(0);
        let (left, taken) = (AtomicI64::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            for slot in [63, 64] {
                let (bells, waits, left, taken) = (&bells, &waits, &left, &taken);
                s.spawn(move || {
                    take_all(&bells.parking(slot), waits.group(0), slot, left, taken, ITEMS);
                    [63, 64].into_iter().for_each(|slot| bells.wake(slot));
                });
            }
            let mut last = 0;
            for i in 0..ITEMS {
                left.fetch_add(1, Ordering::SeqCst);
                fence();
                waits.group(0).ring_one(&mut last);
                while i % 3 == 0 && left.load(Ordering::SeqCst) > 0 {
                    std::thread::yield_now(); // they fall asleep now and then
                }
            }
        });
        assert_eq!(taken.into_inner(), ITEMS);
    }
}
