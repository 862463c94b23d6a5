//! The session of a child that takes the place of one that it inherited.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use super::background::Background;
use super::core::Core;
use super::holding::{Held, Holding};
use super::inner::Inner;
use super::pages::{Pages, map_file};
use super::pin::{Inherited, Pins};
use super::start::unreachable_at;
use super::tensor::Tensor;
use super::{Options, Session, answered, connect, greet, greeted, leave, went_away};
use crate::error::{Code, Error, Result, closed, disagree, expired};
use crate::layout::{limits, session_file};
use crate::ledger::Entries;
use crate::message::Ref;
use crate::shm::{Segment, fence};
use crate::sys;
use crate::wire::ops::{AttachChunk, AttachReply, AttachRequest};
use crate::wire::{Control, Frames, Reply, decode};

/// How long a child tries to reach a broker.
const REACH: Duration = Duration::from_secs(2);
/// How often a child looks for a broker that is not there.
const TICK: Duration = Duration::from_millis(10);

/// What a child has in the place of an inherited session.
#[derive(Debug)]
pub(crate) struct Heir {
    place: Arc<Place>,
    missed: Missed,
}

/// The session that takes the place of others: of one, or of all that a line of parents had.
#[derive(Debug)]
struct Place {
    options: Options,
    /// Whose row counts what was inherited.
    holder: Option<Arc<Inner>>,
    references: Mutex<References>,
    running: OnceLock<Arc<Inner>>,
    opening: Mutex<()>,
}

/// What is left of the inherited references, by storage index.
type References = HashMap<u32, Left>;

/// What was not inherited although it was there, and why.
#[derive(Debug, Default, Clone)]
struct Missed {
    /// Nothing was.
    all: Option<Error>,
    /// By serials of the chunks in which the storages lie.
    chunks: HashMap<u64, Error>,
}

#[derive(Debug)]
struct Left {
    serial: u64,
    generation: u64,
    count: u64,
}

impl Heir {
    /// The heir of a session that holds nothing.
    pub(super) fn idle(of: &Core) -> Heir {
        Heir { place: Arc::new(Place::new(of, None, References::new())), missed: Missed::default() }
    }

    /// The heir of a session of which this was counted.
    pub(super) fn new(of: &Core, counted: Result<Counted>) -> Heir {
        match counted.and_then(|c| c.into_session(of)) {
            Ok((holder, references, chunks)) => {
                Heir { place: Arc::new(Place::new(of, Some(holder), references)), missed: Missed { all: None, chunks } }
            }
            Err(e) => {
                let why = not_inherited("no session could be opened while this process was forked", e);
                Heir { missed: Missed { all: Some(why), ..Missed::default() }, ..Heir::idle(of) }
            }
        }
    }

    pub(super) fn holder(&self) -> Option<&Arc<Inner>> {
        self.place.holder.as_ref()
    }

    /// What a child of this process has in the place of the session that this is the heir of, which
    /// was made of `of`. What this process has missed its child has not either.
    pub(super) fn next(&self, of: &Core) -> Heir {
        let session = self.holder().or_else(|| self.opened());
        let next = session.and_then(|s| s.heir.get());
        let mut missed = self.missed.clone();
        if let Some(next) = next {
            missed.chunks.extend(next.missed.chunks.clone());
            missed.all = missed.all.or_else(|| next.missed.all.clone());
        }
        let place = next.map_or_else(|| Heir::idle(of).place, |next| next.place.clone());
        Heir { place, missed }
    }

    /// Starts the thread of a session that was opened during fork. Where that fails now, whoever needs
    /// the session tries again.
    pub(super) fn wake(&self) {
        if self.holder().is_some() {
            let _ = self.place.session();
        }
    }

    /// The session if there is one.
    pub(super) fn opened(&self) -> Option<&Arc<Inner>> {
        self.place.running.get()
    }

    /// Why a reference of before the fork was not inherited.
    fn why_missed(&self, r: Ref) -> Error {
        let why = self.missed.chunks.get(&r.serial).or(self.missed.all.as_ref());
        why.cloned().unwrap_or_else(|| expired("it was made, or given back, while this process was forked"))
    }
}

impl Place {
    fn new(of: &Core, holder: Option<Arc<Inner>>, references: References) -> Place {
        Place {
            options: of.options.clone(),
            holder,
            references: Mutex::new(references),
            running: OnceLock::new(),
            opening: Mutex::new(()),
        }
    }

    /// The session, opened at the first call where nothing was inherited.
    fn session(&self) -> Result<&Arc<Inner>> {
        if let Some(s) = self.running.get() {
            return Ok(s);
        }
        let _one = self.opening.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(s) = self.running.get() {
            return Ok(s);
        }
        let s = match &self.holder {
            Some(s) => s.background.start(s.core(), s.link()).map(|()| s.clone())?,
            None => connect(self.options.clone())?,
        };
        Ok(self.running.get_or_init(|| s))
    }

    fn references(&self) -> MutexGuard<'_, References> {
        self.references.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn has(&self, r: Ref) -> bool {
        self.references().get(&r.index).is_some_and(|i| i.serial == r.serial && i.generation == r.generation)
    }

    /// Drops an inherited reference.
    fn let_go(&self, r: Ref) {
        let Some(holder) = &self.holder else { return };
        let mut all = self.references();
        let Some(i) = all.get_mut(&r.index).filter(|i| i.serial == r.serial && i.generation == r.generation) else {
            return;
        };
        i.count -= 1;
        if i.count == 0 {
            all.remove(&r.index);
        }
        holder.let_go(r.index, false);
    }
}

/// The error of what a child has not, though its parent had it.
fn not_inherited(what: &str, why: Error) -> Error {
    // Without a broker that answers nothing can be inherited, whatever stands in its way.
    let code = match why.code() {
        Code::NoBroker | Code::Timeout | Code::Expired => Code::BrokerLost,
        other => other,
    };
    let remedy = match code {
        Code::BrokerLost => "open what is needed anew, by name or handle".to_owned(),
        _ => format!("{}; then open what is needed anew, by name or handle", why.remedy()),
    };
    Error::new(code, remedy, format!("{what}: {}", why.message()))
}

/// A new session's row counts what was inherited: the parent may let go. The rest of the session can
/// be made after that.
pub(super) struct Counted {
    control: Control,
    frames: Frames,
    pages: Pages,
    taken: Taken,
}

/// What a new session has counted, chunk by chunk: one that cannot be had costs only what lies in it.
#[derive(Default)]
struct Taken {
    inherited: Vec<Inherited>,
    references: References,
    missed: HashMap<u64, Error>,
}

impl Counted {
    /// Opens a session and counts in its row what was pinned, as far as it is still there.
    pub(super) fn new(from: &Core, held: &[Pins], until: Instant) -> Result<Counted> {
        let reach = until.min(Instant::now() + REACH);
        loop {
            let control = Control::new(dial(&from.options.socket, reach)?);
            match Counted::over(&control, from, held, until) {
                Ok((frames, pages, taken)) => return Ok(Counted { control, frames, pages, taken }),
                Err(e) => {
                    leave(&control);
                    if !went_away(&e) || Instant::now() + TICK >= reach {
                        return Err(e);
                    }
                }
            }
            std::thread::sleep(TICK);
        }
    }

    fn over(control: &Control, from: &Core, held: &[Pins], until: Instant) -> Result<(Frames, Pages, Taken)> {
        let mut frames = Frames::default();
        let (json, fds) = greet(control, &mut frames, &from.options, Some(until))?;
        let mut wait = |from: &Receiver<Reply>| -> Reply { answered(control, &mut frames, from, Some(until), None) };
        let pages = Pages::open(greeted(&json)?, fds)?;
        if pages.instance != from.pages.instance {
            return Err(expired("another broker runs now"));
        }
        let mut taken = Taken::default();
        for some in held.chunks(limits::PEERS) {
            // Where there is no room for one the others are asked for.
            let mut attached: Vec<Result<()>> = some.iter().map(|p| pages.reserve_row(p.of.chunk)).collect();
            let ask = |(p, _): (&Pins, _)| AttachChunk { chunk: p.of.chunk, serial: p.of.serial, file: false };
            let chunks: Vec<_> = some.iter().zip(&attached).filter(|(_, r)| r.is_ok()).map(ask).collect();
            let asked = control.request("attach", &AttachRequest { chunks: &chunks }, &[]);
            let answered = asked.and_then(|(_, answer)| wait(&answer));
            let mut answers = answered.and_then(|(json, _)| decode::<AttachReply>("attach", &json)).and_then(|ok| {
                let right = ok.chunks.len() == chunks.len();
                let wrong = || disagree("attach answered another number of chunks");
                right.then(|| ok.chunks.into_iter()).ok_or_else(wrong)
            });
            for one in attached.iter_mut().filter(|r| r.is_ok()) {
                *one = match &mut answers {
                    Ok(rest) => rest.next().and_then(|a| a.error).map_or(Ok(()), |e| Err(e.into())),
                    Err(e) => Err(e.clone()),
                };
            }
            for (p, attached) in some.iter().zip(attached) {
                if let Err(e) = attached.and_then(|()| taken.count(&pages, from, p)) {
                    let why = match e.code() {
                        Code::Expired => e, // nothing of it is held any more
                        _ => not_inherited("it was not counted while this process was forked", e),
                    };
                    taken.missed.insert(p.of.serial, why);
                }
            }
        }
        Ok((frames, pages, taken))
    }

    /// Whether what was pinned of a chunk is counted.
    pub(super) fn has(&self, p: &Pins) -> bool {
        !self.taken.missed.contains_key(&p.of.serial)
    }

    fn into_session(self, from: &Core) -> Result<(Arc<Inner>, References, HashMap<u64, Error>)> {
        // Where this fails the session ends with this process: its row counts what arrays go on reading.
        let background = Arc::new(Background::new(self.frames)?);
        let mut core =
            Core::new(from.options.clone(), self.pages, Arc::new(self.control), background, from.waiter.spins)?;
        let Taken { inherited, references, missed } = self.taken;
        core.inherited = inherited;
        Ok((Core::open(Arc::new(core)), references, missed))
    }
}

/// Connects to the socket of the parent's broker, which may be about to be replaced.
fn dial(socket: &str, until: Instant) -> Result<std::os::fd::OwnedFd> {
    loop {
        match sys::connect(Path::new(socket), Some(until)) {
            Ok(fd) => return Ok(fd),
            // Nothing else in this process gives a descriptor back.
            Err(e) if sys::is_no_descriptors(&e) || Instant::now() + TICK >= until => {
                return Err(unreachable_at(Path::new(socket), &e));
            }
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

impl Taken {
    /// Counts the storages of one chunk, to which the new session is attached: row up, then the generation,
    /// as a bare handle is opened. The parent keeps them there; should it be dead, the look tells.
    fn count(&mut self, pages: &Pages, from: &Core, p: &Pins) -> Result<()> {
        let entries = match p.own {
            true => Entries::new(&map_file(&from.pages.session_fd, session_file::BYTES, false)?),
            false => p.of.entries.clone(),
        };
        for s in &p.storages {
            pages.row.take_many(s.index, s.references);
            // SYNC generation: the row was raised first; either the owner's second collect sees that, or
            // RETIRING or a later generation is seen here.
            fence();
            if entries.word(s.index) == s.generation {
                let left = Left { serial: p.of.serial, generation: s.generation, count: s.references };
                self.references.insert(s.index, left);
            } else {
                for _ in 0..s.references {
                    pages.row.drop(s.index);
                }
            }
        }
        self.inherited.push(Inherited { entries, ..p.of.clone() });
        Ok(())
    }
}

impl Inner {
    /// The session to use in this process: this one, or in the child of a fork its heir.
    #[inline]
    pub(crate) fn here(self: &Arc<Inner>) -> Result<&Arc<Inner>> {
        if self.is_foreign() { self.succeeded() } else { Ok(self) }
    }

    #[cold]
    fn succeeded(&self) -> Result<&Arc<Inner>> {
        let heir = self.heir.get().ok_or_else(forked)?;
        if self.is_lost() {
            return Err(self.why_closed());
        }
        if self.closed.is_set() {
            return Err(closed("the session"));
        }
        heir.place.session()
    }

    /// As [`here`](Inner::here), without opening one.
    pub(crate) fn opened_here(self: &Arc<Inner>) -> Option<&Arc<Inner>> {
        if self.is_foreign() { self.heir.get()?.opened() } else { Some(self) }
    }

    /// Whether another session took the place of this one in a child.
    pub(crate) fn is_succeeded_by(&self, other: &Arc<Inner>) -> bool {
        let heir = self.heir.get().and_then(|h| h.opened());
        heir.is_some_and(|s| Arc::ptr_eq(s, other))
    }
}

/// The error of a session that came into this process by a fork that nobody was told of.
pub(super) fn forked() -> Error {
    let what = "the session was opened by the process that this one was forked from, without the C library's fork";
    Error::new(Code::Closed, "use fork(), or open a session here", what)
}

impl Session {
    /// The session to use in this process.
    #[inline]
    pub(crate) fn inner(&self) -> Result<&Arc<Inner>> {
        self.inner.here()
    }
}

impl Tensor {
    /// Refuses a tensor of another session, unless a child inherited it and sends in its own.
    #[cold]
    pub(crate) fn check_successor(&self, inner: &Arc<Inner>, name: &str) -> Result<()> {
        if self.held.inner().is_succeeded_by(inner) {
            return self.held.check();
        }
        Err(self.not_of(inner, name))
    }
}

impl Holding {
    /// Refuses what a child did not inherit. In the process that made the holding it costs a look.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.inner().is_foreign() { self.check_inherited() } else { Ok(()) }
    }

    #[cold]
    fn check_inherited(&self) -> Result<()> {
        if self.inner().is_lost() {
            return Ok(()); // no row counts it any more, and it stays mapped
        }
        let heir = self.inner().heir.get().ok_or_else(forked)?;
        self.storages.iter().filter_map(|s| s.at.segment.device()).try_for_each(|d| d.device.check_process())?;
        let missed = self.storages.iter().find(|s| !self.is_inherited() || !heir.place.has(s.reference));
        missed.map_or(Ok(()), |s| Err(heir.why_missed(s.reference)))
    }

    /// Whether it was there before the fork began.
    fn is_inherited(&self) -> bool {
        self.era < self.inner().era.load(Ordering::Relaxed)
    }

    /// Lets go of what a child inherited with this holding.
    #[cold]
    pub(crate) fn let_go_inherited(&self) {
        if let Some(heir) = self.inner().heir.get().filter(|_| self.is_inherited()) {
            self.storages.iter().for_each(|s| heir.place.let_go(s.reference));
        }
    }

    /// The address of a storage of this holding, mapped for a use.
    #[inline]
    pub(crate) fn address(&self, held: &Held, write: bool) -> Result<*mut u8> {
        if !self.inner().is_foreign() {
            return held.address(write);
        }
        // The session keeps the segment as long as its row counts the storage.
        held.address_in(&*self.segment(held, write)?, write)
    }

    /// The segment of a storage of this holding, mapped or to be mapped for a use.
    pub(crate) fn segment(&self, held: &Held, write: bool) -> Result<Arc<Segment>> {
        let s = &held.at.segment;
        if !self.inner().is_foreign() || s.mapped(write).is_some() {
            return Ok(s.clone());
        }
        // Another thread of the parent may have been mapping it: this process maps it anew.
        self.inner().here()?.segment(held.at.chunk.segment, held.at.chunk.segment_serial, write)
    }
}
