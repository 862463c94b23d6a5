//! What a session's thread does: it serves one connection after another, until the session is over.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::hello::hello;
use super::life::{EVICTED, Link};
use super::options::Options;
use super::served::{Ending, Job, Served};
use super::start::dial;
use super::thread::{Thread, Told};
use crate::error::{Code, Error, Result};
use crate::sys;
use crate::wire::ops::{Bye, ByeReply, HelloReply};
use crate::wire::{Control, Frames, decode};

/// How often the refcounts of a closed session are looked at, and whether a child lives that counted nothing.
const LOOK_AT_REFCOUNTS: Duration = Duration::from_secs(1);

/// How long the thread waits before it tries to reconnect again.
const SOONEST: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_millis(200);

/// How long the thread of a session that holds nothing goes on trying to tell a broker that it was closed.
const PARTING: Duration = Duration::from_secs(30);

/// How long what a broker has said is read where a request to it could not be sent.
const REFUSED: Duration = Duration::from_secs(1);

/// How often what is mapped is compared with the broker's records although no event asks for it: an event may
/// be lost with a connection.
const COMPARE_EVERY: Duration = Duration::from_secs(5);

/// Why a session is lost whose broker was stopped.
const STOPPED: &str = "the broker was stopped";

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

/// The session of a thread, while it is there.
struct Of(Weak<Link>, Weak<dyn Served>);

impl Told for Of {
    fn evicted(&self) {
        if let Some(link) = self.0.upgrade() {
            link.evicted.store(true, Ordering::Relaxed);
        }
    }

    fn stopped(&self, control: &Control) {
        if let (Some(link), Some(served)) = (self.0.upgrade(), self.1.upgrade()) {
            link.acknowledge(&*served, control);
        }
    }
}

impl Thread {
    /// Starts the thread. It keeps the session, and ends when that is closed and counts nothing any more.
    pub(crate) fn start(self: &Arc<Self>, link: &Arc<Link>, served: Arc<dyn Served>) -> Result<()> {
        let (me, link) = (self.clone(), link.clone());
        let _ = self.told.set(Box::new(Of(Arc::downgrade(&link), Arc::downgrade(&served))));
        let thread = sys::own_thread("baton", Some(&self.waker), move |_| me.run(&link, &served));
        let _ = self.thread.set(sys::started(thread)?.thread().id());
        Ok(())
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
            let look = quiet.then(|| Instant::now() + LOOK_AT_REFCOUNTS);
            let due = [look, served.lets_go_at()].into_iter().flatten().fold(compare_at, Instant::min);
            if let Err(e) = self.step(&control, Some(due)) {
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
                self.want(Job::Reconcile);
                compare_at = Instant::now() + COMPARE_EVERY;
            }
            if served.lets_go_at().is_some_and(|at| Instant::now() >= at) {
                self.want(Job::LetGo);
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
        // Of a session that is lost lanes may be named still, and children may have what was kept for them at a fork: its
        // refcounts stay as long.
        let gives_up = |opening: &Arc<super::Opened>| served.gives_up(&**opening);
        while link.is_lost() && (unfinished.as_ref().is_some_and(|o| !gives_up(o)) || served.is_watched()) {
            std::thread::sleep(LOOK_AT_REFCOUNTS);
            self.last.look();
            served.tick();
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
        // After what its openings ask.
        let line = link.line();
        let asked = control.request("bye", &Bye { keep }, &[]);
        drop(line);
        let (json, _) = self.pump_for(control, &asked?.1)?;
        decode::<ByeReply>("bye", &json).map(|r| r.held)
    }

    fn work(&self, link: &Link, served: &Arc<dyn Served>, control: &Control) {
        loop {
            let Some(job) = self.jobs().pop_front() else { return };
            match job {
                Job::PendingRequest(asked) => {
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
        link.note_search(true);
        while !link.is_over() {
            self.last.look();
            served.tick();
            if let Some(ending) = served.ending() {
                let evicted = link.is_evicted() || ending == Ending::Evicted;
                link.lose(served, if evicted { link.evicted_by() } else { link.lost_by(STOPPED) }, false);
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
                    self.want(Job::Reconcile);
                    *self.hindrance() = None;
                    return Some(control);
                }
                Err(Unresumed::Unknown(e)) => {
                    // The session may be over by now, and the broker another.
                    link.lose(served, link.lost_by(if link.is_evicted() { EVICTED } else { e.message() }), true);
                    return None;
                }
                Err(Unresumed::Denied(e)) => {
                    // An evicted one is over whatever its user may do. That broker counts for what its lanes name.
                    let why = if link.is_evicted() { link.evicted_by() } else { link.denied_by(&e) };
                    link.lose(served, why, false);
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
}
