//! The usual case of a receive: a brief message in the only lane of a topic, where nothing comes in between.
//!
//! It does what [`Reader::look`] does, in one piece, and gives up wherever that would do anything else: then the
//! other looks anew. What it saves is the time in which a message that has come is not yet the program's.

use super::reader::Reader;
use crate::crash_point;
use crate::holding::Shared;
use crate::holding::{KeptBy, One, Received};
use crate::memory::Held;
use crate::message::Brief;

impl Reader {
    /// Whether there is no message, where all is as usual: most looks of a reader that polls. The shorter one is, the
    /// sooner a message is found after it.
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        let ([k], topic) = (&self.cursors[..], &*self.topic) else { return false };
        // The slot first: the topic was open, and the lane its only one, when nothing was there.
        !topic.inner.is_closed() && k.is_idle() && topic.is_still(&self.view) && !topic.inner.watchers.are_armed()
    }

    /// The next message, where all is as usual.
    #[inline(always)]
    pub(crate) fn quick(&mut self) -> Option<Shared> {
        let [k] = &mut self.cursors[..] else { return None };
        let (topic, lane, i) = (&*self.topic, &k.lane, k.next);
        let inner = &topic.inner;
        // First, since in the child of a fork nothing of the parent's session file is mapped, and a lane may be there.
        if inner.is_closed() {
            return None;
        }
        let (brief, stamp) =
            lane.lane.read_brief(i, |index| inner.memory.attached.expect(index, &inner.memory.files.refcounts))?;
        crash_point::at("take-read");
        let Brief { flags, reference, dtype, .. } = brief;
        // SYNC topic-version: after the look at the message.
        let still = topic.is_still(&self.view);
        if !still || k.group.is_some() || k.over || !reference.is_possible() || brief.is_writable() {
            return None;
        }
        let at = inner.hold_known(reference)?;
        crash_point::at("take-counting");
        crash_point::at("take-counted");
        // SYNC slot-seq: the second look, as in `take_one`.
        let range = if lane.still_has(i) { at.range_of(reference) } else { None };
        let Some((offset, bytes)) = range else {
            inner.memory.let_go(reference.index, at.own);
            return None;
        };
        crash_point::at("take-held");
        inner.memory.attached.note_at(reference.index, at, offset, bytes);
        let (its_lane, lost) = (lane.clone(), k.lost + self.gone.lost());
        let (shape, readonly) = (brief.shape(), brief.is_read_only());
        let held = Held { reference, at, offset, bytes };
        let held = Shared::of_one(inner, One { held, dtype, shape, readonly }, None, || {
            KeptBy::Message(Received { lane: its_lane, sequence: i, stamp, lost, flags, body: None })
        });
        (k.next, k.lost) = (i + 1, 0);
        self.gone.reported();
        self.counted.took(&inner.memory.files, lost);
        self.spin.happened(stamp);
        Some(held)
    }
}
