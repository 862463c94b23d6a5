//! A session's one background thread: it reads the control socket while no caller does, gives replies to
//! their callers, and does what is off the hot path: comparing, recycling on request, new peers, reconnecting.
//!
//! A caller reads the socket itself until its answer is there, unless another does: so the caller is woken
//! once, and not the thread first and then the caller.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::core::{Core, PARTING};
use super::inner::{Broker, Inner};
use super::leave::Left;
use super::start::dial;
use super::{Options, hello};
use crate::error::{Code, Error, Result, disagree};
use crate::sys::{self, Waker, readable_by, wait_ready};
use crate::wire::ops::{Bye, ByeReply, HelloReply, Ignored, Restore, RestoreItem, Restored, Resume};
use crate::wire::{Control, Event, Frames, Incoming, Keep, Late, Reply, decode};

/// How long the thread stands aside where a caller reads what has come for itself.
const ASIDE: Duration = Duration::from_micros(100);
/// How often the row of a closed session is looked at, and whether a child lives that counted nothing.
const LOOK_AT_ROW: Duration = Duration::from_secs(1);

/// How long the thread waits before it tries to reconnect again.
const SOONEST: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_millis(200);

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
    Collect,
    /// Ask whose files to keep for the next broker.
    Custody,
    /// Tell allocations that wait of memory.
    Room,
    /// Map the pages of sessions, which are named by serial and slot.
    Peers(BTreeMap<u64, u32>),
    /// Undo what the broker did for nothing.
    Undo(Late),
    /// Let go of what was kept until the broker had done what it was told, or why it has not.
    Kept(Keep, Option<Error>),
    /// Count down what a lane names that was left, once the broker counts for it.
    Leave(Left),
}

/// The thread as others see it.
#[derive(Debug)]
pub(crate) struct Background {
    jobs: Mutex<VecDeque<Job>>,
    waker: Arc<Waker>,
    thread: OnceLock<ThreadId>,
    core: OnceLock<Weak<Core>>,
    pump: Mutex<Frames>, // locked by the thread that reads the socket
    heard: AtomicU64,    // frames and connections
    hindrance: Mutex<Option<Error>>,
}

impl Background {
    pub(crate) fn new(frames: Frames) -> Result<Background> {
        let waker = Waker::new().map_err(|e| {
            Error::new(Code::TooMany, "raise the limit of open files", format!("make an event descriptor: {e}"))
        })?;
        Ok(Background {
            jobs: Mutex::default(),
            waker: Arc::new(waker),
            thread: OnceLock::new(),
            core: OnceLock::new(),
            pump: Mutex::new(frames),
            heard: AtomicU64::new(0),
            hindrance: Mutex::default(),
        })
    }

    /// Starts the thread. It keeps the core, and ends when that is closed and counts nothing any more.
    pub(super) fn start(self: &Arc<Self>, core: &Arc<Core>, control: Arc<Control>) -> Result<()> {
        let (b, core) = (self.clone(), core.clone());
        let _ = self.core.set(Arc::downgrade(&core));
        let thread = std::thread::Builder::new().name("baton".to_owned()).spawn(move || b.run(&core, control));
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
    pub(super) fn is_running(&self) -> bool {
        self.thread.get().is_some()
    }

    /// Has the thread look at what there is to be done.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    pub(crate) fn post(&self, job: Job) {
        self.jobs().push_back(job);
        self.waker.wake();
    }

    /// The lanes that wait for the broker's answer.
    pub(super) fn take_leaves(&self) -> Vec<Left> {
        let mut jobs = self.jobs();
        let (leaves, others) = std::mem::take(&mut *jobs).into_iter().partition(|j| matches!(j, Job::Leave(_)));
        *jobs = others;
        let lane = |j| if let Job::Leave(left) = j { Some(left) } else { None };
        VecDeque::into_iter(leaves).filter_map(lane).collect()
    }

    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Asks for a session's pages once; the free test asks again while it needs them.
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

    fn run(&self, core: &Arc<Core>, mut control: Arc<Control>) {
        // The spawning thread sets it as well; whoever is first.
        let _ = self.thread.set(std::thread::current().id());
        control.wakes(&self.waker);
        // What came together with the answer to hello.
        if let Err(e) = self.deliver(&control, &mut self.frames()) {
            control.fail(&e);
        }
        let (mut parting, mut unfinished) = (None, None);
        let mut compare_at = Instant::now() + COMPARE_EVERY;
        while !core.is_over() {
            // What a closed session holds is dropped without a word, and a child ends without one.
            let quiet = !core.is_open() || !core.legacies.is_empty();
            let look = quiet.then(|| Instant::now() + LOOK_AT_ROW);
            if let Err(e) = self.step(&control, Some(look.map_or(compare_at, |at| at.min(compare_at)))) {
                control.fail(&e);
                control.put_away();
                let open = core.opening();
                match self.reconnect(core, &mut parting) {
                    Some(next) => control = next,
                    None => {
                        core.over();
                        unfinished = open.filter(|_| core.is_lost());
                        break;
                    }
                }
            }
            if Instant::now() >= compare_at {
                self.want(Job::Compare);
                compare_at = Instant::now() + COMPARE_EVERY;
            }
            core.end_legacies();
            self.work(core, &control);
            self.part(core, &control);
        }
        // `bye` was sent, or waits for room; the broker closes its end when it has read it. Were this end
        // closed first, it could not write what was asked before, and would take the session for one that
        // was cut off and may come back.
        control.refuse(&Error::new(Code::Closed, "", "the session was closed"));
        while self.step(&control, None).is_ok() {}
        control.shut();
        core.relinked.notify_all();
        if let Some(inner) = unfinished {
            while !inner.empty_lanes() {
                std::thread::sleep(LOOK_AT_ROW);
            }
        }
    }

    /// Tells the broker that the session was closed, and once nothing is counted any more that it is over.
    fn part(&self, core: &Arc<Core>, control: &Control) {
        if core.is_open() || core.is_over() {
            return;
        }
        let leaving = self.is_leaving() || core.link_locked().is_leaving();
        if !leaving && core.end_if_empty() {
            return match self.ask_bye(core, control, false) {
                Err(e) if e.code() == Code::BrokerLost => {} // the next one is asked
                _ => core.over(),
            };
        }
        if !core.is_left() {
            match self.ask_bye(core, control, true) {
                Ok(true) => core.left(),
                Err(e) if e.code() == Code::BrokerLost => {} // the next one is asked
                _ => core.over(),
            }
        }
    }

    /// Tells the broker that the session was closed; whether it goes on keeping what is held.
    fn ask_bye(&self, core: &Core, control: &Control, keep: bool) -> Result<bool> {
        // Behind what its openings ask.
        let link = core.link_locked();
        let asked = control.request("bye", &Bye { keep }, &[]);
        drop(link);
        let (json, _) = self.pump_for(control, &asked?.1)?;
        decode::<ByeReply>("bye", &json).map(|r| r.held)
    }

    /// Whether lanes wait for the broker's answer.
    fn is_leaving(&self) -> bool {
        self.jobs().iter().any(|j| matches!(j, Job::Leave(_)))
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
                Incoming::Late(late) => self.jobs().push_back(Job::Undo(late)),
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
            "collect" => self.want(Job::Collect),
            "custody" => self.want(Job::Custody),
            "room" => self.want(Job::Room),
            "evicted" => {
                if let Some(core) = self.core.get().and_then(Weak::upgrade) {
                    core.evicted.store(true, Ordering::Relaxed);
                }
            }
            "stopped" => {
                if let Some(core) = self.core.get().and_then(Weak::upgrade) {
                    core.hear(control);
                }
            }
            // "closing": the broker goes, and another may come, as after its death. And what later versions say.
            _ => {}
        }
    }

    fn work(&self, core: &Arc<Core>, control: &Control) {
        loop {
            let Some(job) = self.jobs().pop_front() else { return };
            let inner = served(core);
            match job {
                Job::Compare => inner.compare(),
                Job::Collect => drop(inner.collect(false)),
                Job::Custody => inner.take_custody(),
                Job::Room => inner.room_made(),
                Job::Peers(all) => drop(inner.peers(Broker::This, all)),
                Job::Undo(late) => inner.undo(&late),
                Job::Kept(keep, failed) => inner.leased(keep, failed),
                Job::Leave(left) => left.finish(&inner, control),
            }
        }
    }

    /// Tries until a broker takes this session back: the same one, to which it was only
    /// disconnected, or a new one, which is given all that is mapped here. `None` when the session
    /// is lost: that a broker knows it no more, or is of another layout, only an answer says.
    ///
    /// A session that was closed and holds nothing is given up after a time, that of its `parting`.
    fn reconnect(&self, core: &Arc<Core>, parting: &mut Option<Instant>) -> Option<Arc<Control>> {
        let mut pause = SOONEST;
        while !core.is_over() {
            core.end_legacies();
            if core.pages.is_over() || core.pages.is_closed() {
                let evicted = core.evicted.load(Ordering::Relaxed) || core.pages.is_evicted();
                core.lose(if evicted { EVICTED } else { STOPPED }, false);
                return None;
            }
            core.go_on();
            if !core.is_open() && !core.counts_any() {
                let until = *parting.get_or_insert_with(|| Instant::now() + PARTING);
                if Instant::now() >= until {
                    return None;
                }
            }
            let strong = served(core);
            *self.frames() = Frames::default();
            match self.resume(&strong) {
                Ok(control) => {
                    strong.relink(control.clone());
                    self.want(Job::Compare);
                    *self.hindrance() = None;
                    return Some(control);
                }
                Err(e) if matches!(e.code(), Code::Version | Code::Expired) => {
                    core.lose(e.message(), true);
                    return None;
                }
                Err(e) => *self.hindrance() = Some(e).filter(|e| e.code() != Code::NoBroker),
            }
            drop(strong);
            std::thread::sleep(pause);
            pause = (2 * pause).min(LATEST);
        }
        None
    }

    /// Why the last attempt to reach the next broker failed, where one was there.
    pub(super) fn hindrance(&self) -> MutexGuard<'_, Option<Error>> {
        self.hindrance.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn resume(&self, inner: &Inner) -> Result<Arc<Control>> {
        let until = Instant::now() + Duration::from_secs(5);
        // Another client may start the next broker; this one waits for it like everybody.
        // One that was closed has no need of a broker, and starts none.
        let start = inner.options.start && inner.is_open();
        let options = Options { interrupted: None, start, ..inner.options.clone() };
        let control = Arc::new(Control::new(dial(&options, Some(until))?));
        control.wakes(&self.waker);
        let p = &inner.pages;
        let resume = Resume { instance: p.instance.clone(), serial: p.serial, secret: p.secret.clone() };
        let (ok, fds): (HelloReply, _) =
            inner.ask(&control, "hello", &hello(&options, Some(resume)), &[sys::alive()?], until)?;
        drop(fds);
        if ok.restore {
            self.restore(inner, &control, until)?;
        } else if !ok.resumed {
            let what = "another broker runs now, and this session's memory is not its";
            return Err(Error::new(Code::Expired, "open a new session", what));
        }
        Ok(control)
    }

    /// Hands a new broker the descriptors of everything mapped here.
    fn restore(&self, inner: &Inner, control: &Control, until: Instant) -> Result<()> {
        let p = &inner.pages;
        let item = |role, serial| RestoreItem { role, serial };
        p.restores.asked(); // before anything is listed
        // Before the groups are listed: a reader that is missing here has its group there.
        let unanswered = inner.joining.unanswered();
        let mapped = inner.mapped();
        let mut items: Vec<(RestoreItem, BorrowedFd<'_>)> =
            vec![(item("broker", 0), p.broker_fd.as_fd()), (item("bell", 0), p.bell_fd.as_fd())];
        let mut lists = [("session", mapped.sessions), ("segment", mapped.segments)].map(|(role, files)| {
            let (there, closed): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, fd)| fd.is_some());
            let there =
                there.into_iter().filter_map(|(serial, fd)| Some((item(role, serial), fd?))).collect::<Vec<_>>();
            (there, closed.into_iter().map(|(serial, _)| serial).collect::<Vec<u64>>())
        });
        let [sessions, segments] = lists.each_mut().map(|(_, closed)| std::mem::take(closed));
        items.extend(lists.iter().flat_map(|(there, _)| there.iter().map(|(item, fd)| (item.clone(), fd.as_fd()))));
        let groups = inner.group_files();
        items.extend(groups.iter().map(|g| (item("group", g.id), g.fd.as_fd())));
        for batch in items.chunks(32) {
            let (items, fds): (Vec<_>, Vec<_>) = batch.iter().cloned().unzip();
            inner.ask::<_, Ignored>(control, "restore", &Restore { items: &items }, &fds, until)?;
        }
        let (ok, _): (HelloReply, _) =
            inner.ask(control, "restored", &Restored { unanswered, sessions, segments }, &[], until)?;
        if !ok.resumed {
            return Err(Error::new(
                Code::BrokerLost,
                "open a new session",
                "the new broker did not take this session over",
            ));
        }
        Ok(())
    }
}

/// The opening that the thread works for, or a helper of its own where the core is not open.
fn served(core: &Arc<Core>) -> Arc<Inner> {
    core.opening().filter(|i| !i.is_closed()).unwrap_or_else(|| Inner::helper(core.clone()))
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn half_an_answer_is_the_loss_of_the_broker() {
        let (ours, mut broker) = UnixStream::pair().unwrap();
        let control = Control::new(ours.into());
        let background = Background::new(Frames::default()).unwrap();
        let (_, answer) = control.request("bye", &Bye { keep: true }, &[]).unwrap();
        assert!(broker.read(&mut [0; 512]).unwrap() > 0); // else its end is a reset
        broker.write_all(b"\x40\0\0\0\0\0\0\0{\"id\":1,").unwrap();
        drop(broker);
        assert_eq!(background.pump_for(&control, &answer).unwrap_err().code(), Code::BrokerLost);
    }
}
