//! What a session has of one topic, queue or name, and the topics that this process has open.
//!
//! A topic is left when its last user here drops it, while another thread may be opening it again.
//! Requests of a connection are carried out in order, so leaving sends its requests before it takes
//! the entry from the table, and opening begins anew when anything was left meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use serde::Serialize;

use super::Lanes;
use super::late::Late;
use super::leave::{leave_lane, unopen};
use super::own::{LeftLane, Writer};
use super::view::{GroupView, View};
use crate::error::{Code, Error, Result, closed, disagree, ended};
use crate::holding::{LaneView, Opening};
use crate::layout::{TOPIC_DELETED, TOPIC_STALE, broker_file, limits, slot, state, topic_record};
use crate::memory::{Expected, SessionFiles};
use crate::message::Ref;
use crate::shm::Fixed;
use crate::sys::PerProcess;
use crate::turns::Turnstile;
use crate::waits::Waiting;
use crate::wire::ops::{Ignored, NameRef, Numbered, TopicInfo, TopicOpen, TopicRef};

/// The word of a topic's record with both ends: of lanes in its low half, of groups in the high one.
const ENDS: u64 = topic_record::LANES_END;
const _: () = assert!(topic_record::GROUPS_END == ENDS + 4);

/// The kind of a topic whose messages are calls, and the name of its one group.
pub(crate) const FUNCTION: &str = "function";

/// The remedy where a call has had no room.
const CALLS_FULL: &str = "wait longer, give calls deadlines, or make those that run for long by a session of their own";

/// One open topic of this process; shared by all that use it.
#[derive(Debug)]
pub(crate) struct TopicState {
    pub(crate) inner: Arc<Opening>,
    /// Those of the opening.
    pub(crate) topics: Arc<Topics>,
    pub(crate) info: TopicInfo,
    pub(crate) at: u64, // of the record in the broker file
    record: Fixed<8>,   // its begin
    pub(crate) view: ArcSwapOption<View>,
    pub(crate) refreshing: Turnstile<()>,
    /// Whether a reader began with messages that were kept.
    pub(crate) rewound: AtomicBool,
    /// Whether what is done is given back, as of a queue.
    drained: AtomicBool,
    /// The threads of this session that wait for its messages.
    pub(crate) waiting: Waiting,
    pub(crate) writer: Turnstile<Writer>,
    /// In the child of a fork: the same topic in the session that took this one's place.
    heir: PerProcess<Arc<TopicState>>,
}

/// The version of a topic, and how many answers of its broker were seen. Overwriting topics may use a stale
/// member list while the broker is unresponsive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct News {
    version: u64,
    heard: u64,
}

impl Drop for TopicState {
    fn drop(&mut self) {
        if self.inner.is_foreign() {
            // The lane is the parent's, and another thread of it may have been sending.
            return std::mem::forget(std::mem::take(&mut self.writer));
        }
        if !self.inner.is_closed() {
            self.waiting.end(); // else the slot may be another's by now
        }
        let lane = self.writer.get_mut().leave(&self.info);
        self.topics.leave_topic(&self.inner, self.reference(), self.info.opening, lane);
    }
}

impl TopicState {
    /// The topic to use in this process: this one, or in the child of a fork the one that it opens at
    /// the first use.
    #[inline]
    pub(crate) fn here(self: &Arc<TopicState>) -> Result<&Arc<TopicState>> {
        if self.inner.is_foreign() { self.opened_anew() } else { Ok(self) }
    }

    #[cold]
    fn opened_anew(&self) -> Result<&Arc<TopicState>> {
        if let Some(t) = self.heir.get() {
            return Ok(t);
        }
        let (inner, i) = (self.inner.here()?, &self.info);
        let private = i.name.is_empty();
        let given = |n: u32| Some(n).filter(|_| !private);
        let open = TopicOpen {
            name: Some(&*i.name).filter(|_| !private),
            token: Some(&*i.token).filter(|_| private),
            kind: match &*i.kind {
                "queue" => "queue",
                FUNCTION => FUNCTION,
                _ => "topic",
            },
            depth: given(i.depth),
            overwrite: Some(i.overwrite).filter(|_| !private && !self.is_queue()),
            redeliver: Some(i.redeliver).filter(|_| !private && i.kind == "queue"),
            create: !private && !self.is_function(),
            ..TopicOpen::default()
        };
        let t = match &*i.kind {
            "name" => Topics::open(inner, "name.open", &NameRef { name: &i.name }),
            _ => Topics::open(inner, "topic.open", &open),
        }?;
        self.heir.get_or(|| t)
    }

    /// Whether each message goes to one taker: it is a queue, or a function, whose messages are calls.
    #[inline]
    pub(crate) fn is_queue(&self) -> bool {
        self.info.kind == "queue" || self.is_function()
    }

    /// Whether its messages are the calls of a function.
    #[inline]
    pub(crate) fn is_function(&self) -> bool {
        self.info.kind == FUNCTION
    }

    /// Whether messages are of no use once every group is done with them.
    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        self.is_queue() || self.drained.load(Ordering::Relaxed)
    }

    /// Has this writer give messages back as one of a queue does: no reader comes late.
    pub(crate) fn drain(&self) {
        self.drained.store(true, Ordering::Relaxed);
    }

    /// Whether any session reads it, as the broker's record says.
    pub(crate) fn is_read(&self) -> bool {
        let word = |w| self.inner.memory.files.broker.load(self.at + topic_record::READERS + 8 * w as u64);
        self.is_there() && (0..limits::BITMAP_WORDS).any(|w| word(w) != 0)
    }

    pub(crate) fn reference(&self) -> TopicRef {
        TopicRef { topic: self.info.topic, id: self.info.id }
    }

    /// The broker's counts of changes: of lanes in the low half, of groups in the high one.
    ///
    /// SYNC topic-version: a sender reads it after the fence of its last publish, before it uses a slot again;
    /// the broker changes it and fences before it looks how far a lane is, from where on a group is promised
    /// all. One of the two sees the other.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.record.load(topic_record::VERSION as usize / 8)
    }

    /// How many numbers the groups have that there are or may be.
    ///
    /// SYNC topic-version: read after a publish and its fence; the broker changes it and fences before a new
    /// member looks. One of the two sees the other.
    #[inline]
    pub(crate) fn groups_end(&self) -> u32 {
        ((self.record.load(ENDS as usize / 8) >> 32) as u32).min(limits::GROUPS)
    }

    /// Whether no lane but one has a number. A message of another lane that has come to this thread's knowledge
    /// was sent when its lane had one already.
    #[inline]
    pub(super) fn has_one_lane(&self) -> bool {
        self.record.load(ENDS as usize / 8) as u32 <= 1
    }

    /// What changes when what a view lacks may have come: while it is the same, asking the broker is of no use.
    pub(crate) fn news(&self) -> News {
        News { version: self.version(), heard: self.inner.thread.heard() }
    }

    /// Whether the record is this topic's still.
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.record.load(topic_record::ID as usize / 8) == self.info.id
    }

    /// Whether the topic may no longer be sent to, from the broker's page.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.record.load(topic_record::STATE as usize / 8) as u32;
        !self.is_there() || state != state::TOPIC_OPEN
    }

    /// Whether a poll loop or a task waits that was not in the wait set yet, and is now: the caller looks once more.
    pub(super) fn is_watched(&self) -> bool {
        self.inner.watchers.are_armed() && self.waiting.watch()
    }

    /// Whether it is open, and its lanes are those of a view.
    #[inline(always)]
    pub(crate) fn is_still(&self, view: &View) -> bool {
        !self.is_closed() && view.has_lanes_of(self.version())
    }

    /// The error of a use of it once it is closed.
    #[cold]
    pub(crate) fn ended(&self) -> Error {
        // One that has no name has a title, so that no detail is empty.
        self.inner.refused(match &*self.info.name {
            "" => ended(&self.to_string(), self),
            name => ended(name, self),
        })
    }

    /// Whether it is a name that is not set, from the broker's page.
    pub(crate) fn is_deleted(&self) -> bool {
        self.inner.memory.files.broker.load32(self.at + topic_record::FLAGS) & TOPIC_DELETED != 0
    }

    /// Whether a newer revision of the name may be set on another host, from the broker's page.
    pub(crate) fn is_stale(&self) -> bool {
        self.inner.memory.files.broker.load32(self.at + topic_record::FLAGS) & TOPIC_STALE != 0
    }

    pub(crate) fn view(&self) -> Option<Arc<View>> {
        self.view.load_full()
    }

    /// The first ref of the newest message of each lane that has sent since it was looked at first, or of all where
    /// what was kept then is read too. Of a queue it is not known which reader takes which message.
    pub(super) fn newest_refs(&self) -> Vec<Ref> {
        let Some(view) = self.view.load_full().filter(|_| !self.is_queue()) else { return Vec::new() };
        let rewound = self.rewound.load(Ordering::Relaxed); // a hint
        let newest = |l: &Arc<LaneView>| {
            let head = l.lane.head();
            l.lane.first_ref(head).filter(|_| head > l.before || rewound)
        };
        view.lanes.iter().filter_map(newest).collect()
    }

    /// Closes the topic for all sessions.
    pub(crate) fn end(&self) -> Result<()> {
        self.inner.call::<_, Ignored>("topic.close", &self.reference()).map(|_| ())
    }

    /// What a part of a wait is that the broker did not answer before the wait's end; other errors stay.
    pub(crate) fn deadline_error(&self, e: Error, code: Code, what: &str) -> Error {
        if e.is_away() { self.timed_out(code, what).unanswered_too(&e) } else { e }
    }

    /// Describes a wait that ended without what it waited for.
    pub(crate) fn timed_out(&self, code: Code, what: &str) -> Error {
        let of_call = format!(
            "no room for another call: an older one of this session, which has {} at most under way, goes on",
            self.info.depth
        );
        let look = self.inner.options.typed("why", &[self.info.kind.as_str(), self.info.name.as_str()]);
        let is_lent = self.info.name.is_empty(); // or private: no command shows it
        let (what, remedy) = match code == Code::Full && self.info.kind == FUNCTION {
            true if is_lent => (of_call.as_str(), CALLS_FULL.to_owned()),
            true => (of_call.as_str(), format!("{CALLS_FULL}; `{look}` shows them")),
            false if is_lent => (what, "wait longer".to_owned()),
            false => (what, format!("wait longer, or look with `{look}`")),
        };
        let e = |more: String| Error::new(code, remedy.clone(), format!("{what} in {self}{more}"));
        if self.inner.broker_away() {
            return e("; the broker is away".to_owned());
        }
        let (writers, readers, last_left) = self.census();
        let mut more = format!(": {writers} writing and {readers} reading sessions attached");
        if !last_left.is_empty() {
            more += &format!(", {last_left} left last");
        }
        if code == Code::Full {
            more += &self.held_up();
        }
        e(more).with("writers", writers).with("readers", readers).with("last_left", last_left.as_str())
    }
}

impl fmt::Display for TopicState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info.name.as_str() {
            "" => write!(f, "a private {}", self.info.kind),
            name => write!(f, "{} {name}", self.info.kind),
        }
    }
}

/// The open topics of one opening of a session.
pub(crate) struct Topics {
    pub(crate) lanes: Arc<Lanes>,
    table: Mutex<Table>,
    changed: Condvar,
    /// What has topics open for later.
    openers: Mutex<Vec<Weak<dyn KeepsOpen>>>,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u64, Weak<TopicState>>,
    left: u64, // counts topics left
}

/// What [`Topics::register`] found.
pub(crate) enum Opened {
    /// A topic that this process had not open.
    New(Arc<TopicState>),
    /// One that it had: the broker counts one opener too many.
    Known(Arc<TopicState>),
    /// Something was left meanwhile, and maybe this: ask the broker again.
    Again,
}

/// What has topics open for later, such as the names that were read last.
pub(super) trait KeepsOpen: Send + Sync {
    /// Leaves the names that are not set any more.
    fn forget_deleted(&self);
}

impl fmt::Debug for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topics").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Topics {
    pub(crate) fn new(lanes: Arc<Lanes>) -> Arc<Topics> {
        Arc::new(Topics { lanes, table: Mutex::default(), changed: Condvar::new(), openers: Mutex::default() })
    }

    /// Those of an opening.
    pub(crate) fn of(inner: &Opening) -> Result<&Arc<Topics>> {
        inner.part().ok_or_else(|| closed("the session"))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The number to give to `register`, read before the broker is asked.
    pub(crate) fn mark(&self) -> u64 {
        self.table().left
    }

    /// Finds or enters a topic that the broker says is open.
    pub(crate) fn register(&self, mark: u64, id: u64, make: impl FnOnce() -> Arc<TopicState>) -> Opened {
        let mut t = self.table();
        match t.by_id.get(&id).map(Weak::upgrade) {
            Some(Some(open)) => return Opened::Known(open),
            Some(None) => {
                // Its last user is just leaving it.
                while t.by_id.get(&id).is_some_and(|w| w.strong_count() == 0) {
                    t = self.changed.wait(t).unwrap_or_else(|p| p.into_inner());
                }
                return Opened::Again;
            }
            None => {}
        }
        if t.left != mark {
            return Opened::Again;
        }
        let made = make();
        t.by_id.insert(id, Arc::downgrade(&made));
        Opened::New(made)
    }

    /// Every open topic. The caller drops them without holding a lock.
    pub(crate) fn all(&self) -> Vec<Arc<TopicState>> {
        self.table().by_id.values().filter_map(Weak::upgrade).collect()
    }

    /// Whether the last user of a topic is just leaving it.
    fn is_leaving(&self) -> bool {
        self.table().by_id.values().any(|t| t.strong_count() == 0)
    }

    fn forget(&self, id: u64) {
        let mut t = self.table();
        t.by_id.remove(&id);
        t.left += 1;
        self.changed.notify_all();
    }
}

impl Topics {
    /// Opens or makes a topic or name at the broker, once for this process.
    pub(crate) fn open<B: Serialize>(inner: &Arc<Opening>, op: &'static str, request: &B) -> Result<Arc<TopicState>> {
        let topics = Topics::of(inner)?;
        let mut surplus = None;
        loop {
            let mark = topics.mark();
            let opening = topics.lanes.next_opening.fetch_add(1, Ordering::Relaxed);
            let info = inner.call::<_, TopicInfo>(op, &Numbered { of: request, opening });
            // Now, so that the topic had an opener meanwhile.
            if let Some(opening) = surplus.take() {
                unopen(inner, opening);
            }
            let info = info.inspect_err(|e| {
                if e.is_uncertain() {
                    unopen(inner, opening); // a broker may have done it, and the next one count it
                }
            })?;
            let fits = info.topic < limits::TOPICS
                && (1..=2 * limits::DEPTH).contains(&info.slots)
                && u64::from(info.stride) >= slot::SIZE
                && (1..info.slots).contains(&info.depth);
            if !fits {
                return Err(disagree(format!("topic {:?} came with impossible sizes", info.name)));
            }
            let opened = topics.register(mark, info.id, || {
                Arc::new(TopicState {
                    inner: inner.clone(),
                    topics: topics.clone(),
                    at: broker_file::topic(info.topic),
                    record: Fixed::new(&inner.memory.files.broker, broker_file::topic(info.topic)),
                    view: ArcSwapOption::empty(),
                    refreshing: Turnstile::default(),
                    rewound: AtomicBool::new(false),
                    drained: AtomicBool::new(false),
                    waiting: Waiting::new(&inner.memory.files.bells, info.topic, inner.memory.files.slot),
                    writer: Turnstile::default(),
                    heir: PerProcess::new(),
                    info,
                })
            });
            match opened {
                Opened::New(t) => return Ok(t),
                Opened::Known(t) => {
                    unopen(inner, opening);
                    return Ok(t);
                }
                Opened::Again => surplus = Some(opening),
            }
        }
    }
}

impl Topics {
    /// Leaves a topic: hands the lane to the broker, which keeps what was sent for readers that have not
    /// seen it. It waits for no answer; where there is no broker, the request goes to the next one.
    pub(crate) fn leave_topic(&self, client: &Opening, topic: TopicRef, opening: u64, lane: Option<LeftLane>) {
        if let Some(lane) = lane {
            leave_lane(&self.lanes, client, topic, lane);
        }
        unopen(client, opening);
        self.forget(topic.id);
    }

    /// Counts down what the lanes of a lost session name: once a broker that has come since counts for it,
    /// or at once where none comes or none that would know the session. Whether nothing is left.
    pub(crate) fn empty_lanes(&self, inner: &Opening) -> bool {
        self.all().iter().for_each(|t| t.end_writing(None));
        let over = inner.is_unknown() || inner.memory.files.is_over();
        let still = self.is_leaving(); // looked at before the lanes that come by it
        inner.end_pending(over) && !still
    }

    /// Lets what writes to lanes end, now that the session is marked closed: no reader would see a later message. A
    /// send that waits for an answer of the broker is not waited for much longer than that takes. What lanes name is
    /// counted down once the broker counts for it.
    pub(crate) fn end_writing(&self, until: Instant) {
        self.all().iter().for_each(|t| t.end_writing(Some(until)));
    }

    /// What has messages to come that nothing waits for.
    pub(crate) fn late(&self) -> &Late {
        &self.lanes.late
    }

    /// Withdraws queue messages that are done, which frees storages.
    pub(crate) fn withdraw_done(&self) {
        self.all().iter().for_each(|t| t.withdraw_done());
    }

    /// Notes what has topics open, as long as that lives.
    pub(super) fn kept_by(&self, opener: Weak<dyn KeepsOpen>) {
        self.openers().push(opener);
    }

    fn openers(&self) -> MutexGuard<'_, Vec<Weak<dyn KeepsOpen>>> {
        self.openers.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Leaves the names that are not set any more.
    fn forget_names(&self) {
        let mut all = self.openers();
        all.retain(|k| k.strong_count() > 0);
        let living: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        living.iter().for_each(|k| k.forget_deleted());
    }

    /// Takes back what the broker has given up of lanes that were left, and leaves names that are not set any more.
    pub(crate) fn reconcile(&self, files: &SessionFiles) {
        self.lanes.space().reconcile(files);
        self.forget_names();
    }

    /// The group files mapped here.
    pub(crate) fn group_files(&self) -> Vec<Arc<GroupView>> {
        let views = self.all().into_iter().filter_map(|t| t.view.load_full());
        views.flat_map(|v| v.groups.clone()).collect()
    }
}

impl Expected for Topics {
    /// The first ref of the newest message of each lane.
    fn refs(&self) -> Vec<Ref> {
        self.all().iter().flat_map(|t| t.newest_refs()).collect()
    }
}
