//! What a session has of one topic, queue or name: who takes part, and the lane that it writes.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use serde::Serialize;

use super::deadline::{A_MOMENT, deadline};
use super::inner::{Broker, Inner};
use super::leave::Opened;
use super::options::TopicOptions;
use super::pages::{Peer, map_file};
use super::payload::Payload;
use super::reader::{Reader, Start};
use super::send::Writer;
use super::{Session, check_name};
use crate::error::{Code, Error, Result, disagree, ended};
use crate::layout::{TOPIC_DELETED, broker_file, group_bytes, lane_record, limits, slot, state, topic_record};
use crate::shm::{Bell, Lane, Line, Region};
use crate::sys::PerProcess;
use crate::turns::Turnstile;
use crate::wire::ops::{
    GroupInfo, Ignored, LaneInfo, NameRef, Numbered, Peers, TopicGroupFile, TopicInfo, TopicOpen, TopicPeers, TopicRef,
};

/// One open topic of this process; shared by all that use it.
#[derive(Debug)]
pub(crate) struct TopicState {
    pub(crate) inner: Arc<Inner>,
    pub(crate) info: TopicInfo,
    at: u64, // of the record in the broker file
    view: ArcSwapOption<View>,
    refreshing: Turnstile<()>,
    pub(super) writer: Turnstile<Writer>,
    /// In the child of a fork: the same topic in the session that took this one's place.
    heir: PerProcess<Arc<TopicState>>,
}

/// The version of a topic, and how much was heard of its broker: of one that is away nothing is, and then the
/// last answer serves although the version is another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct News {
    version: u64,
    heard: u64,
}

/// What a session has to know of a topic's peers: the lanes where it reads, the readers where it sends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts {
    lanes: bool,
    readers: bool,
}

pub(crate) const TO_READ: Parts = Parts { lanes: true, readers: false };
pub(crate) const TO_SEND: Parts = Parts { lanes: false, readers: true };

/// Who takes part in a topic, as far as this session has asked: each part as of a version of its own. It is
/// never changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    has: Parts,
    /// The version of the lanes.
    lanes_at: u32,
    /// That of the readers and groups.
    readers_at: u32,
    /// Messages of lanes that are no more.
    pub(crate) gone: u64,
    pub(crate) lanes: Vec<Arc<LaneView>>,
    /// Incarnations of lanes whose pages no broker has yet; the version says when it has.
    pub(crate) hidden: Vec<u64>,
    /// Of those who read; rung by the writer.
    pub(crate) bells: Arc<[Bell]>,
    /// Since when readers are missing among them: this process could not map them, so the broker rings.
    far: Option<Instant>,
    pub(crate) groups: Vec<Arc<GroupView>>,
    /// For people.
    writers: u64,
    readers: u64,
    last_left: String,
}

#[derive(Debug)]
pub(crate) struct LaneView {
    pub(crate) inner: Arc<Inner>,
    pub(crate) info: LaneInfo,
    /// Where the broker file says which lane has its number.
    pub(crate) record: u64,
    pub(crate) lane: Lane,
    /// The writer's pages.
    pub(crate) owner: Arc<Peer>,
    /// Of the writer.
    pub(crate) bell: Bell,
}

#[derive(Debug)]
pub(crate) struct GroupView {
    pub(crate) id: u64,
    pub(crate) file: Region,
    pub(crate) fd: OwnedFd,
}

impl Drop for TopicState {
    fn drop(&mut self) {
        if self.inner.is_foreign() {
            // The lane is the parent's, and another thread of it may have been sending.
            return std::mem::forget(std::mem::take(&mut self.writer));
        }
        let lane = self.writer.get_mut().leave(&self.info);
        self.inner.leave_topic(self.reference(), self.info.opening, lane);
    }
}

impl Inner {
    /// Opens or makes a topic or name at the broker, once for this process.
    pub(crate) fn open_topic<B: Serialize>(
        self: &Arc<Inner>,
        op: &'static str,
        request: &B,
    ) -> Result<Arc<TopicState>> {
        let mut surplus = None;
        loop {
            let mark = self.topics.mark();
            let opening = self.next_opening.fetch_add(1, Ordering::Relaxed);
            let info = self.call::<_, TopicInfo>(op, &Numbered { of: request, opening });
            // Now, so that the topic had somebody meanwhile.
            if let Some(opening) = surplus.take() {
                self.unopen(opening);
            }
            let info = info.inspect_err(|e| {
                if e.is_uncertain() {
                    self.unopen(opening); // a broker may have done it, and the next one count it
                }
            })?;
            let fits = info.topic < limits::TOPICS
                && (1..=2 * limits::DEPTH).contains(&info.slots)
                && u64::from(info.stride) >= slot::SIZE
                && (1..info.slots).contains(&info.depth);
            if !fits {
                return Err(disagree(format!("topic {:?} came with impossible sizes", info.name)));
            }
            let opened = self.topics.settle(mark, info.id, || {
                Arc::new(TopicState {
                    inner: self.clone(),
                    at: broker_file::topic(info.topic),
                    view: ArcSwapOption::empty(),
                    refreshing: Turnstile::default(),
                    writer: Turnstile::default(),
                    heir: PerProcess::new(),
                    info,
                })
            });
            match opened {
                Opened::New(t) => return Ok(t),
                Opened::Known(t) => {
                    self.unopen(opening);
                    return Ok(t);
                }
                Opened::Again => surplus = Some(opening),
            }
        }
    }

    /// The group files mapped here.
    pub(crate) fn group_files(&self) -> Vec<Arc<GroupView>> {
        let views = self.topics.all().into_iter().filter_map(|t| t.view.load_full());
        views.flat_map(|v| v.groups.clone()).collect()
    }
}

impl View {
    /// Whether it has the parts that are needed, as of some version.
    #[inline]
    pub(super) fn knows(&self, need: Parts) -> bool {
        (self.has.lanes || !need.lanes) && (self.has.readers || !need.readers)
    }

    /// Whether its lanes are those of a version.
    #[inline]
    pub(super) fn has_lanes_of(&self, version: u64) -> bool {
        self.lanes_at == version as u32
    }

    /// Whether its readers and groups are those of a version.
    #[inline]
    pub(super) fn has_readers_of(&self, version: u64) -> bool {
        self.readers_at == (version >> 32) as u32
    }

    /// Takes over the parts of another view that this one has not.
    fn keep_from(&mut self, b: &View) {
        if !self.has.lanes {
            (self.has.lanes, self.lanes_at, self.gone) = (b.has.lanes, b.lanes_at, b.gone);
            self.lanes.clone_from(&b.lanes);
            self.hidden.clone_from(&b.hidden);
        }
        if !self.has.readers {
            (self.has.readers, self.readers_at, self.far) = (b.has.readers, b.readers_at, b.far);
            self.bells = b.bells.clone();
        }
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
            kind: if i.kind == "queue" { "queue" } else { "topic" },
            depth: given(i.depth),
            overwrite: Some(i.overwrite).filter(|_| !private && i.kind != "queue"),
            redeliver: Some(i.redeliver).filter(|_| !private && i.kind == "queue"),
            create: !private,
            ..TopicOpen::default()
        };
        let t = match &*i.kind {
            "name" => inner.open_topic("name.open", &NameRef { name: &i.name }),
            _ => inner.open_topic("topic.open", &open),
        }?;
        self.heir.get_or(|| t)
    }

    pub(crate) fn reference(&self) -> TopicRef {
        TopicRef { topic: self.info.topic, id: self.info.id }
    }

    /// The begin of the topic's record.
    #[inline]
    fn record(&self) -> Line<'_> {
        self.inner.pages.broker.line(self.at)
    }

    /// The broker's counts of changes: of lanes in the low half, of readers and groups in the high one.
    ///
    /// SYNC topic-version: read after a publish and its fence; the broker changes it and fences
    /// before it lets a new reader look. One of the two sees the other.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.record().load(topic_record::VERSION)
    }

    /// What changes when the topic's peers may have: while it is the same, asking the broker is of no use.
    pub(crate) fn news(&self) -> News {
        News { version: self.version(), heard: self.inner.background.heard() }
    }

    /// Whether the topic may no longer be sent to, from the broker's page.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        let record = self.record();
        let state = record.load(topic_record::STATE) as u32;
        record.load(topic_record::ID) != self.info.id || state != state::TOPIC_OPEN
    }

    /// The error of a use of it once it is closed.
    #[cold]
    pub(super) fn ended(&self) -> Error {
        ended(&self.info.name, self)
    }

    /// Whether it is a name that is not set, from the broker's page.
    pub(super) fn is_deleted(&self) -> bool {
        self.inner.pages.broker.load32(self.at + topic_record::FLAGS) & TOPIC_DELETED != 0
    }

    pub(crate) fn view(&self) -> Option<Arc<View>> {
        self.view.load_full()
    }

    /// Who takes part, asking the broker if that has changed or was not asked yet. While the broker is away, or
    /// when it goes away before it has answered, the last answer serves: hand-over needs no broker.
    pub(crate) fn current(&self, need: Parts) -> Result<Arc<View>> {
        let fresh = |v: &Arc<View>| self.is_fresh(v, need);
        if let Some(v) = self.view().filter(fresh) {
            return Ok(v);
        }
        let _one = self.inner.turn(&self.refreshing)?;
        let before = self.view().filter(|v| v.knows(need)); // else it does not serve
        let of = match &before {
            Some(v) if fresh(v) || self.inner.broker_away() => return Ok(v.clone()),
            Some(_) => Broker::This,
            None => Broker::Any,
        };
        let request = TopicPeers { topic: self.reference(), lanes: need.lanes, waiters: need.readers };
        let answer = self.inner.call_of::<_, Peers>(of, "topic.peers", &request, &[]);
        match (answer.and_then(|(p, _)| self.adopt(of, &p, need)), before) {
            (Err(e), Some(v)) if e.code() == Code::BrokerLost => Ok(v),
            (now, _) => now,
        }
    }

    /// Whether the parts of a view that are needed are still those of now. Readers come and go without a
    /// reader's having to know of it. Those that could not be mapped are tried again after a while.
    #[inline]
    pub(super) fn is_fresh(&self, v: &View, need: Parts) -> bool {
        let now = self.version();
        v.knows(need)
            && (!need.lanes || v.has_lanes_of(now))
            && (!need.readers || v.has_readers_of(now) && v.far.is_none_or(|since| since.elapsed() < A_MOMENT))
    }

    /// Rings the readers of a view: through the broker where some could not be mapped.
    #[inline]
    pub(super) fn ring(&self, v: &View) {
        if v.far.is_some() {
            self.ring_by_broker();
        }
        v.bells.iter().for_each(|b| b.ring());
    }

    /// Has the broker ring all readers. No answer is waited for, and a new broker rings them anyway.
    #[cold]
    pub(super) fn ring_by_broker(&self) {
        self.inner.background.want_ring(self.reference());
    }

    /// Adopts an answer that came with another request, and has some parts.
    pub(crate) fn adopt_locked(&self, p: &Peers, has: Parts, group: Option<Arc<GroupView>>) -> Result<Arc<View>> {
        let _one = self.inner.turn(&self.refreshing)?;
        let before = self.view();
        if let Some(g) = group {
            // The file just received serves the view that is built next, and a new broker is given it.
            let mut with = before.as_ref().map_or_else(View::default, |v| View::clone(v));
            with.groups.push(g);
            self.view.store(Some(Arc::new(with)));
        }
        self.adopt(Broker::Any, p, has).inspect_err(|_| self.view.store(before))
    }

    /// Builds a view of an answer that has some parts; the others stay as they were, and so do files mapped
    /// before.
    fn adopt(&self, of: Broker, p: &Peers, has: Parts) -> Result<Arc<View>> {
        let inner = &self.inner;
        let before = self.view();
        let (lanes_at, readers_at) = (p.lanes_version, p.readers_version);
        let mut v = View { has, lanes_at, readers_at, gone: p.gone, ..View::default() };
        (v.writers, v.readers) = (p.writers, p.members);
        v.last_left.clone_from(&p.last_left);
        if let Some(b) = &before {
            v.keep_from(b);
        }
        let gone = |e: &Error| matches!(e.code(), Code::NotFound | Code::Expired); // meanwhile; the version will say so
        for l in p.lanes.iter().filter(|l| l.state != state::LANE_CLOSED) {
            let peer = match inner.peer(of, l.slot, l.serial) {
                Err(e) if gone(&e) => continue,
                // Its process stands still since a former broker: the others go on.
                Err(e) if e.code() == Code::Busy => {
                    v.hidden.push(l.incarnation);
                    continue;
                }
                peer => peer?,
            };
            if l.lane >= limits::LANES {
                return Err(disagree(format!("a lane of {self} has the number {}", l.lane)));
            }
            v.lanes.push(Arc::new(LaneView {
                record: broker_file::lane(self.info.topic, l.lane) + lane_record::INCARNATION,
                lane: Lane::new(&peer.file, l.offset, self.info.slots, self.info.stride)?,
                bell: Bell::new(peer.file.clone(), peer.bell.clone()),
                owner: peer,
                inner: inner.clone(),
                info: l.clone(),
            }));
        }
        let mut bells = Vec::with_capacity(p.waiters.len());
        for w in &p.waiters {
            match inner.peer(of, w.slot, w.serial) {
                Ok(peer) => bells.push(Bell::new(peer.file.clone(), peer.bell.clone())),
                Err(e) if gone(&e) => {}
                Err(e) if matches!(e.code(), Code::BrokerLost | Code::Timeout) => return Err(e),
                Err(_) => v.far = Some(Instant::now()),
            }
        }
        if has.readers {
            v.bells = bells.into();
        }
        for g in &p.groups {
            let known = before.as_ref().and_then(|b| b.groups.iter().find(|k| k.id == g.id));
            match known.cloned().map_or_else(|| self.group_file(of, g), Ok) {
                Err(e) if gone(&e) => {}
                group => v.groups.push(group?),
            }
        }
        let v = Arc::new(v);
        self.view.store(Some(v.clone()));
        Ok(v)
    }

    fn group_file(&self, of: Broker, g: &GroupInfo) -> Result<Arc<GroupView>> {
        let request = TopicGroupFile { topic: self.reference(), group: g.group };
        let (_, fds) = self.inner.call_of::<_, Ignored>(of, "topic.groupfile", &request, &[])?;
        self.map_group(g, fds)
    }

    pub(crate) fn map_group(&self, g: &GroupInfo, fds: Vec<OwnedFd>) -> Result<Arc<GroupView>> {
        let n = fds.len();
        let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(disagree(format!("group came with {n} descriptors, not 1")));
        };
        let file = map_file(&fd, group_bytes(self.info.slots), true)?;
        Ok(Arc::new(GroupView { id: g.id, file, fd }))
    }

    /// Closes the topic for everybody.
    pub(crate) fn end(&self) -> Result<()> {
        self.inner.call::<_, Ignored>("topic.close", &self.reference()).map(|_| ())
    }

    /// What a part of a wait is that the broker did not answer before the wait's end; other errors stay.
    pub(crate) fn why_late(&self, e: Error, code: Code, what: &str) -> Error {
        if e.is_unanswered() { self.timed_out(code, what).unanswered_too(&e) } else { e }
    }

    /// Describes a wait that ended without what it waited for.
    pub(crate) fn timed_out(&self, code: Code, what: &str) -> Error {
        let e = |more: String| {
            Error::new(code, "wait longer, or look with `baton show`", format!("{what} in {self}{more}"))
        };
        if self.inner.broker_away() {
            return e("; the broker is away".to_owned());
        }
        // Joining and leaving change the version, so what the wait has last seen is how it is.
        let Some(v) = self.view() else { return e(String::new()) };
        let mut more = format!(": {} writing and {} reading sessions attached", v.writers, v.readers);
        if !v.last_left.is_empty() {
            more += &format!(", {} left last", v.last_left);
        }
        e(more).with("writers", v.writers).with("readers", v.readers).with("last_left", v.last_left.as_str())
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

impl Session {
    /// Opens or makes a topic with the defaults. An empty name makes a private one. Errors:
    /// `InvalidArgument`, `Conflict`, `TooMany`.
    pub fn topic(&self, name: &str) -> Result<Topic> {
        self.topic_with(name, &TopicOptions::default())
    }

    /// Opens or makes a topic.
    pub fn topic_with(&self, name: &str, o: &TopicOptions) -> Result<Topic> {
        if !name.is_empty() {
            check_name(name)?;
        }
        let request = TopicOpen {
            name: Some(name).filter(|n| !n.is_empty()),
            kind: "topic",
            depth: o.depth,
            overwrite: o.overwrite,
            description: o.description,
            linger: o.linger.map(|d| d.as_secs_f64()),
            create: !o.must_exist,
            ..TopicOpen::default()
        };
        Ok(Topic { state: self.inner()?.open_topic("topic.open", &request)? })
    }

    /// Opens another process's private topic by its token.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    /// use baton::{Payload, TopicOptions};
    ///
    /// let lossless = TopicOptions::default().overwrite(false).depth(1).description(512).linger(Duration::ZERO);
    /// let topic = session.topic_with("", &lossless)?; // without a name: private
    /// let mut members = [topic.group_reader("g")?, session.private_topic(topic.token())?.group_reader("g")?];
    /// topic.send_timeout(Payload::default(), Duration::from_secs(1))?;
    /// assert!(!topic.try_send(Payload::default())?); // full
    /// assert_eq!(members[0].recv(None)?.sequence(), 1);
    /// assert!(members[1].try_recv()?.is_none()); // one of them has it
    /// # Ok(()) }
    /// ```
    pub fn private_topic(&self, token: &str) -> Result<Topic> {
        let request = TopicOpen { token: Some(token), kind: "topic", ..TopicOpen::default() };
        Ok(Topic { state: self.inner()?.open_topic("topic.open", &request)? })
    }
}

/// A channel of messages with many senders and many readers. Any thread may use it; it is left with
/// the last clone and reader.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let topic = session.topic_with("batches", &baton::TopicOptions::default().depth(4))?;
/// topic.send(session.zeros::<f32>(&[8])?.freeze())?;
/// let mut late = topic.reader(baton::Start::Last)?; // what is kept is still there
/// assert_eq!(late.recv(None)?.tensor()?.shape(), [8]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Topic {
    pub(crate) state: Arc<TopicState>,
}

impl Topic {
    /// Its name, empty for a private one.
    pub fn name(&self) -> &str {
        &self.state.info.name
    }

    /// What opens a private topic in another process.
    pub fn token(&self) -> &str {
        &self.state.info.token
    }

    /// Hands a value to every reader. No tensor is copied. In a lossless topic it waits until the
    /// slowest reader has made room. Errors: `Closed`, `InvalidArgument`, `OutOfMemory`,
    /// `QuotaExceeded`.
    #[inline]
    pub fn send(&self, value: impl Into<Payload>) -> Result<()> {
        self.state.here()?.send(&mut value.into(), 0, None)
    }

    /// As [`send`](Topic::send), waiting for room at most so long (`Full`).
    pub fn send_timeout(&self, value: impl Into<Payload>, timeout: Duration) -> Result<()> {
        self.state.here()?.send(&mut value.into(), 0, deadline(timeout))
    }

    /// As [`send`](Topic::send), without waiting: false when there is no room.
    pub fn try_send(&self, value: impl Into<Payload>) -> Result<bool> {
        self.state.here()?.try_send(&mut value.into(), 0)
    }

    /// Joins as a reader: of every message, or, in a lossless topic, each message once.
    pub fn reader(&self, start: Start) -> Result<Reader> {
        Reader::new(self.state.here()?.clone(), start, None)
    }

    /// Joins a lossless topic as one of the readers that share its messages under a name.
    pub fn group_reader(&self, group: &str) -> Result<Reader> {
        super::check_token("group", group, 32)?;
        Reader::new(self.state.here()?.clone(), Start::New, Some(group))
    }

    /// Closes the topic for everybody: sends fail with `Closed`, and readers get it once they have
    /// received all that is there. What another sends at that moment may be received although the send
    /// fails, and not the other way round.
    pub fn end(&self) -> Result<()> {
        self.state.here()?.end()
    }
}
