//! What fork does to sessions.
//!
//! A session's files are those of one process: a child has none of them mapped. Where the parent holds
//! references, the child opens a session of its own while fork is under way, counts them in its refcounts,
//! and tells the parent, which has kept them pinned meanwhile. Everything that the child has inherited
//! leads there from then on (see [`Heir`](super::heir::Heir)). What the child could not count stays pinned as long as it lives
//! (see [`legacy`](super::legacy)). Where nothing is held, fork costs a look, and the child opens a session
//! when it first needs one.
//!
//! The hooks are called by the thread that forks, inside fork: in the child it is the only one, and a
//! lock that another thread held at the fork stays locked. So the child takes none that is older than
//! itself, and drops nothing that another thread may have been changing: what belonged to the parent's
//! session is left where it is.

use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::Session;
use super::core::Core;
use super::inherit::{self, Counted};
use super::pin::COUNTED;
use super::pin::Pins;
use crate::error::Result;
use crate::holding::Opening;
use crate::link::Options;
use crate::sys::{self, ForkMarks, Laid, Lent, PerProcess};

/// How long a broker that was reached may take to give a child its session, and how long the parent
/// waits for that: a machine may be suspended for a while.
const LIMIT: Duration = Duration::from_secs(10);

/// The sessions that this process opened or inherited.
#[derive(Default)]
struct Sessions {
    all: Vec<Weak<Core>>,
    marks: ForkMarks,
}

/// The lock is held from before a fork until after it, so there is one fork at a time.
static SESSIONS: PerProcess<Mutex<Sessions>> = PerProcess::new();

static UNDER_WAY: UnderWay = UnderWay(UnsafeCell::new(None));

/// The fork that is under way.
struct UnderWay(UnsafeCell<Option<Fork>>);

// SAFETY: it is looked at by the hooks alone: in the parent by the thread that holds the lock of
// SESSIONS, in the child by its only one.
unsafe impl Sync for UnderWay {}

struct Fork {
    sessions: MutexGuard<'static, Sessions>,
    /// Those that live, and what they hold; `None`: of a session that was itself inherited.
    all: Vec<(Arc<Core>, Option<Vec<Pins>>)>,
    pipe: Option<(OwnedFd, OwnedFd)>,
    /// What a child takes away once it has counted all: seen by the broker, and by the parent.
    alive: Option<Lent>,
    mark: Option<Laid>,
    until: Instant,
}

/// Notes a session, whose process may fork.
pub(super) fn register(core: &Arc<Core>) -> Result<()> {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    let mut sessions = SESSIONS.get_or(Mutex::default)?.lock().unwrap_or_else(|p| p.into_inner());
    if !HOOKED.load(Ordering::Relaxed) {
        sys::stay_loaded();
        sys::at_fork(prepare, in_parent, in_child)?;
        HOOKED.store(true, Ordering::Relaxed);
    }
    sys::look_at_its_end();
    sessions.marks.prepare()?;
    sessions.all.retain(|s| s.strong_count() > 0);
    sessions.all.push(Arc::downgrade(core));
    Ok(())
}

/// The sessions that live. The lock is not held while they are used.
fn living() -> Vec<Arc<Core>> {
    let Some(sessions) = SESSIONS.get() else { return Vec::new() };
    let sessions = sessions.lock().unwrap_or_else(|p| p.into_inner());
    sessions.all.iter().filter_map(Weak::upgrade).collect()
}

/// Opens a session that was closed, and still holds something, once more.
pub(super) fn reopened(o: &Options) -> Option<Arc<Opening>> {
    living().iter().find_map(|core| core.open_again(o))
}

/// The sessions of this process that are open.
pub(crate) fn open_sessions() -> Vec<Session> {
    living().iter().filter_map(|core| core.opened()).map(Session::of).collect()
}

fn under_way() -> Option<Fork> {
    // SAFETY: the caller holds the lock of SESSIONS, or is the only thread of a child.
    unsafe { (*UNDER_WAY.0.get()).take() }
}

extern "C" fn prepare() {
    let Some(sessions) = SESSIONS.get() else { return };
    let mut sessions = sessions.lock().unwrap_or_else(|p| p.into_inner());
    let pinned = |core: Arc<Core>| {
        // Of a session that is lost nothing is counted any more: a child has what is mapped, as its parent.
        let pin = || if core.link.is_lost() { Vec::new() } else { core.pin_all() };
        let held = (!core.link.is_foreign()).then(pin);
        (core, held)
    };
    let all: Vec<_> = sessions.all.iter().filter_map(Weak::upgrade).map(pinned).collect();
    // Without a pipe nothing is waited for: what was pinned is kept until it is seen that the child counted it.
    let (pipe, mark, alive) = match holding(&all).next() {
        Some(_) => (sys::pipe().ok(), sessions.marks.lay(), sys::lend()),
        None => (None, None, None),
    };
    holding(&all).for_each(|(core, _)| core.begin_fork());
    let fork = Fork { sessions, all, pipe, alive, mark, until: Instant::now() + LIMIT };
    // SAFETY: this thread holds the lock of SESSIONS.
    unsafe { *UNDER_WAY.0.get() = Some(fork) };
}

/// The sessions of which a child inherits something, and what.
fn holding(all: &[(Arc<Core>, Option<Vec<Pins>>)]) -> impl Iterator<Item = (&Arc<Core>, &[Pins])> {
    let held = all.iter().filter_map(|(core, held)| Some((core, held.as_deref()?)));
    held.filter(|(_, held)| !held.is_empty())
}

extern "C" fn in_parent() {
    let Some(Fork { mut sessions, all, pipe, alive, mark, until }) = under_way() else { return };
    let said = pipe.map_or_else(Vec::new, |(from, to)| {
        drop(to); // so that the child's end is seen
        sys::hear(&from, holding(&all).map(|(_, held)| held.len()).sum(), until)
    });
    if let Some(alive) = alive {
        alive.take_back();
    }
    let (mut said, by) = (&said[..], mark.as_ref().map(|t| &t.mark));
    let mut keeps = false;
    for (core, held) in holding(&all) {
        let (of_this, others) = said.split_at(held.len().min(said.len()));
        keeps |= core.end_fork(held, of_this, by);
        said = others;
    }
    if keeps && let Some(by) = by {
        sessions.marks.keep_by(by);
    }
    drop(mark); // this process's mapping: from here on it is seen whether the child is gone
    if keeps {
        holding(&all).for_each(|(core, _)| core.end_legacies()); // at once where no child was made
    }
    drop(sessions);
}

extern "C" fn in_child() {
    let Some(Fork { mut sessions, all, pipe, alive, mark, .. }) = under_way() else { return };
    // The parent's, of which this one makes its own.
    drop(std::mem::take(&mut sessions.marks));
    std::mem::forget(sessions);
    let until = Instant::now() + LIMIT; // the parent's may be over, if this process was suspended
    let mut heirs = Vec::new();
    let counted = |(core, held): &(Arc<Core>, Option<Vec<Pins>>)| match held.as_deref() {
        None | Some([]) => None,
        Some(held) => Some(Counted::new(core, held, until)),
    };
    let counted: Vec<_> = all.iter().map(counted).collect();
    let words = holding(&all).zip(counted.iter().flatten()).flat_map(|((_, held), counted)| {
        held.iter().map(move |p| u8::from(counted.as_ref().is_ok_and(|c| c.has(p))) * COUNTED)
    });
    let words: Vec<u8> = words.collect();
    if words.iter().all(|w| *w == COUNTED) {
        alive.into_iter().for_each(Lent::leave);
        drop(mark);
    } else {
        mark.into_iter().for_each(Laid::stay);
    }
    if let Some((_, to)) = &pipe {
        sys::say(to, &words); // the parent may let go, and runs on
    }
    for ((core, held), counted) in all.iter().zip(counted) {
        if held.is_some() {
            let heir = Arc::new(counted.map_or_else(|| inherit::idle(core), |c| inherit::heir(core, c)));
            core.succeed(&heir);
            heirs.push(heir);
        }
    }
    for (core, _) in all.iter().filter(|(_, held)| held.is_none()) {
        let heir = Arc::new(core.heir.last().map_or_else(|| inherit::idle(core), |h| inherit::next(h, core)));
        core.succeed(&heir);
    }
    let of_heirs = heirs.iter().filter_map(|h| h.holder()).filter_map(|s| Core::of(s));
    let known = all.iter().map(|(core, _)| core).chain(of_heirs).map(Arc::downgrade).collect();
    let _ = SESSIONS.get_or(|| Mutex::new(Sessions { all: known, marks: ForkMarks::default() }));
    sys::look_at_its_end(); // this thread is the only one of the program in this process
    heirs.iter().for_each(|h| h.wake());
    all.into_iter().for_each(|(core, _)| std::mem::forget(core));
}
