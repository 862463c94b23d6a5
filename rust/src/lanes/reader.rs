//! Receiving: cursors over the lanes of a topic, claims in a group.

use std::collections::HashMap;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::calls::{Claimed, Provides};
use super::closer::Closer;
use super::counted::Counted;
use super::cursor::{Cursor, Gone, Waiting};
use super::joined::Membership;
use super::message::{Claim, Message, Scratch, Taken, Taking, refuted};
use super::topic::{News, TopicState};
use super::view::{GroupView, TO_READ, View};
use crate::crash_point;
use crate::deadline::{at_once, deadline, persist};
use crate::error::{Code, Error, Result, disagree};
use crate::holding::Acknowledge;
use crate::shm::{GroupLane, Scan};
use crate::sys;
use crate::waits::{Look, Place, Spinner};
use crate::wire::ops::{TopicLeave, TopicRead, TopicReadReply};

/// Which of the messages kept a new reader begins with. In a lossless topic a reader, or its group, has
/// what is sent after its making, whatever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Start {
    /// What is sent from now on.
    #[default]
    New,
    /// The newest message kept, then what follows.
    Last,
    /// Everything that is kept.
    All,
}

/// How many messages that cannot be taken are passed over before it is looked again whether there is
/// time: a client that breaks the protocol can send such faster than they are read.
const MOST_PASSED: u32 = 1 << 12;

/// How often it is looked for one message where writers overwrite them faster than they are looked at.
const MOST_PASSES: u32 = 64;

/// Receives a topic's messages. In a topic that overwrites it sees each message that is still kept
/// when it looks; in a lossless one every message from its making on, alone or sharing the work with
/// its group. One thread at a time uses it, any thread may. As an iterator it waits for each message, and
/// ends with the topic, and with the session.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let topic = session.topic("numbers")?;
/// let reader = topic.reader(baton::Start::New)?;
/// for k in [1, 2] {
///     topic.send(session.from_slice(&[1], &[k])?.freeze())?;
/// }
/// topic.end()?;
/// for (message, k) in reader.zip([1, 2]) {
///     assert_eq!(message?.tensor()?.to_vec::<i32>()?, [k]);
/// }
/// # Ok(()) }
/// ```
pub struct Reader {
    pub(crate) topic: Arc<TopicState>,
    pub(super) membership: Arc<Membership>,
    member: u16,
    pub(crate) closer: Closer,
    pub(crate) counted: Counted,
    group: Option<Arc<GroupView>>,
    pub(crate) joined: Option<Box<str>>, // the group's name
    pub(crate) cursors: Vec<Cursor>,
    scan: Scan,
    pub(crate) gone: Gone,
    pub(crate) view: Arc<View>,
    hidden: Vec<u64>, // lanes that were there when it began, and could not be looked at
    pub(crate) spin: Spinner,
    pub(super) scratch: Scratch,
    passed: u32, // messages that the last poll passed over
    /// Whether no writer waits for room.
    pub(super) quiet: bool,
    /// Of a provider of a function: what it may take calls by.
    pub(super) provides: Option<Provides>,
    /// The call of the last message, of a provider.
    pub(super) call: Option<Claimed>,
    /// Whether it has ended as an iterator.
    over: bool,
    /// Why a poll has put lanes aside.
    aside: Option<Error>,
    /// When it last looked for lanes: while there is no news since, the present view serves.
    asked: News,
}

impl Reader {
    /// Joins a topic; without a group as an independent reader, which in a lossless topic is a group
    /// of its own.
    pub(crate) fn new(topic: Arc<TopicState>, start: Start, group: Option<&str>) -> Result<Reader> {
        loop {
            let number = topic.topics.lanes.readers.fetch_add(1, Ordering::Relaxed);
            topic.topics.lanes.joining.begin(number, topic.reference());
            let joined = Reader::join(topic.clone(), number, start, group);
            // A new broker came before the answer was processed, and took the reader back.
            let again = topic.topics.lanes.joining.end(number);
            match joined {
                Ok(_) if again => {}
                Err(e) if again && e.code() == Code::Protocol => {}
                joined => return joined,
            }
        }
    }

    fn join(topic: Arc<TopicState>, number: u64, start: Start, group: Option<&str>) -> Result<Reader> {
        let group = group.or_else(|| (!topic.info.overwrite).then_some(""));
        let (inner, of) = (&topic.inner, topic.reference());
        let request = TopicRead { topic: of, group, reader: number };
        let asked = inner.call_fds::<_, TopicReadReply>("topic.read", &request);
        // Whatever failed, a broker may have done it, and the next one count it.
        let leave = || inner.tell("topic.leave", &TopicLeave::reader(of, request.reader));
        let (ok, fds) = asked.inspect_err(|_| leave())?;
        crash_point::at("reader-joined");
        // From here on its drop leaves the topic, whatever fails.
        let counted = if ok.counted {
            topic.topics.lanes.counting.begin(&inner.memory.files, ok.reader)
        } else {
            Counted::default()
        };
        let mut r = Reader {
            membership: Arc::new(Membership { topic: topic.clone(), number: ok.reader, counted: counted.any() }),
            closer: Closer::new(inner, "the reader"),
            topic: topic.clone(),
            member: ok.member,
            counted,
            group: None,
            joined: group.map(Box::from),
            cursors: Vec::new(),
            scan: Scan::default(),
            gone: Gone::default(),
            view: Arc::default(),
            hidden: Vec::new(),
            spin: Spinner::default(),
            scratch: Scratch::default(),
            passed: 0,
            quiet: false,
            provides: None,
            call: None,
            over: false,
            aside: None,
            asked: News::default(),
        };
        if group.is_some() {
            let Some(number) = ok.group else {
                return Err(disagree(format!("joined a group of {} that has no number", r.topic)));
            };
            r.group = Some(r.topic.joined(number, ok.group_id, fds)?);
        }
        let view = r.topic.renewed(TO_READ, false)?;
        r.follow(view, true)?;
        if r.group.is_none() {
            r.rewind(start);
        }
        Ok(r)
    }

    /// In the child of a fork joins anew, in the session of the child: in a topic that overwrites where
    /// the parent's reader was at the fork, else as one more member of its group, or as a reader of its
    /// own of what is sent from now on.
    #[inline]
    pub(crate) fn join_here(&mut self) -> Result<()> {
        if self.topic.inner.is_foreign() { self.join_anew() } else { Ok(()) }
    }

    #[cold]
    fn join_anew(&mut self) -> Result<()> {
        let mut r = Reader::new(self.topic.here()?.clone(), Start::New, self.joined.as_deref())?;
        if r.group.is_none() {
            let view = r.view.clone();
            r.cursors = std::mem::take(&mut self.cursors);
            r.follow(view, false)?;
        }
        r.closer = self.closer.clone();
        *self = r;
        Ok(())
    }

    /// Applies a new view: cursors of lanes that are still there stay, new lanes begin at their
    /// first message, those of the first view at the next to come.
    fn follow(&mut self, view: Arc<View>, first: bool) -> Result<()> {
        if first {
            self.hidden.clone_from(&view.hidden);
        }
        if let Some(g) = self.group.as_deref().filter(|g| !self.topic.lists(g)) {
            let gone = disagree(format!("the group {} of a reader left {}", g.id, self.topic));
            return Err(self.topic.inner.refused(gone));
        }
        let of_lane = |k: Cursor| (k.lane.info.incarnation, k);
        let mut before: HashMap<_, _> = std::mem::take(&mut self.cursors).into_iter().map(of_lane).collect();
        for lane in &view.lanes {
            let mut k = match before.remove(&lane.info.incarnation) {
                Some(k) => k,
                None => {
                    let next = if first { lane.lane.head() + 1 } else { 1 };
                    let lane = lane.clone();
                    Cursor { next, lane, lost: 0, group: None, over: false, aside: false, wait: Waiting::default() }
                }
            };
            // Where such a lane was when the reader began is not known.
            if let Some(at) = self.hidden.iter().position(|i| !first && *i == lane.info.incarnation) {
                self.hidden.swap_remove(at);
                k.next = k.oldest();
            }
            k.lane = lane.clone();
            if let Some(g) = &self.group {
                k.group = Some(GroupLane::new(&g.file, lane.info.lane, self.topic.info.slots)?);
                k.there(); // else the claims are of another lane
            }
            self.cursors.push(k);
        }
        self.scan = Scan::new(self.topic.waiting.active().clone(), view.lanes.iter().map(|l| l.info.lane));
        match self.group {
            Some(_) => self.gone.keep(before.values()),
            None => self.gone.follow(view.gone, before.values(), first),
        }
        self.view = view;
        Ok(())
    }

    /// Moves the cursors of a new reader back to where it wants to start.
    fn rewind(&mut self, start: Start) {
        if start != Start::New {
            self.topic.rewound.store(true, Ordering::Relaxed); // a hint of what to attach to ahead
        }
        match start {
            Start::New => {}
            Start::All => self.cursors.iter_mut().for_each(|k| k.next = k.oldest()),
            Start::Last => {
                let newest = self.cursors.iter_mut().filter_map(|k| {
                    let lane = &k.lane.lane;
                    let head = lane.head();
                    let stamp = lane.stamp(head);
                    (head > 0 && lane.has(head)).then_some((stamp, k))
                });
                if let Some((_, k)) = newest.max_by_key(|(stamp, _)| *stamp) {
                    k.next = k.lane.lane.head();
                }
            }
        }
    }

    /// The next message, waiting for it: without a timeout until it comes, not at all with zero. Errors:
    /// `Timeout`; `Closed` when the topic was closed and everything was received.
    pub fn recv(&mut self, timeout: impl Into<Option<Duration>>) -> Result<Message> {
        let until = deadline(timeout);
        self.receive(until, Code::Timeout, "no message")
    }

    /// The next message if one is there. Errors as of [`recv`](Reader::recv).
    pub fn try_recv(&mut self) -> Result<Option<Message>> {
        at_once(|| self.poll())
    }

    pub(crate) fn receive(&mut self, until: Option<Instant>, code: Code, what: &str) -> Result<Message> {
        let got = self.await_next(until, code, what);
        if got.is_err() {
            self.pass_on();
        }
        got
    }

    /// Has another member of the group take what is there: this one was perhaps rung for it, and has not taken
    /// it.
    #[cold]
    pub(super) fn pass_on(&self) {
        if let Some(g) = &self.group
            && !self.topic.inner.is_foreign()
            && self.cursors.iter().any(Cursor::pending)
        {
            self.topic.waiting.pass_on(g.number);
        }
    }

    fn await_next(&mut self, until: Option<Instant>, code: Code, what: &str) -> Result<Message> {
        let mut waited = false;
        loop {
            let mut again = false;
            let found = persist(until, Error::is_away, || {
                if std::mem::replace(&mut again, true) {
                    self.topic.inner.check_interrupted()?;
                }
                self.poll()
            });
            if let Some(m) = found.map_err(|e| self.topic.deadline_error(e, code, what))? {
                return Ok(m);
            }
            // A sender that breaks the protocol can have much that is passed over, and have a lane look as if it had
            // something: the wait ends at its deadline all the same.
            let passing = self.passed == MOST_PASSED;
            if (passing || waited) && until.is_some_and(|u| u <= Instant::now()) {
                return Err(self.topic.timed_out(code, what));
            }
            if passing {
                self.topic.inner.check_interrupted()?;
                continue;
            }
            waited = true;
            if !self.wait_beside(until, |_| false)? {
                return Err(self.topic.timed_out(code, what));
            }
        }
    }

    /// Whether a poll may find something. It is cheap, asks nothing, and changes nothing.
    #[inline]
    pub(crate) fn may_be_ready(&self) -> bool {
        let topic = &self.topic;
        self.scan.is_ready(|k| self.cursors[k].pending())
            || self.scan.is_due(sys::monotonic)
            || !self.view.has_lanes_of(topic.version()) && self.asked != topic.news()
            || topic.is_closed()
            || topic.inner.is_closed()
            || self.closer.is_closed()
    }

    /// Whether a poll would take a message, or else the error that it ends with. It takes nothing, and claims nothing
    /// in a group. Of a message that cannot be taken, a poll finds that out.
    pub(super) fn is_ready(&mut self) -> Result<bool> {
        self.closer.check()?;
        loop {
            let ended = self.attend()?;
            if self.has_next() {
                return Ok(true);
            }
            if ended {
                return Err(self.topic.ended());
            }
            if !self.topic.is_watched() {
                return Ok(false);
            }
        }
    }

    /// Where its messages ring.
    #[inline]
    pub(super) fn place(&self) -> Place<'_> {
        self.topic.waiting.place(self.group.as_ref().map(|g| g.number))
    }

    /// Waits until there may be something for the reader, or `other` says that there is something else; false at the
    /// deadline.
    #[inline]
    pub(crate) fn wait_beside(&mut self, until: Option<Instant>, mut other: impl FnMut(Look) -> bool) -> Result<bool> {
        let spin = self.spin.until();
        let me = &*self;
        let found =
            me.topic.inner.wait_looking(spin, Some(me.place()), until, |look| me.may_be_ready() || other(look))?;
        if !found {
            self.spin.gave_up();
        }
        Ok(found)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn timed_out(&self, code: Code, what: &str) -> crate::error::Error {
        self.topic.timed_out(code, what)
    }

    /// Takes the message with the smallest stamp among the lanes.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Option<Message>> {
        self.closer.check()?;
        match self.quick() {
            Some(held) => Ok(Some(Message { held })),
            None if self.is_idle() => Ok(None),
            None => self.poll_any(),
        }
    }

    #[inline(never)]
    fn poll_any(&mut self) -> Result<Option<Message>> {
        let found = self.look();
        if self.aside.take().is_some() || found.as_ref().is_err_and(|e| e.code() == Code::Busy) {
            self.cursors.iter_mut().for_each(|k| k.aside = false);
        }
        found
    }

    /// Has the lanes that there are now looked at. Whether the topic is closed, and nothing more is sent there.
    fn attend(&mut self) -> Result<bool> {
        if self.topic.inner.is_closed() {
            self.join_here()?; // where a fork is what closed it
            self.topic.inner.check_open()?;
        }
        let ended = self.topic.is_closed(); // before the look: what was sent earlier is seen
        if !self.view.has_lanes_of(self.topic.version()) {
            self.asked = self.topic.news();
            let view = match self.topic.current(TO_READ) {
                Err(e) if ended && e.code() == Code::NotFound => return Err(self.topic.ended()),
                view => view?,
            };
            if !Arc::ptr_eq(&view, &self.view) {
                self.follow(view, false)?;
            }
        }
        Ok(ended)
    }

    fn look(&mut self) -> Result<Option<Message>> {
        self.passed = 0;
        while self.passed < MOST_PASSED {
            let ended = self.attend()?;
            let Some((at, i, hint)) = self.choose() else {
                if let Some(e) = self.aside.take() {
                    return Err(e); // nothing but what waits for a process that is not back
                }
                if ended {
                    return Err(self.topic.ended());
                }
                if !self.topic.is_watched() {
                    return Ok(None);
                }
                self.passed += 1; // nothing, and it looks once more
                continue;
            };
            // A lane that has come meanwhile may have what has caused this message.
            //
            // SYNC topic-version: after the look at the message.
            if !self.view.has_lanes_of(self.topic.version()) && self.asked != self.topic.news() {
                self.passed += 1;
                continue;
            }
            match self.take_from(at, i, hint) {
                Ok(Some(m)) => return Ok(Some(m)),
                Ok(None) => {}
                Err(e) if e.code() == Code::Busy && self.cursors.len() > 1 => {
                    self.cursors[at].aside = true; // the others go on
                    self.aside = Some(e);
                }
                Err(e) => return Err(e),
            }
            self.passed += 1;
        }
        Ok(None)
    }

    /// Finds the next message: of several lanes' that with the smallest stamp, but none is passed over for
    /// ever. When there are several lanes it looks at all of them once more after finding one, so that a message
    /// which another one caused is never taken before it. Where the one that it has found is gone by then, and it
    /// finds one that is younger, nothing is known of what has caused that: it looks once more. Of many lanes it
    /// passes over those that are silent, and those that were put aside.
    fn choose(&mut self) -> Option<(usize, u64, u64)> {
        let depth = u64::from(self.topic.info.depth);
        if let [one] = &mut self.cursors[..] {
            return one.next(depth).map(|(i, hint)| (0, i, hint));
        }
        let most = u64::from(self.topic.info.slots) * self.cursors.len().saturating_sub(1) as u64;
        self.look_fully_if_due();
        let (scan, cursors) = (&mut self.scan, &mut self.cursors);
        let mut before = 0; // stamp of what the last pass found
        for pass in 0.. {
            let looked = scan.look(|k| cursors[k].pending());
            let each = looked.iter().filter_map(|at| {
                let k = &mut cursors[*at];
                let (i, hint) = k.next(depth)?;
                let rank = k.wait.rank(i, k.lane.lane.stamp(i), most);
                (!k.aside).then_some((rank, *at, i, hint))
            });
            let ((late, stamp), at, i, hint) = each.min_by_key(|(rank, ..)| *rank)?;
            if pass > 0 && (stamp <= before || pass == MOST_PASSES || late.0 > 0) {
                for k in looked {
                    cursors[*k].wait.passed += 1; // of a lane that has nothing it means nothing
                }
                cursors[at].wait = Waiting::default();
                return Some((at, i, hint));
            }
            before = stamp;
        }
        None
    }

    fn look_fully_if_due(&mut self) {
        let (scan, cursors) = (&mut self.scan, &self.cursors);
        if scan.is_due(sys::monotonic) {
            scan.full_look(sys::monotonic(), |k| cursors[k].lane.lane.head(), |k| cursors[k].pending());
        }
    }

    /// Whether `choose` would find a message. Of the order in which they are taken it changes nothing.
    fn has_next(&mut self) -> bool {
        let depth = u64::from(self.topic.info.depth);
        self.look_fully_if_due();
        let (scan, cursors) = (&mut self.scan, &mut self.cursors);
        let looked = scan.look(|k| cursors[k].pending());
        looked.iter().any(|at| cursors[*at].next(depth).is_some())
    }

    /// Takes message i and, in a group, claims it. `None`: another member was faster, or it cannot be taken:
    /// look again.
    fn take_from(&mut self, at: usize, i: u64, hint: u64) -> Result<Option<Message>> {
        if self.provides.is_some() && self.topic.inner.searches_broker() && self.leaves_call(at, i) {
            return Err(Error::new(Code::Busy, "start the broker again", "a call waits for a broker"));
        }
        let Reader { topic, membership, member, counted, cursors, gone, scratch, quiet, provides, call, .. } = self;
        let (inner, k) = (&topic.inner, &mut cursors[at]);
        let (lane, lost) = (&k.lane, k.lost + gone.lost());
        let claim = || match &k.group {
            None => Some(Claim { lost, acknowledge: None }),
            Some(group) => {
                crash_point::at("claim-before");
                let acknowledged = topic.info.redeliver;
                let right = inner.claiming();
                if right.is_none() || provides.as_ref().is_some_and(|p| !p.is_current()) {
                    return None;
                }
                let begun = group.take_noting(i, hint, *member, acknowledged)?;
                drop(right);
                if provides.is_some() {
                    *call = Some(Claimed::new(topic, group, i, *member, lane, begun));
                    return Some(Claim { lost, acknowledge: None });
                }
                let acknowledge = acknowledged.then(|| {
                    let (group, lane) = (group.clone(), lane.clone());
                    Box::new(Acknowledge::new(group, i, *member, lane, membership.clone()))
                });
                if acknowledge.is_none() && !*quiet {
                    lane.ring();
                }
                Some(Claim { lost, acknowledge })
            }
        };
        match Taking(inner).take(lane, i, scratch, claim) {
            Taken::Message(held) => {
                k.next = i + 1;
                k.lost = 0;
                gone.reported();
                let message = Message { held };
                counted.took(&inner.memory.files, lost);
                self.spin.happened(message.stamp());
                Ok(Some(message))
            }
            Taken::Claimed => Ok(None),
            // It stays, for another attempt or another member. That this process does not reach the
            // device is said once: it would be so each time.
            Taken::Malformed(e) if !refuted(&e) => {
                if k.group.is_none() && e.about_device() {
                    k.skip(i, hint, *member);
                }
                Err(e)
            }
            Taken::Gone | Taken::Malformed(_) => {
                k.skip(i, hint, *member);
                Ok(None)
            }
        }
    }

    /// Messages that went by this reader unseen and that no later one has reported.
    pub fn lost(&self) -> u64 {
        self.cursors.iter().fold(self.gone.lost(), |n, k| n.saturating_add(k.lost))
    }
}

impl Iterator for Reader {
    type Item = Result<Message>;

    /// Waits for the next message; `None` when the topic was closed and everything was received. The end of the
    /// session, or of the reader by its [`Closer`], is the error `Closed` or `SessionLost`, and `None` from then on. Of
    /// any other error the loop may go on.
    fn next(&mut self) -> Option<Result<Message>> {
        if self.over {
            return None;
        }
        match self.recv(None) {
            Err(e) => {
                self.over = matches!(e.code(), Code::Closed | Code::SessionLost);
                (!e.is_end()).then_some(Err(e))
            }
            m => Some(m),
        }
    }
}

impl FusedIterator for Reader {}

impl Reader {
    /// What closes it from another thread.
    pub fn closer(&self) -> Closer {
        self.closer.clone()
    }
}
