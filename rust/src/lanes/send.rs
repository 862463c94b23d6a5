//! Sending: a message into the session's own lane, and what leaves it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::calls::Sent;
use super::leave::leave_lane;
use super::own::{Claims, Kept, OwnLane, Writer};
use super::stamps::Stamps;
use super::topic::{FUNCTION, News, TopicState};
use super::unwanted::{Unwanted, forsake};
use super::view::{ALL, TO_SEND, View};
use crate::crash_point;
use crate::deadline::{at_once, unanswered, within};
use crate::error::{Code, Error, Result, disagree};
use crate::layout::{lane_bytes, slot_flag};
use crate::shm::{GroupLane, Lane, Stands, fence};
use crate::sys;
use crate::turns::Turn;
use crate::value::{Outgoing, Payload, Planned};
use crate::wire::ops::{TopicWrite, TopicWriteReply};

/// Why a send ended without a message.
pub(crate) const LANE_FULL: &str = "no room for another message";

/// A message whose slot is to be used anew.
struct Blocker {
    view: Arc<View>,
    lane: u32,
    i: u64,
    asked: News, // for the view
    unwanted: Unwanted,
}

impl Blocker {
    /// Whether the slot may be used.
    fn done(&self, slots: u32) -> bool {
        self.view.done(self.lane, slots, self.i) || self.unwanted.has(self.i)
    }
}

impl TopicState {
    /// Publishes a value in the session's own lane, waiting for room. The caller drops it then: its count may be the
    /// place's now.
    pub(crate) fn send(&self, value: &mut Payload, flags: u32, until: Option<Instant>) -> Result<()> {
        self.send_ahead(value, flags, self.info.depth, until)
    }

    /// As `send`, also waiting while so many of this sender, which are no more than the depth, are not done with.
    #[inline]
    pub(crate) fn send_ahead(&self, value: &mut Payload, flags: u32, most: u32, until: Option<Instant>) -> Result<()> {
        let sent = within(until, || {
            let mut writer = self.writer()?;
            if !self.info.overwrite {
                writer = self.wait_for_slot(writer, most, until, &|| Ok(()))?;
            }
            self.hand_over(&mut writer, value, flags, until)
        });
        sent.map_err(|e| if until.is_some() { self.deadline_error(e, Code::Full, LANE_FULL) } else { e })
    }

    /// As `send`, of a call of a function: where it stands then. `goes_on` says why it waits no more. A broker that does
    /// not answer is waited for until the deadline: without one the call does not end by a request's own time.
    pub(crate) fn send_call(
        &self,
        value: &mut Payload,
        until: Option<Instant>,
        goes_on: &dyn Fn() -> Result<()>,
    ) -> Result<Sent> {
        let still = || {
            self.inner.check_interrupted()?;
            goes_on()
        };
        let sent = unanswered(until, still, || {
            let writer = self.writer()?;
            let mut writer = self.wait_for_slot(writer, self.info.depth, until, goes_on)?;
            self.hand_over(&mut writer, value, slot_flag::WRITABLE, until)?;
            self.sent(&mut writer)
        });
        sent.map_err(|e| if until.is_some() { self.deadline_error(e, Code::Full, LANE_FULL) } else { e })
    }

    /// As `send_call` where there is room; `None` where there is none.
    pub(crate) fn attempt_call(&self, value: &mut Payload, until: Option<Instant>) -> Result<Option<Sent>> {
        let mut writer = self.writer()?;
        if self.blocker(&mut writer, self.info.depth)?.is_some() {
            return Ok(None);
        }
        self.hand_over(&mut writer, value, slot_flag::WRITABLE, until)?;
        self.sent(&mut writer).map(Some)
    }

    /// Whether there is room for a message now.
    pub(crate) fn has_room(&self) -> Result<bool> {
        let mut writer = self.writer()?;
        Ok(self.blocker(&mut writer, self.info.depth)?.is_none())
    }

    /// Joins as a sender, and maps the files of the groups, so that what is sent later needs no broker.
    pub(crate) fn begin_writing(&self) -> Result<()> {
        let mut writer = self.writer()?;
        self.refreshed(&mut writer.view).map(drop)
    }

    /// The error of a sender that has waited for room until its deadline.
    pub(crate) fn full(&self) -> Error {
        self.timed_out(Code::Full, LANE_FULL)
    }

    /// Says which item of this sender leaves it no room though others behind it were taken; empty: none does, or it is
    /// not known, as where another thread sends just now. A taker is a number here: the broker alone knows its session.
    #[cold]
    pub(super) fn held_up(&self) -> String {
        let none = String::new();
        if self.info.overwrite || self.info.kind == FUNCTION {
            return none;
        }
        let Some(writer) = self.writer.try_lock() else { return none };
        let (Some(own), Some(claims)) = (&writer.own, &writer.claims) else { return none };
        let depth = u64::from(self.info.depth);
        let Some(first) = (own.head + 1).checked_sub(depth).filter(|i| *i > 0) else { return none };
        if claims.lanes.iter().all(|g| g.done(first)) {
            return none;
        }
        // Of the group that has taken least.
        let open = |g: &GroupLane| (first..=own.head).filter(|i| g.open(*i)).count() as u64;
        let waiting = claims.lanes.iter().map(open).max().unwrap_or(0);
        if waiting >= depth {
            return none; // it is full
        }
        let claimed = claims.lanes.iter().any(|g| g.claimed(first));
        let has = if claimed { "a taker has and has not released" } else { "no taker has" };
        format!("; item {first} of this sender holds it up, which {has}: {waiting} of {depth} items wait")
    }

    /// Where the last message stands for the one group.
    #[inline]
    fn sent(&self, writer: &mut Writer) -> Result<Sent> {
        let Writer { own: Some(own), claims, .. } = writer else { return Err(self.ended()) };
        match claims.as_ref().and_then(|c| c.lanes.first()) {
            Some(claims) => {
                let unwanted = own.unwanted.clone();
                Ok(Sent { claims: claims.clone(), lane: own.number, number: own.head, unwanted })
            }
            None => Err(disagree(format!("{self} has no group"))),
        }
    }

    /// Says that a call is wanted no more. The member that has it is to be rung then.
    pub(crate) fn cancel(&self, call: &Sent) -> Result<()> {
        let mut writer = self.inner.turn(&self.writer)?;
        let cancelled = writer.own.as_mut().is_some_and(|own| own.lane.cancel(call.number));
        drop(writer);
        crash_point::at("call-cancelled");
        if cancelled && let Stands::Claimed(member) | Stands::Begun(member) = call.stands() {
            fence(); // SYNC parked: the slot says it before the member's parked word is read
            self.inner.memory.files.bells.bell(u32::from(member)).ring();
        }
        Ok(())
    }

    /// As `send`, without waiting: false where there is no room, or where the broker had to tell and did
    /// not in a moment.
    pub(crate) fn try_send(&self, value: &mut Payload, flags: u32) -> Result<bool> {
        at_once(|| Ok(self.attempt_send(value, flags)?.then_some(()))).map(|sent| sent.is_some())
    }

    /// As `send` if there is room for the value, which it tells.
    pub(crate) fn attempt_send(&self, value: &mut Payload, flags: u32) -> Result<bool> {
        self.attempt_ahead(value, flags, self.info.depth)
    }

    /// As `attempt_send`, where fewer than `most` of this sender's are not done with.
    pub(crate) fn attempt_ahead(&self, value: &mut Payload, flags: u32, most: u32) -> Result<bool> {
        let mut writer = self.writer()?;
        if !self.info.overwrite && self.blocker(&mut writer, most)?.is_some() {
            return Ok(false);
        }
        self.hand_over(&mut writer, value, flags, None).map(|()| true)
    }

    /// This thread's turn at the writing side, with a lane.
    #[inline]
    fn writer(&self) -> Result<Turn<'_, Writer>> {
        self.inner.check_open()?;
        let mut writer = self.inner.turn(&self.writer)?;
        self.inner.check_open()?; // once more: `end_writing` has waited for its turn, or does
        if self.is_closed() && (writer.own.is_some() || !self.may_reopen()) {
            return Err(self.ended());
        }
        if writer.own.is_none() {
            let started = self.start_writing(&mut writer.asked);
            writer.own =
                Some(started.map_err(|e| if e.code() == Code::Closed && self.is_closed() { self.ended() } else { e })?);
        }
        Ok(writer)
    }

    /// Whether the broker is to be asked to open a closed topic again, as it does for the first sender of another run.
    #[cold]
    fn may_reopen(&self) -> bool {
        !self.info.name.is_empty() && self.info.kind != FUNCTION && self.is_there() && !self.is_deleted()
    }

    /// Leaves the lane of a session that is said to be closed, after the send that is under way; none begins
    /// any more.
    pub(crate) fn end_writing(&self, until: Option<Instant>) {
        let Ok(Some(mut writer)) = self.writer.lock_until(until, || false) else { return };
        if let Some(lane) = writer.leave(&self.info) {
            leave_lane(&self.topics.lanes, &self.inner, self.reference(), lane);
        }
    }

    /// Refcount up, slot, seq, head; then readers are rung; then the message that leaves is un-named and
    /// counted down, while the readers are at work already.
    #[inline]
    fn hand_over(&self, writer: &mut Writer, value: &mut Payload, flags: u32, until: Option<Instant>) -> Result<()> {
        let inner = &self.inner;
        let Writer { own: Some(own), turns, out, claims, .. } = writer else { return Err(self.ended()) };
        if let Err(e) = self.publish(own, out, value, flags, until) {
            out.end();
            return Err(e);
        }
        // SYNC waiting: published before this fence; a reader puts itself into a set, fences, and looks again.
        // The fence serves the looks at groups and state as well: a reader that finds the topic closed
        // looks for messages after that, and sees this one unless the state is closed here, too.
        //
        // SYNC undecided: after the publish: it is set here, or a broker that is being stopped, which adopts the
        // lane once this client has acknowledged the notice `stopped`, sees the message.
        fence();
        let undecided = inner.is_undecided();
        let (groups, ended) = (self.groups_end(), self.is_closed());
        crash_point::at("send-ring");
        self.waiting.active().mark(own.number);
        self.waiting.ring(groups, turns);
        out.end();
        inner.handovers.fetch_add(1, Ordering::Relaxed);
        let i = own.head;
        let leaves = i.checked_sub(u64::from(self.info.depth)).filter(|n| *n > 0);
        let free = leaves.and_then(|leaves| own.withdraw(inner, leaves));
        if let Some(claims) = claims
            && own.is_due()
        {
            self.withdraw_done_of(own, &claims.lanes, i - 1);
        }
        own.lane.prepare(i + 1);
        own.stamps.renew();
        inner.memory.pool.tidy(&inner.access, free);
        if let Some(index) = free {
            inner.memory.queued_for_reclaim(index);
        }
        if undecided {
            inner.await_decision()?;
        }
        match (ended, inner.is_lost()) {
            (_, true) => Err(inner.why_closed()), // perhaps no reader can see it any more
            (true, _) => Err(self.ended()),
            _ => Ok(()),
        }
    }

    /// The view of an earlier look, or a new one where that is out of date: each group has to be known before a
    /// slot is used again.
    #[inline]
    fn refreshed<'a>(&self, view: &'a mut Option<Arc<View>>) -> Result<&'a Arc<View>> {
        let fresh = view.take().filter(|v| v.is_of(self.version(), TO_SEND));
        Ok(view.insert(fresh.map_or_else(|| self.current(TO_SEND), Ok)?))
    }

    fn publish(
        &self,
        own: &mut OwnLane,
        out: &mut Outgoing,
        value: &mut Payload,
        flags: u32,
        until: Option<Instant>,
    ) -> Result<()> {
        let inner = &self.inner;
        let brief = value.brief(inner, flags);
        if brief.is_none() {
            out.compose(inner, value, flags)?;
            out.order(inner, value, until)?;
            out.place(inner, own.lane.capacity())?;
        }
        if inner.is_undecided() {
            inner.await_decision()?;
            inner.check_open()?;
        }
        let (i, slot) = (own.head + 1, own.lane.slot_of(own.head + 1));
        own.lane.fetch_first(i);
        match brief {
            Some(Planned { brief, own: is_own, bytes }) => {
                own.total = own.total.wrapping_add(bytes);
                let stamp = own.stamps.next(self.has_one_lane());
                value.count_one(inner, brief.reference.index)?;
                own.kept[slot].set_one(brief.reference.index, is_own);
                own.naming += 1;
                crash_point::at("send-counted");
                own.lane.write_brief(i, &brief, stamp);
            }
            None => {
                own.lane.write_rest(i, out.words());
                out.head.stamp = own.stamps.next(self.has_one_lane());
                own.kept[slot].set(out.count(inner, value)?);
                own.naming += usize::from(own.kept[slot].first.is_some());
                crash_point::at("send-counted");
                own.lane.write_first(i, &out.head, out.words());
                own.total = own.total.wrapping_add(out.head.bytes);
            }
        }
        own.lane.set_total(own.total);
        crash_point::at("send-written");
        own.lane.publish(i);
        own.head = i;
        crash_point::at("send-published");
        Ok(())
    }

    /// How many messages of a queue are not taken yet. Where there are none it is a look of a poll loop as one of a
    /// reader is: the session is in the wait set afterwards.
    pub(crate) fn waiting(&self) -> Result<usize> {
        self.inner.check_open()?;
        loop {
            let n = self.not_taken()?;
            if n > 0 || !self.is_watched() {
                return Ok(n);
            }
        }
    }

    fn not_taken(&self) -> Result<usize> {
        let view = self.current(ALL)?;
        let mut n = 0;
        for l in &view.lanes {
            for g in &view.groups {
                let claims = GroupLane::new(&g.file, l.info.lane, self.info.slots)?;
                if l.current() {
                    n += claims.waiting(&l.lane);
                }
            }
        }
        Ok(n)
    }

    /// Joins as a writer, with a lane of its own.
    fn start_writing(&self, asked: &mut Option<u64>) -> Result<OwnLane> {
        let (inner, info) = (&self.inner, &self.info);
        let bytes = lane_bytes(info.slots, info.stride);
        let space = || self.topics.lanes.space();
        let offset = match asked.take() {
            Some(at) => at,
            None => space().take(&inner.memory.files, bytes)?,
        };
        let joined = Lane::new(&inner.memory.files.session, offset, info.slots, info.stride).and_then(|lane| {
            lane.init(info.id);
            crash_point::at("lane-reserved");
            let request = TopicWrite { topic: self.reference(), offset };
            let ok: TopicWriteReply = inner.call("topic.write", &request)?;
            crash_point::at("lane-joined");
            Ok((lane, ok))
        });
        let (lane, ok) = joined.inspect_err(|e| match e.code() {
            // The broker may have listed it.
            Code::Timeout | Code::BrokerLost => *asked = Some(offset),
            _ => space().give(&inner.memory.files, offset, bytes),
        })?;
        let kept = vec![Kept::default(); info.slots as usize];
        Ok(OwnLane {
            lane,
            number: ok.lane,
            offset,
            head: 0,
            stamps: Stamps::new(),
            total: 0,
            tail: 1,
            kept,
            naming: 0,
            unwanted: Unwanted::new(if self.info.kind == FUNCTION { self.info.slots } else { 0 }),
        })
    }

    /// Gives back messages that a queue is finished with, and those that an operator has purged, also behind one
    /// that a taker still holds; a sender at work does it itself.
    pub(crate) fn withdraw_done(&self) {
        let Some(mut writer) = self.writer.try_lock() else { return };
        let Some(own) = &mut writer.own else { return };
        let view = self.view().filter(|_| self.is_drained());
        let done = |own: &OwnLane, i| view.as_ref().is_some_and(|v| v.done(own.number, self.info.slots, i));
        for i in own.tail..=own.head {
            if own.lane.has(i) && !done(own, i) {
                continue;
            }
            let free = if i == own.tail { own.withdraw(&self.inner, i) } else { own.unname(&self.inner, i) };
            self.give_free(free);
        }
    }

    /// Queues for reclaim what a message that was withdrawn has left free.
    fn give_free(&self, free: Option<u32>) {
        if let Some(index) = free {
            self.inner.memory.pool.dropped(index);
            self.inner.memory.queued_for_reclaim(index);
        }
    }

    /// Un-names, from the oldest on, what every group is done with, up to a message. A queue's messages are of no use
    /// then; a topic keeps its last ones for late readers.
    fn withdraw_done_of(&self, own: &mut OwnLane, claims: &[GroupLane], last: u64) {
        while self.is_drained() && own.tail <= last && claims.iter().all(|g| g.done(own.tail)) {
            let free = own.withdraw(&self.inner, own.tail);
            self.give_free(free);
        }
    }

    /// Looks whether the next message may be sent: the one `most` before it, or the one of depth before it, whose slot
    /// it takes, must be done with by every group. What is done is given back first; of what was given back nothing
    /// need be looked at. What there is still to wait for.
    fn blocker(&self, writer: &mut Writer, most: u32) -> Result<Option<Blocker>> {
        let Writer { own: Some(own), view, claims, .. } = writer else { return Err(self.ended()) };
        let asked = self.news();
        let view = self.refreshed(view)?;
        if !claims.as_ref().is_some_and(|c| Arc::ptr_eq(&c.of, view)) {
            *claims = Some(Claims::new(view, own.number, self.info.slots)?);
        }
        let i = (own.head + 1).saturating_sub(u64::from(most.min(self.info.depth)));
        let claims = claims.as_ref().map_or(&[][..], |c| &c.lanes);
        if i < own.tail {
            return Ok(None);
        }
        self.withdraw_done_of(own, claims, own.head);
        if i < own.tail || claims.iter().all(|g| g.done(i)) {
            return Ok(None);
        }
        if let [of_all] = claims
            && own.unwanted.has(i)
            && forsake(of_all, i)
        {
            return Ok(None);
        }
        Ok(Some(Blocker { view: view.clone(), lane: own.number, i, asked, unwanted: own.unwanted.clone() }))
    }

    /// Waits until `attempt_ahead` may succeed, or `other` says that there is something else; false at the deadline.
    pub(crate) fn wait_ahead(
        &self,
        most: u32,
        until: Option<Instant>,
        mut other: impl FnMut() -> bool,
    ) -> Result<bool> {
        let mut writer = self.writer()?;
        let Some(blocker) = self.blocker(&mut writer, most)? else { return Ok(true) };
        let spin = writer.spin.until();
        drop(writer);
        let found = self.inner.wait(spin, None, until, || self.may_have_room(&blocker) || other())?;
        if let Some(mut writer) = self.writer.try_lock() {
            if found { writer.spin.happened(sys::monotonic()) } else { writer.spin.gave_up() }
        }
        Ok(found)
    }

    /// Whether what was waited for is done with, or is to be looked at anew.
    fn may_have_room(&self, blocker: &Blocker) -> bool {
        blocker.done(self.info.slots)
            || !blocker.view.has_groups_of(self.version()) && self.news() != blocker.asked
            || self.is_closed()
            || self.inner.is_closed()
    }

    /// Waits for room, as long as `goes_on` gives no error. Others have their turn at the writing side meanwhile.
    fn wait_for_slot<'a>(
        &'a self,
        mut writer: Turn<'a, Writer>,
        most: u32,
        until: Option<Instant>,
        goes_on: &dyn Fn() -> Result<()>,
    ) -> Result<Turn<'a, Writer>> {
        while let Some(blocker) = self.blocker(&mut writer, most)? {
            let spin = writer.spin.until();
            drop(writer);
            crash_point::at("room-waiting");
            let found = self.inner.wait(spin, None, until, || self.may_have_room(&blocker) || goes_on().is_err())?;
            writer = self.writer()?;
            if let Err(e) = goes_on() {
                writer.spin.gave_up();
                return Err(e);
            }
            if !found {
                writer.spin.gave_up();
                drop(writer);
                return Err(self.timed_out(Code::Full, LANE_FULL));
            }
            writer.spin.happened(sys::monotonic());
        }
        Ok(writer)
    }
}
