//! One writer's ring in one topic: slots of fixed stride, message i in slot i mod slots. The
//! geometry comes from the broker, never from the page.

use super::region::{fence_acquire, fence_release, no_read_ahead};
use super::words::{LINE, Line, Region, Ring};
use crate::crash_point;
use crate::error::{Result, disagree};
use crate::layout::{PAGE, agreed, brief, lane, lane_bytes, order, reference, slot, slot_flag};
use crate::message::{Brief, Description, Order, Ref};

const LINE_WORDS: usize = (LINE / 8) as usize;

/// The bit of the word with a message's bytes that says that a call is cancelled.
const CANCELLED: u64 = 1 << (8 * (slot::CANCELLED - slot::BODY));

/// Words of refs and body that stand in a slot's first line.
const FIRST_WORDS: usize = ((LINE - slot::SIZE) / 8) as usize;

/// Words that a reader keeps for a message from the start.
const USUAL_WORDS: usize = 64;

/// More messages than a lane ever has; it leaves room for many lanes in the numbers of a group's area.
pub(crate) const MOST: u64 = (1 << 48) - 2;

/// A lane, in the session's own file or in another's.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    r: Region,
    ring: Ring,
    mask: u64,
    stride: u64,
}

/// A message as it was copied from its slot: unchecked data from its writer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Copied {
    /// It stands in the slot's first line.
    Brief(Brief, u64),
    /// Its refs and its body were copied into words.
    Full(SlotHead),
}

/// What a slot says of a message that is not brief: unchecked data from its writer. Only lengths are checked, against
/// the stride.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SlotHead {
    pub(crate) stamp: u64,
    pub(crate) flags: u32,
    pub(crate) nref: u16,
    pub(crate) tensors: u16,
    pub(crate) bytes: u64,
    pub(crate) body: u32,
}

impl Lane {
    /// Views a lane at an offset of a session file; refused when it does not fit.
    pub(crate) fn new(file: &Region, offset: u64, slots: u32, stride: u32) -> Result<Lane> {
        let n = lane_bytes(slots, stride);
        if !slots.is_power_of_two()
            || u64::from(stride) < slot::SIZE
            || stride & 63 != 0
            || offset & (PAGE - 1) != 0
            || !file.has(offset, n)
        {
            return Err(disagree(format!(
                "lane of {slots} slots of {stride} bytes at {offset} does not fit a file of {}",
                file.len()
            )));
        }
        let (slots, stride) = (u64::from(slots), u64::from(stride));
        let ring = Ring::new(file, offset + lane::SIZE, slots, stride);
        Ok(Lane { r: file.sub(offset, n), ring, mask: slots - 1, stride })
    }

    /// Writes the head of a new lane whose pages are zero. Only its writer.
    pub(crate) fn init(&self, topic_id: u64) {
        self.r.store32(lane::SLOTS, self.mask as u32 + 1);
        self.r.store32(lane::STRIDE, self.stride as u32);
        self.r.store(lane::TOPIC_ID, topic_id);
    }

    pub(crate) fn slots(&self) -> u64 {
        self.mask + 1
    }

    /// Bytes that refs and body of one message may take in a slot.
    pub(crate) fn capacity(&self) -> usize {
        (self.stride - slot::SIZE) as usize
    }

    pub(crate) fn slot_of(&self, i: u64) -> usize {
        (i & self.mask) as usize
    }

    #[inline]
    fn at(&self, i: u64) -> u64 {
        lane::SIZE + (i & self.mask) * self.stride
    }

    /// The number of the last message published, 0 for none. A false one is bounded, so that what is
    /// reckoned from it fits.
    ///
    /// SYNC lane-head: pairs with `publish`; slots up to head were published before.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.r.load(lane::HEAD).min(MOST)
    }

    /// Whether slot i holds message i.
    ///
    /// SYNC slot-seq: a number read here was stored by `publish` after the slot's body.
    #[inline]
    pub(crate) fn has(&self, i: u64) -> bool {
        self.ring.first(i).load(slot::SEQ) == i
    }

    /// The second look of a taker, after its refcounts were raised.
    ///
    /// SYNC slot-seq: sequentially consistent, so that either this sees the slot un-named, or its
    /// owner's second collect sees the taker's count. What was copied before was copied by `read` or `read_brief`,
    /// which end with a fence, or by `stamp`.
    #[inline]
    pub(crate) fn still_has(&self, i: u64) -> bool {
        self.ring.first(i).load_seq_cst(slot::SEQ) == i
    }

    /// The time of message i; of use only if `has` says so afterwards.
    #[inline]
    pub(crate) fn stamp(&self, i: u64) -> u64 {
        self.ring.first(i).load(slot::STAMP)
    }

    /// Starts to fetch the slot of a message that is to be written and is not brief; not its first line, where a
    /// reader may be waiting for it.
    #[inline]
    pub(crate) fn prepare(&self, i: u64) {
        self.r.prefetch_write(self.at(i) + LINE);
    }

    /// Starts to fetch the slot's first line from a reader that looks at it. The message is written
    /// before the fetch is over: else the reader would have the line again.
    #[inline]
    pub(crate) fn fetch_first(&self, i: u64) {
        self.r.prefetch_write(self.at(i));
    }

    /// What message i names first, where slot i holds it and it names anything. It is a hint of what taking the
    /// message will need: nothing here was checked.
    pub(crate) fn first_ref(&self, i: u64) -> Option<Ref> {
        let first = self.ring.first(i);
        let flags = first.peek(slot::FLAGS);
        if i == 0 || first.load(slot::SEQ) != i {
            return None;
        }
        if Brief::is(flags) {
            let (serial, generation) = (first.peek(brief::SERIAL), first.peek(brief::GENERATION));
            return Some(Ref { serial, generation, index: (flags >> 32) as u32 });
        }
        const AT: u64 = slot::SIZE;
        ((flags >> 32) as u16 != 0).then(|| Ref {
            serial: first.peek(AT + reference::SERIAL),
            generation: first.peek(AT + reference::GENERATION),
            index: first.peek(AT + reference::INDEX) as u32,
        })
    }

    /// Copies message i: one that is not brief into words, refs, then body. What stands behind them is of earlier
    /// messages: the words only become more. `expect` is told, before the slot's next lines are read, the index of the
    /// storage that the message names first, if it names one: a hint of what to prefetch. `None` when the
    /// slot does not hold i or what it says is impossible. The copy is worth something only if `still_has`
    /// says so after the references were counted.
    #[inline(always)]
    pub(crate) fn read(&self, i: u64, words: &mut Vec<u64>, expect: impl Fn(u32)) -> Option<Copied> {
        let first = self.ring.first(i);
        if i == 0 || first.load(slot::SEQ) != i {
            return None;
        }
        no_read_ahead();
        let (counts, stamp) = (first.peek(slot::FLAGS), first.peek(slot::STAMP));
        if Brief::is(counts) {
            return copied_brief(first, counts, expect).map(|b| Copied::Brief(b, stamp));
        }
        expect(first.peek(slot::SIZE + reference::INDEX) as u32);
        let h = SlotHead {
            stamp,
            flags: counts as u32,
            nref: (counts >> 32) as u16,
            tensors: (counts >> 48) as u16,
            bytes: first.peek(slot::BYTES),
            body: first.peek(slot::BODY) as u32,
        };
        let n = 8 * h.body_at() as u64 + u64::from(h.body);
        if n > self.stride - slot::SIZE {
            return None;
        }
        let n = n.div_ceil(8) as usize;
        if n.next_multiple_of(LINE_WORDS) + FIRST_WORDS > words.len() {
            words.resize((n + LINE_WORDS).next_multiple_of(USUAL_WORDS), 0);
        }
        for (k, w) in words[..FIRST_WORDS].iter_mut().enumerate() {
            *w = first.peek(slot::SIZE + 8 * k as u64);
        }
        // By whole lines: what stands behind the message in its last one does no harm.
        let rest = words[FIRST_WORDS..].as_chunks_mut::<LINE_WORDS>().0;
        for (k, to) in rest[..n.saturating_sub(FIRST_WORDS).div_ceil(LINE_WORDS)].iter_mut().enumerate() {
            let line = self.r.line(self.at(i) + LINE * (k as u64 + 1));
            for (j, w) in to.iter_mut().enumerate() {
                *w = line.peek(8 * j as u64);
            }
        }
        // SYNC slot-body: the copy above is complete before seq is looked at again.
        fence_acquire();
        Some(Copied::Full(h))
    }

    /// As `read`, of a brief message alone; `None` too where it is another.
    #[inline(always)]
    pub(crate) fn read_brief(&self, i: u64, expect: impl Fn(u32)) -> Option<(Brief, u64)> {
        let first = self.ring.first(i);
        if i == 0 || first.load(slot::SEQ) != i {
            return None;
        }
        no_read_ahead();
        let (counts, stamp) = (first.peek(slot::FLAGS), first.peek(slot::STAMP));
        Brief::is(counts).then(|| copied_brief(first, counts, expect))?.map(|b| (b, stamp))
    }

    /// Fills the slot of message i, which must be un-named, with a brief one. Only its writer.
    #[inline(always)]
    pub(crate) fn write_brief(&self, i: u64, brief: &Brief, stamp: u64) {
        // SYNC slot-body: as in `write_rest`.
        fence_release();
        let line = self.ring.first(i);
        line.put(slot::STAMP, stamp);
        brief.words().iter().zip((slot::FLAGS..).step_by(8)).for_each(|(w, at)| line.put(at, *w));
    }

    /// Fills the slot of message i, which must be un-named; `data` is refs and body in words, at
    /// most `capacity` bytes. Only its writer.
    #[cfg(test)]
    pub(crate) fn write(&self, i: u64, h: &SlotHead, data: &[u64]) {
        self.write_rest(i, data);
        self.write_first(i, h, data);
    }

    /// As `write`, in two steps, for a head that is not known before: first all but the slot's first
    /// line, then that.
    pub(crate) fn write_rest(&self, i: u64, data: &[u64]) {
        // SYNC slot-body: seq was stored 0 before anything below is; a reader that copies a mixture
        // will find seq changed.
        fence_release();
        let mut at = self.at(i);
        for words in data.get(FIRST_WORDS..).unwrap_or_default().chunks(LINE_WORDS) {
            at += LINE;
            let line = self.r.line(at);
            words.iter().zip((0..).step_by(8)).for_each(|(w, at)| line.put(at, *w));
            self.r.hand_over(at);
        }
    }

    /// The second step of `write`. Readers look at the first line all the time: what is written there
    /// early is fetched away, and has to be fetched back for the number.
    pub(crate) fn write_first(&self, i: u64, h: &SlotHead, data: &[u64]) {
        let line = self.ring.first(i);
        data.iter().take(FIRST_WORDS).zip((slot::SIZE..).step_by(8)).for_each(|(w, at)| line.put(at, *w));
        line.put(slot::STAMP, h.stamp);
        line.put(slot::FLAGS, u64::from(h.flags) | u64::from(h.nref) << 32 | u64::from(h.tensors) << 48);
        line.put(slot::BYTES, h.bytes);
        line.put(slot::BODY, u64::from(h.body));
    }

    /// Says how many bytes the tensors of all messages have, those of the one that is published next too. Only its
    /// writer.
    #[inline(always)]
    pub(crate) fn set_total(&self, bytes: u64) {
        self.r.store(lane::TOTAL, bytes);
    }

    /// Makes message i, the one after head, visible. Only its writer.
    ///
    /// SYNC slot-seq: the store releases the body and the refcounts of its refs.
    /// SYNC lane-head: the store releases the slot.
    pub(crate) fn publish(&self, i: u64) {
        self.ring.first(i).store(slot::SEQ, i);
        crash_point::at("publish-seq");
        self.r.store(lane::HEAD, i);
    }

    /// Says that the call which message i is, is wanted no more; false where the slot has it no longer. Only its
    /// writer.
    ///
    /// SYNC cancelled: stored before the member that has the call is rung.
    pub(crate) fn cancel(&self, i: u64) -> bool {
        let line = self.ring.first(i);
        let has = line.load(slot::SEQ) == i;
        if has {
            line.store(slot::BODY, line.peek(slot::BODY) | CANCELLED);
        }
        has
    }

    /// Whether the call which message i is, is wanted no more: its caller says so, or the slot has it no longer.
    ///
    /// SYNC cancelled: pairs with `cancel`.
    #[inline]
    pub(crate) fn is_cancelled(&self, i: u64) -> bool {
        let line = self.ring.first(i);
        line.load(slot::BODY) & CANCELLED != 0 || line.load(slot::SEQ) != i
    }

    /// Empties the slot of message i; its refs are counted down afterwards, never before. Only its
    /// writer.
    ///
    /// SYNC slot-seq: pairs with a taker's second look.
    pub(crate) fn unname(&self, i: u64) {
        self.ring.first(i).store(slot::SEQ, 0);
    }
}

/// Copies a brief message from its slot's first line, of which `counts` was loaded.
#[inline(always)]
fn copied_brief(first: Line<'_>, counts: u64, expect: impl Fn(u32)) -> Option<Brief> {
    expect((counts >> 32) as u32);
    let word = |k: u64| first.peek(slot::FLAGS + 8 * k);
    let brief = Brief::of_words([counts, word(1), word(2), word(3), word(4), word(5)]);
    // SYNC slot-body: the copy above is complete before seq is looked at again.
    fence_acquire();
    brief
}

const _: () = {
    // `read` and `write` move stamp, flags with counts, bytes and body as four words.
    assert!(slot::FLAGS == slot::STAMP + 8 && slot::BYTES == slot::FLAGS + 8 && slot::BODY == slot::BYTES + 8);
    assert!(slot::NREF == slot::FLAGS + 4 && slot::TENSORS == slot::FLAGS + 6);
};

impl SlotHead {
    /// The refs at the front of a copied message.
    pub(crate) fn refs<'a>(&self, words: &'a [u64]) -> impl Iterator<Item = Ref> + 'a {
        words.as_chunks().0.iter().take(usize::from(self.nref)).map(|w| Ref::of_words(*w))
    }

    /// The ref of a copied message that names one storage and has nothing that is looked for elsewhere.
    #[inline]
    pub(crate) fn only_ref(&self, words: &[u64]) -> Option<Ref> {
        let plain = self.nref == 1 && self.flags & (slot_flag::SPILLED | slot_flag::ORDERED) == 0;
        words.first_chunk().filter(|_| plain).map(|w| Ref::of_words(*w))
    }

    /// The order behind the refs of a copied message, where it has one.
    pub(crate) fn order_of(&self, words: &[u64]) -> Option<[u64; Order::WORDS]> {
        if self.flags & slot_flag::ORDERED == 0 {
            return None;
        }
        let at = usize::from(self.nref) * (reference::SIZE / 8) as usize;
        words[at..self.body_at()].first_chunk().copied()
    }

    /// What hosts have agreed of the copied revision of a name: its number, and how old it was when it was published here.
    pub(crate) fn agreed_of(&self, words: &[u64]) -> Option<(u64, u64)> {
        if self.flags & slot_flag::AGREED == 0 {
            return None;
        }
        let [revision, age, _] = *words[..self.body_at()].last_chunk::<{ agreed::SIZE as usize / 8 }>()?;
        Some((revision, age))
    }

    /// The body behind the refs of a copied message.
    pub(crate) fn body_of(&self, words: &[u64]) -> Description {
        Description::of_words(&words[self.body_at()..], self.body as usize)
    }

    /// Words before the body.
    fn body_at(&self) -> usize {
        let order = if self.flags & slot_flag::ORDERED != 0 { order::SIZE } else { 0 };
        let agreed = if self.flags & slot_flag::AGREED != 0 { agreed::SIZE } else { 0 };
        (u64::from(self.nref) * reference::SIZE + order + agreed) as usize / 8
    }
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::message::append_bytes;
    use crate::sys::Mapping;

    fn lane(slots: u32, stride: u32) -> Lane {
        let map = Mapping::anonymous(lane_bytes(slots, stride) as usize).unwrap();
        Lane::new(&Region::new(Arc::new(map)), 0, slots, stride).unwrap()
    }

    fn send(l: &Lane, i: u64, body: &[u8]) {
        let mut words = vec![7, i, 3];
        append_bytes(&mut words, body);
        l.write(i, &SlotHead { stamp: i, nref: 1, body: body.len() as u32, ..Default::default() }, &words);
        l.publish(i);
    }

    fn full(c: Option<Copied>) -> Option<SlotHead> {
        match c? {
            Copied::Full(h) => Some(h),
            Copied::Brief(..) => None,
        }
    }

    #[test]
    fn a_brief_message_stands_in_the_first_line() {
        let l = lane(4, 64);
        let r = Ref { serial: 7, generation: 9, index: 300 };
        let b = Brief::of(0, r, crate::dtype::DType::FLOAT32, &[2, 3]).unwrap();
        l.write_brief(1, &b, 5);
        l.publish(1);
        let named = std::cell::Cell::new(0);
        let got = l.read(1, &mut Vec::new(), |index| named.set(index));
        assert!(matches!(got, Some(Copied::Brief(got, 5)) if got == b) && named.get() == 300);
        assert_eq!(l.stamp(1), 5);
    }

    #[test]
    fn a_message_reads_as_it_was_written() {
        let l = lane(4, 128);
        l.init(9);
        send(&l, 1, b"hello tensor");
        let mut words = Vec::new();
        let h = full(l.read(1, &mut words, |_| ())).unwrap();
        assert_eq!(h.refs(&words).collect::<Vec<_>>(), [Ref { serial: 7, generation: 1, index: 3 }]);
        assert_eq!(*h.body_of(&words), *b"hello tensor");
        assert!(l.still_has(1));
        l.unname(1);
        assert!(!l.still_has(1) && l.read(1, &mut words, |_| ()).is_none());
        assert_eq!(l.head(), 1);
    }

    #[test]
    fn a_call_is_cancelled_in_its_slot_alone() {
        let l = lane(4, 128);
        send(&l, 1, b"call");
        assert!(!l.is_cancelled(1) && l.cancel(1) && l.is_cancelled(1));
        let mut words = Vec::new();
        let h = full(l.read(1, &mut words, |_| ())).unwrap();
        assert_eq!((h.body, &*h.body_of(&words)), (4, &b"call"[..]));
        l.unname(1);
        send(&l, 5, b"next");
        assert!(!l.is_cancelled(5) && !l.cancel(1) && l.is_cancelled(1), "the slot is another call's");
    }

    #[test]
    fn an_order_stands_between_refs_and_body() {
        let l = lane(4, 128);
        let order = Order { stream: 2, ready: 9 };
        let mut words = vec![7, 1, 3];
        words.extend([2, 9]);
        append_bytes(&mut words, b"body");
        let h = SlotHead { flags: slot_flag::ORDERED, nref: 1, body: 4, ..Default::default() };
        l.write(1, &h, &words);
        l.publish(1);
        let mut words = Vec::new();
        let h = full(l.read(1, &mut words, |_| ())).unwrap();
        assert_eq!(h.refs(&words).collect::<Vec<_>>(), [Ref { serial: 7, generation: 1, index: 3 }]);
        assert_eq!(Order::of(h.order_of(&words).unwrap()).unwrap(), order);
        assert_eq!(*h.body_of(&words), *b"body");
        // The order counts to what must fit.
        l.write(2, &SlotHead { flags: slot_flag::ORDERED, nref: 3, body: 1, ..Default::default() }, &[]);
        l.publish(2);
        assert!(l.read(2, &mut Vec::new(), |_| ()).is_none());
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let l = lane(4, 128);
        l.write(1, &SlotHead { nref: 4, ..Default::default() }, &[]);
        l.publish(1);
        assert!(l.read(1, &mut Vec::new(), |_| ()).is_none());
        l.write(2, &SlotHead { body: u32::MAX, ..Default::default() }, &[]);
        l.publish(2);
        assert!(l.read(2, &mut Vec::new(), |_| ()).is_none());
    }

    #[test]
    fn geometry_that_does_not_fit_is_refused() {
        let file = Region::new(Arc::new(Mapping::anonymous(8192).unwrap()));
        for (at, slots, stride) in
            [(0, 3, 128), (0, 4, 100), (64, 4, 128), (8192, 4, 128), (0, 1 << 31, 1 << 31), (0, 0, 64)]
        {
            assert!(Lane::new(&file, at, slots, stride).is_err(), "{at} {slots} {stride}");
        }
    }

    #[test]
    fn a_reader_never_sees_a_mixture() {
        let l = lane(2, 512);
        const N: u64 = 20_000;
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 1..=N {
                    l.unname(i);
                    send(&l, i, &[i as u8; 400]);
                }
            });
            let mut words = Vec::new();
            let (mut next, mut whole) = (1, 0u64);
            while next <= N {
                let head = l.head();
                if head < next {
                    std::hint::spin_loop();
                    continue;
                }
                if let Some(h) = full(l.read(head, &mut words, |_| ()))
                    && l.still_has(head)
                {
                    assert_eq!(*h.body_of(&words), [head as u8; 400]);
                    assert_eq!(h.stamp, head);
                    whole += 1;
                }
                next = head + 1;
            }
            assert!(whole > 0);
        });
    }
}
