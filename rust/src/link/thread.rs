//! A session's one background thread: it reads the control socket while no caller does, gives replies to
//! their callers, and does what is off the hot path: comparing, recycling on request, new peers, reconnecting.
//!
//! A caller reads the socket itself until its answer is there, unless another does: so the caller is woken
//! once, and not the thread first and then the caller.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::pending::{Asked, Awaits};
use super::served::Job;
use crate::error::{Code, Error, Result, disagree};
use crate::sys::{LastLook, Waker, readable_by, wait_ready};
use crate::wire::{Control, Event, Frames, Incoming, Reply, decode};

/// How long the thread stands aside where a caller reads what has come for itself.
const ASIDE: Duration = Duration::from_micros(100);

/// What is told at once of the broker's last words about a session, by whichever thread reads them.
pub(super) trait Told: Send + Sync {
    /// An operator ends it.
    fn evicted(&self);

    /// The broker is being stopped, and decides on the session.
    fn stopped(&self, control: &Control);
}

/// The thread as others see it.
pub(crate) struct Thread {
    jobs: Mutex<VecDeque<Job>>,
    pub(super) waker: Arc<Waker>,
    pub(super) thread: OnceLock<ThreadId>,
    pub(super) told: OnceLock<Box<dyn Told>>,
    pump: Mutex<Frames>, // locked by the thread that reads the socket
    heard: AtomicU64,    // frames and connections
    hindrance: Mutex<Option<Error>>,
    /// Whether other threads than this crate's are left: by the thread itself.
    pub(super) last: LastLook,
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").field("jobs", &self.jobs).finish_non_exhaustive()
    }
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
            told: OnceLock::new(),
            pump: Mutex::new(frames),
            heard: AtomicU64::new(0),
            hindrance: Mutex::default(),
            last: LastLook::new(),
        })
    }

    /// Whether the caller is the background thread.
    pub(crate) fn is_current(&self) -> bool {
        self.thread.get() == Some(&std::thread::current().id())
    }

    /// How much has come from the broker: while that stays as it was, the broker may be suspended, or none is
    /// connected. Every frame counts, and every connection, since a request that found the former one lost may
    /// be made again by the next, by which nothing else need come.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Counts a connection. Called with the link locked, after the change: a thread that has found the former
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

    /// The pending requests that wait for the broker's answer.
    pub(super) fn take_pending(&self) -> Vec<Asked> {
        let mut jobs = self.jobs();
        let (pending, others) =
            std::mem::take(&mut *jobs).into_iter().partition(|j| matches!(j, Job::PendingRequest(_)));
        *jobs = others;
        let asked = |j| if let Job::PendingRequest(asked) = j { Some(asked) } else { None };
        VecDeque::into_iter(pending).filter_map(asked).collect()
    }

    pub(super) fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
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

    /// Whether pending requests wait for the broker's answer.
    pub(super) fn is_behind(&self) -> bool {
        self.jobs().iter().any(|j| matches!(j, Job::PendingRequest(_)))
    }

    /// Waits until there is something to do, or a time or a moment, then sends what there was no room for, and reads
    /// what has come and delivers it. Called by the thread itself.
    pub(super) fn step(&self, control: &Control, until: Option<Instant>) -> Result<()> {
        let until = Some(self.last.look_before(until));
        let ready = wait_ready(&*control.socket()?, control.is_behind(), &self.waker, until)
            .map_err(|e| Error::new(Code::BrokerLost, "try again", format!("wait for the broker: {e}")).caused_by(e))?;
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

    pub(super) fn frames(&self) -> MutexGuard<'_, Frames> {
        self.pump.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Receives what has come, which another may just have done, and delivers it.
    fn read(&self, control: &Control, frames: &mut Frames) -> Result<()> {
        if !frames.receive(&*control.socket()?)? {
            return Err(Error::new(Code::BrokerLost, "try again", "the broker closed the connection"));
        }
        self.deliver(control, frames)
    }

    pub(super) fn deliver(&self, control: &Control, frames: &mut Frames) -> Result<()> {
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
    pub(super) fn want(&self, job: Job) {
        let mut jobs = self.jobs();
        if !jobs.iter().any(|j| std::mem::discriminant(j) == std::mem::discriminant(&job)) {
            jobs.push_back(job);
        }
    }

    fn note(&self, control: &Control, e: &Event) {
        match e.name.as_str() {
            "trim" => self.want(Job::Reconcile),
            "collect" => self.want(Job::Reclaim),
            "reclaim" => self.want(Job::GiveBack),
            "custody" => self.want(Job::Custody),
            "room" => self.want(Job::MemoryFreed),
            "evicted" => self.told.get().into_iter().for_each(|t| t.evicted()),
            "stopped" => self.told.get().into_iter().for_each(|t| t.stopped(control)),
            // "closing": the broker goes, and another may come, as after its death. And what later versions say.
            _ => {}
        }
    }

    /// Why the last attempt to reach the next broker failed, where one was there.
    pub(super) fn hindrance(&self) -> MutexGuard<'_, Option<Error>> {
        self.hindrance.lock().unwrap_or_else(|p| p.into_inner())
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
        self.post(Job::PendingRequest(asked));
    }
}
