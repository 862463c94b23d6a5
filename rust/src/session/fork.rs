//! What fork does to sessions.
//!
//! A session's pages are those of one process: a child has none of them mapped. Where the parent holds
//! references, the child opens a session of its own while fork is under way, counts them in its row,
//! and tells the parent, which has kept them pinned meanwhile. Everything that the child has inherited
//! leads there from then on (see [`Heir`]). Where nothing is held, fork costs a look, and the child
//! opens a session when it first needs one.
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

use super::Options;
use super::core::Core;
use super::heir::{Counted, Heir};
use super::inner::Inner;
use super::pin::Pins;
use crate::error::Result;
use crate::layout::session_file;
use crate::sys::{self, Lent, PerProcess};

/// How long a broker that was reached may take to give a child its session, and how long the parent
/// waits for that: a machine may stand still for a while.
const LIMIT: Duration = Duration::from_secs(10);

type Sessions = Vec<Weak<Core>>;

/// The sessions that this process opened or inherited. The lock is held from before a fork until after
/// it, so there is one fork at a time.
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
    alive: Option<Lent>,
    until: Instant,
}

/// Notes a session, whose process may fork.
pub(super) fn register(inner: &Arc<Inner>) -> Result<()> {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    let mut sessions = SESSIONS.get_or(Mutex::default)?.lock().unwrap_or_else(|p| p.into_inner());
    if !HOOKED.load(Ordering::Relaxed) {
        sys::at_fork(prepare, in_parent, in_child)?;
        HOOKED.store(true, Ordering::Relaxed);
    }
    sessions.retain(|s| s.strong_count() > 0);
    sessions.push(Arc::downgrade(inner.core()));
    Ok(())
}

/// Opens a session that was closed, and still holds something, once more.
pub(super) fn reopened(o: &Options) -> Option<Arc<Inner>> {
    let cores: Vec<_> = {
        let sessions = SESSIONS.get()?.lock().unwrap_or_else(|p| p.into_inner());
        sessions.iter().filter_map(Weak::upgrade).collect()
    };
    cores.iter().find_map(|core| core.open_again(o))
}

fn under_way() -> Option<Fork> {
    // SAFETY: the caller holds the lock of SESSIONS, or is the only thread of a child.
    unsafe { (*UNDER_WAY.0.get()).take() }
}

extern "C" fn prepare() {
    let Some(sessions) = SESSIONS.get() else { return };
    let sessions = sessions.lock().unwrap_or_else(|p| p.into_inner());
    let pinned = |core: Arc<Core>| {
        // Of a session that is lost nothing is counted any more: a child has what is mapped, as its parent.
        let pin = || if core.is_lost() { Vec::new() } else { core.pin_all() };
        let held = (!core.is_foreign()).then(pin);
        (core, held)
    };
    let all: Vec<_> = sessions.iter().filter_map(Weak::upgrade).map(pinned).collect();
    // Without a pipe nobody waits, and the child looks whether what it counts is still there.
    let pipe = if holding(&all).next().is_some() { sys::pipe().ok() } else { None };
    // Should this process end from here on, the broker keeps what it counts as long as a child has the file
    // mapped: until it has counted, however long it stands still.
    let alive = holding(&all).next().and_then(|_| sys::lend());
    let now = sys::monotonic();
    holding(&all).for_each(|core| core.pages.session.store(session_file::FORKING, now));
    let fork = Fork { sessions, all, pipe, alive, until: Instant::now() + LIMIT };
    // SAFETY: this thread holds the lock of SESSIONS.
    unsafe { *UNDER_WAY.0.get() = Some(fork) };
}

/// The sessions of which a child inherits something.
fn holding(all: &[(Arc<Core>, Option<Vec<Pins>>)]) -> impl Iterator<Item = &Arc<Core>> {
    let holds = |held: &Option<Vec<Pins>>| held.as_ref().is_some_and(|h| !h.is_empty());
    all.iter().filter(move |(_, held)| holds(held)).map(|(core, _)| core)
}

extern "C" fn in_parent() {
    let Some(Fork { sessions, all, pipe, alive, until }) = under_way() else { return };
    let counted = pipe.is_some_and(|(from, to)| {
        drop(to); // so that the child's end is seen
        sys::readable_by(&from, until).unwrap_or(false)
    });
    // A child that has said nothing may count yet, though this process runs on: should that end, the broker
    // looks whether the child still has the file.
    if counted {
        holding(&all).for_each(|core| core.pages.session.store(session_file::FORKING, 0));
    }
    if let Some(alive) = alive {
        alive.take_back();
    }
    all.iter().for_each(|(core, held)| core.unpin(held.as_deref().unwrap_or_default()));
    drop(sessions);
}

extern "C" fn in_child() {
    let Some(Fork { sessions, all, pipe, alive, .. }) = under_way() else { return };
    std::mem::forget(sessions); // the parent's
    let until = Instant::now() + LIMIT; // the parent's may be over, if this process stood still
    let mut heirs = Vec::new();
    let counted = |(core, held): &(Arc<Core>, Option<Vec<Pins>>)| match held.as_deref() {
        None | Some([]) => None,
        Some(held) => Some(Counted::new(core, held, until)),
    };
    let counted: Vec<_> = all.iter().map(counted).collect();
    if let Some(alive) = alive {
        alive.leave();
    }
    if let Some((_, to)) = &pipe {
        sys::say(to); // the parent may let go, and runs on
    }
    for ((core, held), counted) in all.iter().zip(counted) {
        if held.is_some() {
            let heir = Arc::new(counted.map_or_else(|| Heir::idle(core), |c| Heir::new(core, c)));
            let _ = core.heir.get_or(|| heir.clone());
            heirs.push(heir);
        }
    }
    for (core, _) in all.iter().filter(|(_, held)| held.is_none()) {
        let heir = core.heir.last().and_then(|h| h.next()).unwrap_or_else(|| Arc::new(Heir::idle(core)));
        let _ = core.heir.get_or(|| heir);
    }
    let of_heirs = heirs.iter().filter_map(|h| h.holder()).map(|s| s.core());
    let known = all.iter().map(|(core, _)| core).chain(of_heirs).map(Arc::downgrade).collect();
    let _ = SESSIONS.get_or(|| Mutex::new(known));
    heirs.iter().for_each(|h| h.wake());
    all.into_iter().for_each(|(core, _)| std::mem::forget(core));
}
