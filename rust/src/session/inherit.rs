//! What a child of a fork makes of the sessions that it inherited: a session that counts the same, and the heirs
//! that lead there.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::connect;
use super::core::Core;
use super::heir::{Heir, Left, Missed, Place, References};
use super::pin::Pins;
use crate::error::{Code, Error, Result, closed, disagree, expired};
use crate::holding::Opening;
use crate::layout::{PRIVATE, limits, session_file};
use crate::ledger::Entries;
use crate::link::{Thread, answered, greet, greeted, leave, unreachable_at, went_away};
use crate::memory::{Inherited, SessionFiles, map_file};
use crate::shm::fence;
use crate::sys;
use crate::wire::ops::{AttachChunk, AttachReply, AttachRequest};
use crate::wire::{Control, Frames, Reply, decode};

/// How long a child tries to reach a broker, and waits for one that is suspended: a program that forks only to run
/// another one waits for its child. One that is slow has longer.
const REACH: Duration = Duration::from_secs(2);
/// How often a child looks for a broker that is not there.
const TICK: Duration = Duration::from_millis(10);

/// The heir of a session that holds nothing.
pub(super) fn idle(of: &Core) -> Heir {
    let options = of.link.options.clone();
    let begin = Box::new(move || connect(options.clone()));
    Heir { place: Arc::new(Place::new(None, References::new(), begin)), missed: Missed::default() }
}

/// The heir of a session of which this was counted.
pub(super) fn heir(of: &Core, counted: Result<Counted>) -> Heir {
    match counted.and_then(|c| c.into_session(of)) {
        Ok((holder, references, chunks)) => {
            let held = holder.clone();
            let begin = Box::new(move || {
                Core::of(&held).ok_or_else(|| closed("the session"))?.start()?;
                Ok(held.clone())
            });
            let place = Place::new(Some(holder), references, begin);
            Heir { place: Arc::new(place), missed: Missed { all: None, chunks } }
        }
        Err(e) => {
            let why = not_inherited("no session could be opened while this process was forked", e);
            Heir { missed: Missed { all: Some(why), ..Missed::default() }, ..idle(of) }
        }
    }
}

/// What a child of this process has in the place of the session that `heir` is the heir of, which was made of
/// `of`. What this process has missed its child has not either.
pub(super) fn next(heir: &Heir, of: &Core) -> Heir {
    let next = heir.present().and_then(|s| Core::of(s)?.heir.get());
    let mut missed = heir.missed.clone();
    if let Some(next) = next {
        missed.chunks.extend(next.missed.chunks.clone());
        missed.all = missed.all.or_else(|| next.missed.all.clone());
    }
    let place = next.map_or_else(|| idle(of).place, |next| next.place.clone());
    Heir { place, missed }
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

/// A new session's refcounts count what was inherited: the parent may let go. The rest of the session can
/// be made after that.
pub(super) struct Counted {
    control: Control,
    frames: Frames,
    files: SessionFiles,
    taken: Taken,
}

/// What a new session has counted, chunk by chunk: one that cannot be counted costs only what lies in it.
#[derive(Default)]
struct Taken {
    inherited: Vec<Inherited>,
    references: References,
    missed: HashMap<u64, Error>,
}

impl Counted {
    /// Opens a session and counts in its refcounts what was pinned, as far as it is still there.
    pub(super) fn new(from: &Core, held: &[Pins], until: Instant) -> Result<Counted> {
        let reach = until.min(Instant::now() + REACH);
        loop {
            let control = Control::new(dial(&from.link.options.socket, reach)?);
            let suspended = || match Instant::now() >= reach && from.memory.files.broker_is_suspended() {
                true => Err(Error::new(Code::Timeout, "let it go on (SIGCONT)", "the broker is suspended")),
                false => Ok(()),
            };
            match Counted::over(&control, from, held, until, &suspended) {
                Ok((frames, files, taken)) => return Ok(Counted { control, frames, files, taken }),
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

    fn over(
        control: &Control,
        from: &Core,
        held: &[Pins],
        until: Instant,
        look: &dyn Fn() -> Result<()>,
    ) -> Result<(Frames, SessionFiles, Taken)> {
        let mut frames = Frames::default();
        let (json, fds) = greet(control, &mut frames, &from.link.options, Some(until), look)?;
        let mut wait = |from: &Receiver<Reply>| -> Reply { answered(control, &mut frames, from, Some(until), look) };
        let files = SessionFiles::open(greeted(&json)?, fds)?;
        if files.instance != from.memory.files.instance {
            return Err(expired("another broker runs now"));
        }
        let mut taken = Taken::default();
        for some in held.chunks(limits::PEERS) {
            // Where there is no room for one the others are asked for.
            let mut attached: Vec<Result<()>> = some.iter().map(|p| files.reserve_refcounts(p.of.chunk)).collect();
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
                if let Err(e) = attached.and_then(|()| taken.count(&files, from, p)) {
                    let why = match e.code() {
                        Code::Expired => e, // nothing of it is held any more
                        _ => not_inherited("it was not counted while this process was forked", e),
                    };
                    taken.missed.insert(p.of.serial, why);
                }
            }
        }
        Ok((frames, files, taken))
    }

    /// Whether what was pinned of a chunk is counted.
    pub(super) fn has(&self, p: &Pins) -> bool {
        !self.taken.missed.contains_key(&p.of.serial)
    }

    fn into_session(self, from: &Core) -> Result<(Arc<Opening>, References, HashMap<u64, Error>)> {
        // Where this fails the session ends with this process: its refcounts count what arrays go on reading.
        let Taken { inherited, references, missed } = self.taken;
        let (options, control) = (from.link.options.clone(), Arc::new(self.control));
        let thread = Thread::new(self.frames)?;
        let core =
            Core::new(options, self.files, control, thread, inherited, from.link.waiter.spins, from.memory.traces)?;
        Ok((Arc::new(core).open(), references, missed))
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
    /// Counts the storages of one chunk, to which the new session is attached: refcount up, then the generation,
    /// as a bare handle is opened, but of a private one too. It stays private: most children give nothing away, and a
    /// program that is about to be replaced by exec does not say that it is. The parent keeps them there; should it
    /// be dead, the look tells.
    fn count(&mut self, files: &SessionFiles, from: &Core, p: &Pins) -> Result<()> {
        let file = match p.own {
            true => map_file(&from.memory.files.session_fd, session_file::BYTES, false)?,
            false => p.of.file.clone(),
        };
        let entries = Entries::new(&file);
        for s in &p.storages {
            files.refcounts.take_many(s.index, s.references);
            // SYNC generation: the refcounts were raised first; either the owner's second collect sees that, or
            // RETIRING or a later generation is seen here.
            fence();
            if entries.word(s.index) & !PRIVATE == s.generation {
                let left = Left { serial: p.of.serial, generation: s.generation, count: s.references };
                self.references.insert(s.index, left);
            } else {
                for _ in 0..s.references {
                    files.refcounts.drop(s.index);
                }
            }
        }
        self.inherited.push(Inherited { file, ..p.of.clone() });
        Ok(())
    }
}

impl Core {
    /// Notes in the child of a fork what took its place.
    pub(super) fn succeed(&self, heir: &Arc<Heir>) {
        let _ = self.heir.get_or(|| heir.clone());
        let _ = self.heirs.get_or(|| heir.clone());
        self.link.succeed();
    }
}
