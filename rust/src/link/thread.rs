//! A session's one background thread: it reads the control socket while no caller does, gives replies to
//! their callers, and does what is off the hot path: comparing, recycling on request, new peers, reconnecting.
//!
//! A caller reads the socket itself until its answer is there, unless another does: so the caller is woken
//! once, and not the thread first and then the caller.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::errand::{Asked, Awaits};
use super::hello::hello;
use super::life::{Link, Opened, PARTING};
use super::options::Options;
use super::start::dial;
use crate::error::{Code, Error, Result, disagree};
use crate::sys::{self, Waker, readable_by, wait_ready};
use crate::wire::ops::{Bye, ByeReply, HelloReply};
use crate::wire::{Control, Event, Frames, Incoming, Keep, OrphanedReply, Reply, decode};

/// How long the thread stands aside where a caller reads what has come for itself.
const ASIDE: Duration = Duration::from_micros(100);
/// How often the row of a closed session is looked at, and whether a child lives that counted nothing.
const LOOK_AT_ROW: Duration = Duration::from_secs(1);

/// How long the thread waits before it tries to reconnect again.
const SOONEST: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_millis(200);

/// How long what a broker has said is read where a request to it could not be sent.
const REFUSED: Duration = Duration::from_secs(1);

/// How often what is mapped is compared with the broker's records although no event asks for it: an event may
/// be lost with a connection.
const COMPARE_EVERY: Duration = Duration::from_secs(5);

/// Why a session is lost whose broker was stopped.
const STOPPED: &str = "the broker was stopped";

/// Why a session is lost that an operator has ended.
const EVICTED: &str = "an operator evicted it";

/// What the thread is asked to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// Look what the broker has taken back.
    Compare,
    /// Recycle and give back.
    Reclaim,
    /// Ask whose files to keep for the next broker.
    Custody,
    /// Tell allocations that wait of memory.
    MemoryFreed,
    /// Map the files of sessions, which are named by serial and slot.
    Peers(BTreeMap<u64, u32>),
    /// Undo what the broker did for nothing.
    Undo(OrphanedReply),
    /// Let go of what was kept until the broker had done what it was told, or why it has not.
    Kept(Keep, Option<Error>),
    /// Await the answer to an errand.
    Errand(Asked),
}

/// What becomes of pools where a session's end is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pools {
    /// They hand nothing out until that is decided.
    Pause,
    Resume,
    End,
}

/// The session that the thread works for.
pub(crate) trait Served: Send + Sync {
    /// Does a job, of any kind but an errand.
    fn work(self: Arc<Self>, job: Job);

    /// Does what is due from time to time, or after each job.
    fn tick(&self);

    /// Whether something of it may end without a word: then a tick is due about once a second.
    fn is_watched(&self) -> bool;

    /// Whether its row counts anything.
    fn counts_any(&self) -> bool;

    /// Whether nothing is counted, and nothing will be from here on.
    fn empties(&self) -> bool;

    /// Why no broker takes it back, as the last one has written.
    fn ending(&self) -> Option<Ending>;

    /// Hands a new broker all that is mapped, by `ask`.
    fn restore(&self, control: &Control) -> Result<()>;

    /// There is a new connection, and an answer may have been lost with the former one.
    fn relinked(&self);

    fn pools(&self, what: Pools);

    /// It is lost, which an opening of it is to show.
    fn lost(&self, opening: &Opened);

    /// Gives up what lanes of a lost opening name, once that may be; whether nothing is left.
    fn gives_up(&self, opening: &Opened) -> bool;

    /// Nothing is left to be done with it.
    fn over(&self);
}

/// Why a session is over that was not closed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stopped,
    Evicted,
}

/// Why a broker has not taken a session back.
enum Unresumed {
    /// It does not know the session, or cannot: no other one will.
    Unknown(Error),
    /// Its user may not use the broker any more.
    Denied(Error),
    /// None was reached, or it may be asked again.
    Failed(Error),
}

impl From<Error> for Unresumed {
    /// By the code of a broker's answer.
    fn from(e: Error) -> Unresumed {
        match e.code() {
            Code::Version | Code::Expired => Unresumed::Unknown(e),
            Code::PermissionDenied => Unresumed::Denied(e),
            _ => Unresumed::Failed(e),
        }
    }
}

/// The thread as others see it.
#[derive(Debug)]
pub(crate) struct Thread {
    jobs: Mutex<VecDeque<Job>>,
    waker: Arc<Waker>,
    thread: OnceLock<ThreadId>,
    of: OnceLock<(Weak<Link>, Weak<dyn Served>)>,
    pump: Mutex<Frames>, // locked by the thread that reads the socket
    heard: AtomicU64,    // frames and connections
    hindrance: Mutex<Option<Error>>,
}

impl Thread {
    pub(crate) fn new(frames: Frames) -> Result<Thread> {
        let waker = Waker::new().map_err(|e| {
            Error::new(Code::TooMany, "raise the limit of open files", format!("make an event descriptor: {e}"))
        })?;
        Ok(Thread {
            jobs: Mutex::default(),
            waker: Arc::new(waker),
            thread: OnceLock::new(),
            of: OnceLock::new(),
            pump: Mutex::new(frames),
            heard: AtomicU64::new(0),
            hindrance: Mutex::default(),
        })
    }

    /// Starts the thread. It keeps the session, and ends when that is closed and counts nothing any more.
    pub(crate) fn start(self: &Arc<Self>, link: &Arc<Link>, served: Arc<dyn Served>) -> Result<()> {
        let (me, link) = (self.clone(), link.clone());
        let _ = self.of.set((Arc::downgrade(&link), Arc::downgrade(&served)));
        let thread = std::thread::Builder::new().name("baton".to_owned()).spawn(move || me.run(&link, &served));
        let thread = thread.map_err(|e| {
            Error::new(Code::TooMany, "raise the limit of threads", format!("start a thread: {e}")).caused_by(e)
        })?;
        let _ = self.thread.set(thread.thread().id());
        Ok(())
    }

    /// Whether the caller is the background thread.
    pub(crate) fn is_current(&self) -> bool {
        self.thread.get() == Some(&std::thread::current().id())
    }

    /// How much has come from the broker: while that stays as it was, the broker may stand still, or none is
    /// connected. Every frame counts, and every connection, since a request that found the former one lost may
    /// be made again by the next, by which nothing else need come.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Counts a connection. Called with the link locked, behind the change: a thread that has found the former
    /// connection there read `heard` before.
    pub(super) fn connected(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the thread was started.
    pub(crate) fn is_running(&self) -> bool {
        self.thread.get().is_some()
    }

    /// Has the thread look at what there is to be done.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    pub(crate) fn post(&self, job: Job) {
        self.jobs().push_back(job);
        self.waker.wake();
    }

    /// The errands that wait for the broker's answer.
    pub(super) fn take_errands(&self) -> Vec<Asked> {
        let mut jobs = self.jobs();
        let (errands, others) = std::mem::take(&mut *jobs).into_iter().partition(|j| matches!(j, Job::Errand(_)));
        *jobs = others;
        let asked = |j| if let Job::Errand(asked) = j { Some(asked) } else { None };
        VecDeque::into_iter(errands).filter_map(asked).collect()
    }

    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Asks for a session's file once; the free test asks again while it needs them.
    pub(crate) fn want_peer(&self, serial: u64, slot: u32) {
        let mut jobs = self.jobs();
        let wanted = jobs.iter_mut().find_map(|j| if let Job::Peers(all) = j { Some(all) } else { None });
        match wanted {
            Some(all) => drop(all.insert(serial, slot)),
            None => {
                jobs.push_back(Job::Peers(BTreeMap::from([(serial, slot)])));
                drop(jobs);
                self.waker.wake();
            }
        }
    }

    fn run(&self, link: &Link, served: &Arc<dyn Served>) {
        let mut control = link.control();
        // The spawning thread sets it as well; the first one counts.
        let _ = self.thread.set(std::thread::current().id());
        control.wakes(&self.waker);
        // What came together with the answer to hello.
        if let Err(e) = self.deliver(&control, &mut self.frames()) {
            control.fail(&e);
        }
        let (mut parting, mut unfinished) = (None, None);
        let mut compare_at = Instant::now() + COMPARE_EVERY;
        while !link.is_over() {
            // What a closed session holds is dropped without a word, and a child ends without one.
            let quiet = !link.is_open() || served.is_watched();
            let look = quiet.then(|| Instant::now() + LOOK_AT_ROW);
            if let Err(e) = self.step(&control, Some(look.map_or(compare_at, |at| at.min(compare_at)))) {
                control.fail(&e);
                control.put_away();
                let open = link.opening();
                match self.reconnect(link, &**served, &mut parting) {
                    Some(next) => control = next,
                    None => {
                        link.over(&**served);
                        unfinished = open.filter(|_| link.is_lost());
                        break;
                    }
                }
            }
            if Instant::now() >= compare_at {
                self.want(Job::Compare);
                compare_at = Instant::now() + COMPARE_EVERY;
            }
            served.tick();
            self.work(link, served, &control);
            self.part(link, &**served, &control);
        }
        // `bye` was sent, or waits for room; the broker closes its end when it has read it. Were this end
        // closed first, it could not write what was asked before, and would take the session for one that
        // was cut off and may come back.
        control.refuse(&Error::new(Code::Closed, "", "the session was closed"));
        while self.step(&control, None).is_ok() {}
        control.shut();
        link.relinked.notify_all();
        if let Some(opening) = unfinished {
            while !served.gives_up(&*opening) {
                std::thread::sleep(LOOK_AT_ROW);
            }
        }
    }

    /// Tells the broker that the session was closed, and once nothing is counted any more that it is over.
    fn part(&self, link: &Link, served: &dyn Served, control: &Control) {
        if link.is_open() || link.is_over() {
            return;
        }
        let behind = self.is_behind() || link.line().is_behind();
        if !behind && link.end_if(|| served.empties()) {
            return match self.ask_bye(link, control, false) {
                Err(e) if e.code() == Code::BrokerLost => {} // the next one is asked
                _ => link.over(served),
            };
        }
        if !link.is_left() {
            match self.ask_bye(link, control, true) {
                Ok(true) => link.left(),
                Err(e) if e.code() == Code::BrokerLost => {} // the next one is asked
                _ => link.over(served),
            }
        }
    }

    /// Tells the broker that the session was closed; whether it goes on keeping what is held.
    fn ask_bye(&self, link: &Link, control: &Control, keep: bool) -> Result<bool> {
        // Behind what its openings ask.
        let line = link.line();
        let asked = control.request("bye", &Bye { keep }, &[]);
        drop(line);
        let (json, _) = self.pump_for(control, &asked?.1)?;
        decode::<ByeReply>("bye", &json).map(|r| r.held)
    }

    /// Whether errands wait for the broker's answer.
    fn is_behind(&self) -> bool {
        self.jobs().iter().any(|j| matches!(j, Job::Errand(_)))
    }

    /// Waits until there is something to do, or a time, then sends what there was no room for, and reads what
    /// has come and delivers it.
    fn step(&self, control: &Control, until: Option<Instant>) -> Result<()> {
        let ready = wait_ready(&*control.socket()?, control.is_behind(), &self.waker, until)
            .map_err(|e| Error::new(Code::BrokerLost, "", format!("wait for the broker: {e}")).caused_by(e))?;
        let sent = if ready.writable { control.catch_up() } else { Ok(()) };
        if !ready.readable {
            return sent;
        }
        // Also where it takes nothing any more: that it was stopped for good is said before it goes.
        let read = match self.pump.try_lock() {
            Ok(mut frames) => self.read(control, &mut frames),
            Err(TryLockError::Poisoned(p)) => self.read(control, &mut p.into_inner()),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(ASIDE);
                return Ok(());
            }
        };
        read.and(sent)
    }

    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.pump.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Receives what has come, which another may just have done, and delivers it.
    fn read(&self, control: &Control, frames: &mut Frames) -> Result<()> {
        if !frames.receive(&*control.socket()?)? {
            return Err(Error::new(Code::BrokerLost, "", "the broker closed it"));
        }
        self.deliver(control, frames)
    }

    fn deliver(&self, control: &Control, frames: &mut Frames) -> Result<()> {
        while let Some((json, fds)) = frames.next()? {
            self.heard.fetch_add(1, Ordering::Relaxed); // a hint: a change of it is seen at some time
            match control.deliver(json, fds)? {
                Incoming::Answered => {}
                Incoming::Event(e) => self.note(control, &e),
                Incoming::Orphaned(reply) => self.jobs().push_back(Job::Undo(reply)),
                Incoming::Kept(keep, failed) => self.jobs().push_back(Job::Kept(keep, failed)),
            }
        }
        Ok(())
    }

    /// Reads on the caller's thread until its answer is there. `None`: it is not, for another reads, or the
    /// time has come, or the connection has ended.
    pub(crate) fn read_for(&self, control: &Control, from: &Receiver<Reply>, until: Instant) -> Option<Reply> {
        let mut frames = self.pump.try_lock().ok()?;
        loop {
            if let Ok(reply) = from.try_recv() {
                return Some(reply); // the thread that read before has delivered it
            }
            // The frames may be the next connection's by now.
            let Ok(socket) = control.socket() else { return None };
            if control.is_lost() || !readable_by(&*socket, until).unwrap_or(false) {
                return None;
            }
            let before = self.heard();
            if let Err(e) = self.read(control, &mut frames) {
                control.fail(&e); // the thread sees that it has ended
            }
            let (reply, heard) = (from.try_recv().ok(), self.heard() - before);
            // What was not for this caller may be for the thread, which does not read it any more.
            if heard > u64::from(reply.is_some()) {
                self.waker.wake();
            }
            if reply.is_some() {
                return reply;
            }
        }
    }

    /// Reads until a reply that the thread itself waits for has come.
    pub(crate) fn pump_for(&self, control: &Control, from: &Receiver<Reply>) -> Reply {
        loop {
            match from.try_recv() {
                Ok(reply) => return reply,
                // What ends the connection, be it half a frame of a broker that was killed, is the answer of
                // each request: that it is lost, and the next broker is asked.
                Err(TryRecvError::Empty) => drop(self.step(control, None).inspect_err(|e| control.fail(e))),
                Err(TryRecvError::Disconnected) => return Err(disagree("a reply was lost")),
            }
        }
    }

    /// Queues what is done once however often it is asked for.
    fn want(&self, job: Job) {
        let mut jobs = self.jobs();
        if !jobs.iter().any(|j| std::mem::discriminant(j) == std::mem::discriminant(&job)) {
            jobs.push_back(job);
        }
    }

    fn note(&self, control: &Control, e: &Event) {
        match e.name.as_str() {
            "trim" => self.want(Job::Compare),
            "collect" => self.want(Job::Reclaim),
            "custody" => self.want(Job::Custody),
            "room" => self.want(Job::MemoryFreed),
            "evicted" => {
                if let Some((link, _)) = self.of() {
                    link.evicted.store(true, Ordering::Relaxed);
                }
            }
            "stopped" => {
                if let Some((link, served)) = self.of() {
                    link.hear(&*served, control);
                }
            }
            // "closing": the broker goes, and another may come, as after its death. And what later versions say.
            _ => {}
        }
    }

    /// What it works for, while that is there.
    pub(super) fn of(&self) -> Option<(Arc<Link>, Arc<dyn Served>)> {
        let (link, served) = self.of.get()?;
        link.upgrade().zip(served.upgrade())
    }

    fn work(&self, link: &Link, served: &Arc<dyn Served>, control: &Control) {
        loop {
            let Some(job) = self.jobs().pop_front() else { return };
            match job {
                Job::Errand(asked) => {
                    if let Some(still) = asked.finish(|answer| self.pump_for(control, answer)) {
                        link.line().put_off(still);
                    }
                }
                job => served.clone().work(job),
            }
        }
    }

    /// Tries until a broker takes this session back: the same one, to which it was only
    /// disconnected, or a new one, which is given all that is mapped here. `None` when the session
    /// is lost: that a broker knows it no more, or is of another layout, only an answer says.
    ///
    /// A session that was closed and holds nothing is given up after a time, that of its `parting`.
    fn reconnect(&self, link: &Link, served: &dyn Served, parting: &mut Option<Instant>) -> Option<Arc<Control>> {
        let mut pause = SOONEST;
        while !link.is_over() {
            served.tick();
            if let Some(ending) = served.ending() {
                let evicted = link.evicted.load(Ordering::Relaxed) || ending == Ending::Evicted;
                // The broker may have said why it has evicted it.
                let said = link.control().refusal().filter(|e| evicted && e.is_session_lost());
                let why = said.as_ref().map_or(if evicted { EVICTED } else { STOPPED }, Error::message);
                link.lose(served, link.lost_by(why), false);
                return None;
            }
            link.go_on(served);
            if !link.is_open() && !served.counts_any() {
                let until = *parting.get_or_insert_with(|| Instant::now() + PARTING);
                if Instant::now() >= until {
                    return None;
                }
            }
            let kept = link.opening(); // it does not end while a broker is told what is mapped
            *self.frames() = Frames::default();
            match self.resume(link, served) {
                Ok(control) => {
                    link.relink(served, control.clone());
                    self.want(Job::Compare);
                    *self.hindrance() = None;
                    return Some(control);
                }
                Err(Unresumed::Unknown(e)) => {
                    // The session may be over by now, and the broker another.
                    let evicted = link.evicted.load(Ordering::Relaxed);
                    link.lose(served, link.lost_by(if evicted { EVICTED } else { e.message() }), true);
                    return None;
                }
                Err(Unresumed::Denied(e)) => {
                    link.lose(served, link.denied_by(&e), false); // that broker counts for what its lanes name
                    return None;
                }
                Err(Unresumed::Failed(e)) => *self.hindrance() = Some(e).filter(|e| e.code() != Code::NoBroker),
            }
            drop(kept);
            std::thread::sleep(pause);
            pause = (2 * pause).min(LATEST);
        }
        None
    }

    /// Why the last attempt to reach the next broker failed, where one was there.
    pub(super) fn hindrance(&self) -> MutexGuard<'_, Option<Error>> {
        self.hindrance.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Tries once to have a broker take the session back.
    fn resume(&self, link: &Link, served: &dyn Served) -> std::result::Result<Arc<Control>, Unresumed> {
        let until = Instant::now() + Duration::from_secs(5);
        // Another client may start the next broker; this one waits for it like all clients.
        // One that was closed has no need of a broker, and starts none.
        let start = link.options.start && link.is_open();
        let options = Options { interrupted: None, start, ..link.options.clone() };
        let control = Arc::new(Control::new(dial(&options, Some(until)).map_err(Unresumed::Failed)?));
        control.wakes(&self.waker);
        let hello = hello(&options, Some(link.known_as.clone()));
        let alive = sys::alive().map_err(Unresumed::Failed)?;
        let (ok, fds): (HelloReply, _) = self.ask_refusing(&control, "hello", &hello, &[alive])?;
        drop(fds);
        if ok.restore {
            served.restore(&control)?;
        } else if !ok.resumed {
            let what = "another broker runs now, and this session's memory is not its";
            return Err(Unresumed::Unknown(Error::new(Code::Expired, "open a new session", what)));
        }
        Ok(control)
    }

    /// As `ask`, by a connection that the broker may refuse: it says why, and may have closed the connection
    /// before the request is sent.
    fn ask_refusing<B: Serialize, R: DeserializeOwned>(
        &self,
        control: &Control,
        op: &'static str,
        body: &B,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(R, Vec<OwnedFd>)> {
        self.ask(control, op, body, fds).map_err(|e| {
            let until = Instant::now() + REFUSED;
            if e.code() == Code::BrokerLost && !control.is_lost() {
                while Instant::now() < until && self.step(control, Some(until)).is_ok() {}
            }
            control.refusal().unwrap_or(e)
        })
    }

    /// Asks by one connection, on the thread itself.
    pub(crate) fn ask<B: Serialize, R: DeserializeOwned>(
        &self,
        control: &Control,
        op: &'static str,
        body: &B,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(R, Vec<OwnedFd>)> {
        let (_, from) = control.request(op, body, fds)?;
        let (json, fds) = self.pump_for(control, &from)?;
        Ok((decode(op, &json)?, fds))
    }
}

impl Awaits for Thread {
    fn await_answer(&self, asked: Asked) {
        self.post(Job::Errand(asked));
    }
}
