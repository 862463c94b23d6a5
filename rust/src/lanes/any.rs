//! Waiting for whichever of several readers, watches and queues is ready first.
//!
//! A waiting thread takes nothing. It is therefore in no group, because a sender that rang it there would count on it
//! to take the item. Instead it stands in the wait set that each message of the topic rings, and looks at a queue
//! without being one of its takers.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::name::Watch;
use super::queue::Queue;
use super::reader::Reader;
use super::topic::{News, TopicState};
use super::view::{ALL, View};
use crate::deadline::{at_once, deadline};
use crate::error::{Code, Error, Result};
use crate::holding::{LaneView, Opening};
use crate::shm::GroupLane;
use crate::sys;
use crate::waits::{Look, Place, Side, Spinner, wait};

/// What [`wait_any`] waits for: a [`Reader`], a [`Watch`], a [`Queue`], or a reference of a queue.
pub trait Waitable: Sealed {}

/// What no other crate can name: the types to wait for are those of this one.
pub trait Sealed {
    fn awaited(&mut self) -> Awaited<'_>;
}

impl Waitable for Reader {}
impl Waitable for Watch {}
impl Waitable for Queue {}
impl Waitable for &Queue {}

impl Sealed for Reader {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited(Object::Reader(self))
    }
}

impl Sealed for Watch {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited(Object::Reader(&mut self.reader))
    }
}

impl Sealed for Queue {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited(self.state.here().map_or(Object::Failed, |t| Object::Queue(Items::new(t))))
    }
}

impl Sealed for &Queue {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited(self.state.here().map_or(Object::Failed, |t| Object::Queue(Items::new(t))))
    }
}

/// One object of a wait.
pub struct Awaited<'a>(pub(super) Object<'a>);

impl fmt::Debug for Awaited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topic = self.topic().map(|t| &*t.info.name);
        f.debug_struct("Awaited").field("topic", &topic).finish_non_exhaustive()
    }
}

pub(super) enum Object<'a> {
    Reader(&'a mut Reader),
    Queue(Items),
    /// One that other threads have too.
    Shared(Box<dyn Shared + 'a>),
    /// Each call of it is an error.
    Failed,
}

/// What a wait does with an object that several threads have.
pub(super) trait Shared {
    /// As [`Reader::is_ready`].
    fn is_ready(&mut self) -> Result<bool>;
    /// As [`Reader::may_be_ready`].
    fn may_be_ready(&self) -> bool;
    /// The topic, while it has its turn.
    fn topic(&self) -> Option<&TopicState>;
    fn session(&self) -> Option<&Opening>;
    /// The same of the same object.
    fn address(&self) -> usize;
}

/// The items of a queue, as they are looked at by one wait.
pub(super) struct Items {
    topic: Arc<TopicState>,
    view: Arc<View>,
    lanes: Vec<(Arc<LaneView>, GroupLane)>,
    /// When it last asked for lanes.
    asked: News,
}

impl Items {
    fn new(topic: &Arc<TopicState>) -> Items {
        Items { topic: topic.clone(), view: Arc::default(), lanes: Vec::new(), asked: News::default() }
    }

    /// As [`Reader::may_be_ready`].
    fn may_be_ready(&self) -> bool {
        let t = &self.topic;
        self.has_next()
            || !self.view.is_of(t.version(), ALL) && self.asked != t.news()
            || t.is_closed()
            || t.inner.is_closed()
    }

    fn has_next(&self) -> bool {
        self.lanes.iter().any(|(l, claims)| claims.next(l.lane.head()).is_some() && l.current())
    }

    /// As [`Reader::is_ready`].
    fn is_ready(&mut self) -> Result<bool> {
        loop {
            self.topic.inner.check_open()?;
            let ended = self.topic.is_closed(); // before the look: what was put earlier is seen
            if !self.view.is_of(self.topic.version(), ALL) {
                self.asked = self.topic.news();
                match self.follow() {
                    Err(e) if e.code() == Code::BrokerLost => {} // the next one is asked
                    followed => followed?,
                }
            }
            if ended || self.has_next() {
                return Ok(true);
            }
            if !self.topic.is_watched() {
                return Ok(false);
            }
        }
    }

    fn follow(&mut self) -> Result<()> {
        // While the broker is away the former view serves. Where there is none, the others do not wait for it.
        if self.topic.inner.broker_away() && self.topic.view().is_none_or(|v| !v.knows(ALL)) {
            return Ok(());
        }
        self.view = self.topic.current(ALL)?;
        self.lanes.clear();
        for lane in &self.view.lanes {
            for group in &self.view.groups {
                let claims = GroupLane::new(&group.file, lane.info.lane, self.topic.info.slots)?;
                self.lanes.push((lane.clone(), claims));
            }
        }
        Ok(())
    }
}

impl Awaited<'_> {
    /// Whether a call that does not wait has something to give: an error too, but not that the broker has not
    /// answered.
    fn is_ready(&mut self) -> bool {
        let ready = at_once(|| {
            let ready = match &mut self.0 {
                Object::Reader(r) => r.is_ready()?,
                Object::Queue(q) => q.is_ready()?,
                Object::Shared(s) => s.is_ready()?,
                Object::Failed => true,
            };
            Ok(ready.then_some(()))
        });
        !matches!(ready, Ok(None))
    }

    /// Whether that is to be looked at. It is cheap, and changes nothing.
    fn may_be_ready(&self) -> bool {
        match &self.0 {
            Object::Reader(r) => r.may_be_ready(),
            Object::Queue(q) => q.may_be_ready(),
            Object::Shared(s) => s.may_be_ready(),
            Object::Failed => true,
        }
    }

    fn topic(&self) -> Option<&TopicState> {
        match &self.0 {
            Object::Reader(r) => Some(&r.topic),
            Object::Queue(q) => Some(&q.topic),
            Object::Shared(s) => s.topic(),
            Object::Failed => None,
        }
    }

    /// The session whose bell is rung for it.
    fn session(&self) -> Option<&Opening> {
        match &self.0 {
            Object::Shared(s) => s.session(),
            _ => self.topic().map(|t| &*t.inner),
        }
    }

    /// Whether another is the same shared one, which has one turn in a wait.
    fn is(&self, other: &Awaited<'_>) -> bool {
        matches!((&self.0, &other.0), (Object::Shared(a), Object::Shared(b)) if a.address() == b.address())
    }
}

thread_local! {
    /// What this thread's waits for several have taught.
    static SPIN: RefCell<Spinner> = RefCell::default();
}

/// Waits until at least one of several readers, watches and queues is ready, and returns the indices of all that are: a
/// call of it that does not wait ([`Reader::try_recv`], [`Watch::try_next`], [`Queue::try_get`]) would give something,
/// a message or the error that it ends with. None are when the time is over first; without a timeout there is no
/// limit, and with zero it looks once.
///
/// It takes nothing, and what is not taken is ready at the next call too. Between the wait and the call another taker
/// may take an item, or a sender overwrite a message: the call then finds none. An object may stand there twice, and
/// those of several sessions beside each other. A [`Closer`](super::Closer) of one of them, or the end of its session,
/// ends the wait. Tasks need none of this: `select!` does it with [`Reader::recv_async`] and its like, which may be
/// cancelled.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let mut reader = session.topic("batches")?.reader(baton::Start::New)?;
/// let mut queue = session.queue("work")?;
/// queue.put(session.from_slice(&[1], &[7])?.freeze(), None)?;
/// let ready = baton::wait_any(&mut [&mut reader, &mut queue], None)?;
/// assert_eq!(ready, [1]);
/// let item = queue.try_get()?.expect("there is no other taker");
/// assert_eq!(item.tensor()?.to_vec::<i32>()?, [7]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// `InvalidArgument` without objects; `Unsupported` with those of several sessions, on a kernel before Linux 5.16.
pub fn wait_any(objects: &mut [&mut dyn Waitable], timeout: impl Into<Option<Duration>>) -> Result<Vec<usize>> {
    if objects.is_empty() {
        return Err(Error::new(Code::InvalidArgument, "give at least one", "a wait for no objects has no end"));
    }
    let until = deadline(timeout);
    let mut objects: Vec<Awaited<'_>> = objects.iter_mut().map(|o| o.awaited()).collect();
    // Where each stands first.
    let first: Vec<usize> = objects
        .iter()
        .map(|o| objects.iter().position(|p| p.is(o)))
        .enumerate()
        .map(|(i, at)| at.unwrap_or(i))
        .collect();
    let mut spin = None;
    loop {
        let looked: Vec<bool> = (0..first.len()).map(|i| first[i] == i && objects[i].is_ready()).collect();
        let ready: Vec<usize> = (0..first.len()).filter(|i| looked[first[*i]]).collect();
        if !ready.is_empty() {
            if spin.is_some() {
                SPIN.with_borrow_mut(|s| s.happened(sys::monotonic()));
            }
            return Ok(ready);
        }
        if until.is_some_and(|u| u <= Instant::now()) {
            return Ok(ready);
        }
        let spins = *spin.get_or_insert_with(|| SPIN.with_borrow_mut(Spinner::until));
        if !sleep(&objects, spins, until)? {
            SPIN.with_borrow_mut(Spinner::gave_up);
            return Ok(ready);
        }
    }
}

/// Waits until one of the objects may be ready; false at the deadline.
fn sleep(objects: &[Awaited<'_>], spin: Option<u64>, until: Option<Instant>) -> Result<bool> {
    let places = objects.iter().filter_map(|o| Some((o.session()?, o.topic().map(|t| t.waiting.place(None)))));
    wait_in(places, spin, until, |_| objects.iter().any(Awaited::may_be_ready))
}

impl Reader {
    /// As `wait_beside`, also for what others may take.
    pub(crate) fn wait_among(
        &mut self,
        others: &[&Reader],
        until: Option<Instant>,
        mut other: impl FnMut(Look) -> bool,
    ) -> Result<bool> {
        let spin = self.spin.until();
        let me = &*self;
        let all = || [me].into_iter().chain(others.iter().copied());
        let places = all().map(|r| (&*r.topic.inner, Some(r.place())));
        let found = wait_in(places, spin, until, |look| all().any(Reader::may_be_ready) || other(look))?;
        if !found {
            self.spin.gave_up();
        }
        Ok(found)
    }
}

/// Waits in places of sessions until `look` says so; false at the deadline.
fn wait_in<'a>(
    places: impl Iterator<Item = (&'a Opening, Option<Place<'a>>)>,
    spin: Option<u64>,
    until: Option<Instant>,
    look: impl FnMut(Look) -> bool,
) -> Result<bool> {
    // Of each session, its topics.
    let mut sessions: Vec<(&Opening, Vec<Place<'_>>)> = Vec::new();
    for (session, place) in places {
        let at = sessions.iter().position(|(s, _)| std::ptr::eq(&s.waiter, &session.waiter)).unwrap_or_else(|| {
            sessions.push((session, Vec::new()));
            sessions.len() - 1
        });
        sessions[at].1.extend(place);
    }
    let sides: Vec<_> = sessions.iter().map(|(s, places)| Side { waiter: &s.waiter, places }).collect();
    let Some((first, others)) = sides.split_first() else { return Ok(true) };
    wait(*first, others, spin, until, look, || sessions.iter().try_for_each(|(s, _)| s.check_woken()))
}
