//! Holdings that were dropped while streams of this process still use them: each is counted in the row
//! until they have passed. A thread looks after them while there are any, and after tensors that a
//! library's deleter gave back, which may make no call of the driver, and after what is lent and others hold.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::gpu::Devices;
use super::lend::{Keep, Lender};
use super::order::{Done, Use};
use crate::error::Code;
use crate::holding::{Holding, Opening};

const SOONEST: Duration = Duration::from_micros(50);
const LATEST: Duration = Duration::from_millis(50);
const LATEST_OF_LENT: Duration = Duration::from_secs(1);

/// What waits for streams.
#[derive(Default)]
pub(crate) struct DeferredReleases {
    state: Mutex<State>,
    kick: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<(Holding, Vec<Use>)>,
    deleted: Vec<Keep>,
    lender: Option<Arc<Lender>>, // while others hold what it has lent
    running: bool,
}

impl fmt::Debug for DeferredReleases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredReleases").finish_non_exhaustive()
    }
}

impl DeferredReleases {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Adds what is to be looked after, and makes sure that the thread runs.
    fn add(self: &Arc<Self>, add: impl FnOnce(&mut State)) {
        let mut state = self.state();
        add(&mut state);
        if !state.running {
            let me = self.clone();
            // Without a thread the next one to be dropped tries again.
            state.running = std::thread::Builder::new().name("baton-gpu".to_owned()).spawn(move || me.run()).is_ok();
        }
        self.kick.notify_one();
    }

    /// Has the thread look after what a session has lent.
    pub(crate) fn watch(self: &Arc<Self>, lender: &Arc<Lender>) {
        self.add(|s| s.lender = Some(lender.clone()));
    }

    fn run(&self) {
        let mut pause = SOONEST;
        loop {
            let (deleted, lender) = {
                let mut state = self.state();
                (std::mem::take(&mut state.deleted), state.lender.take())
            };
            let news = !deleted.is_empty();
            drop(deleted); // which may add to what waits
            let lender = lender.filter(|l| l.sweep());
            let swept = self.sweep();
            let mut state = self.state();
            if !state.deleted.is_empty() || state.lender.is_some() {
                state.lender = state.lender.take().or(lender);
                pause = SOONEST;
                continue;
            }
            if state.waiting.is_empty() && lender.is_none() {
                state.running = false;
                return;
            }
            let latest = if state.waiting.is_empty() { LATEST_OF_LENT } else { LATEST };
            pause = if swept || news { SOONEST } else { (2 * pause).min(latest) };
            state.lender = lender;
            drop(self.kick.wait_timeout(state, pause));
        }
    }

    /// Lets go of what streams have passed.
    fn sweep(&self) -> bool {
        let mut over = Vec::new();
        {
            let mut state = self.state();
            let all = std::mem::take(&mut state.waiting);
            for (h, uses) in all {
                let place = if uses.iter().all(|u| u.done.passed()) { &mut over } else { &mut state.waiting };
                place.push((h, uses));
            }
        }
        !over.is_empty()
    }
}

impl Devices {
    /// Ends a holding that streams have used: at once if they have passed, else when they have.
    pub(crate) fn defer_release(&self, inner: &Opening, held: Holding, mut uses: Vec<Use>) {
        for u in uses.iter_mut().filter(|u| matches!(u.done, Done::Open)) {
            u.done = match self.mark(inner, &u.gpu, u.stream) {
                Ok(point) => point.map_or(Done::Now, Done::At),
                // A graph that has captured the stream may use it at any time.
                Err(e) if e.code() == Code::Conflict => return std::mem::forget(held),
                // The stream may be gone; what it did is over when all the GPU's work is.
                Err(_) if u.gpu.device.synchronize().is_ok() => Done::Now,
                // That cannot be known: it stays counted until this process has ended.
                Err(_) => return std::mem::forget(held),
            };
        }
        if !uses.iter().all(|u| u.done.passed()) {
            self.deferred.add(|s| s.waiting.push((held, uses)));
        }
    }

    /// Drops a tensor that a library has given back, on a thread that may call the driver.
    pub(crate) fn deleted(&self, t: Keep) {
        self.deferred.add(|s| s.deleted.push(t));
    }

    /// Waits until nothing of this process uses memory on a GPU any more: the broker gives it to others
    /// when the session is over.
    pub(crate) fn end(&self, inner: &Opening) {
        for g in self.all() {
            // Of a context that is lost nothing runs any more.
            let _ = g.device.synchronize();
        }
        self.deferred.sweep();
        if let Some(l) = self.lender.get() {
            l.end(inner);
        }
        self.orders.lock().unwrap_or_else(|p| p.into_inner()).end();
    }
}
