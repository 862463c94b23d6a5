//! The session of a child that takes the place of one that it inherited.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::error::{Error, Result, expired};
use crate::holding::{self, Opening};
use crate::message::Ref;

/// What a child has in the place of an inherited session.
#[derive(Debug)]
pub(crate) struct Heir {
    pub(super) place: Arc<Place>,
    pub(super) missed: Missed,
}

/// The session that takes the place of others: of one, or of all that a line of parents had.
pub(super) struct Place {
    /// Whose refcounts count what was inherited.
    holder: Option<Arc<Opening>>,
    /// Has the session run: the holder, whose thread is started, or a new one.
    begin: Box<Begin>,
    references: Mutex<References>,
    running: OnceLock<Arc<Opening>>,
    opening: Mutex<()>,
}

/// How a session comes to run. It is called until it succeeds, and by one thread at a time.
pub(super) type Begin = dyn Fn() -> Result<Arc<Opening>> + Send + Sync;

/// What is left of the inherited references, by storage index.
pub(super) type References = HashMap<u32, Left>;

/// What was not inherited although it was there, and why.
#[derive(Debug, Default, Clone)]
pub(super) struct Missed {
    /// Nothing was.
    pub(super) all: Option<Error>,
    /// By serials of the chunks in which the storages lie.
    pub(super) chunks: HashMap<u64, Error>,
}

#[derive(Debug)]
pub(super) struct Left {
    pub(super) serial: u64,
    pub(super) generation: u64,
    pub(super) count: u64,
}

impl Heir {
    pub(super) fn holder(&self) -> Option<&Arc<Opening>> {
        self.place.holder.as_ref()
    }

    /// The session in the place, where one was inherited or opened since.
    pub(super) fn present(&self) -> Option<&Arc<Opening>> {
        self.holder().or_else(|| self.place.running.get())
    }

    /// Starts the thread of a session that was opened during fork. Where that fails now, the call that needs
    /// the session tries again.
    pub(super) fn wake(&self) {
        if self.holder().is_some() {
            let _ = self.place.session();
        }
    }
}

impl holding::Heir for Heir {
    fn session(&self) -> Result<&Arc<Opening>> {
        self.place.session()
    }

    fn opened(&self) -> Option<&Arc<Opening>> {
        self.place.running.get()
    }

    fn has(&self, r: Ref) -> bool {
        self.place.has(r)
    }

    fn let_go(&self, r: Ref) {
        self.place.let_go(r);
    }

    fn why_missed(&self, r: Ref) -> Error {
        let why = self.missed.chunks.get(&r.serial).or(self.missed.all.as_ref());
        why.cloned().unwrap_or_else(|| expired("it was made, or given back, while this process was forked"))
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("holder", &self.holder).field("running", &self.running).finish_non_exhaustive()
    }
}

impl Place {
    pub(super) fn new(holder: Option<Arc<Opening>>, references: References, begin: Box<Begin>) -> Place {
        Place { holder, begin, references: Mutex::new(references), running: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// The session, opened at the first call where nothing was inherited.
    fn session(&self) -> Result<&Arc<Opening>> {
        if let Some(s) = self.running.get() {
            return Ok(s);
        }
        let _one = self.opening.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(s) = self.running.get() {
            return Ok(s);
        }
        let s = (self.begin)()?;
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
        holder.memory.let_go(r.index, false);
    }
}
