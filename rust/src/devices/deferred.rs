//! Holdings that were dropped while streams of this process still use them: each is counted in the refcounts
//! until they have passed. A thread looks after them while there are any, and after tensors that a
//! library's deleter gave back, which may make no call of the driver, and after what is lent and others hold.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::lend::{Keep, Lender};
use super::order::Use;
use crate::holding::Holding;
use crate::sys::own_thread;

const SOONEST: Duration = Duration::from_micros(50);
const LATEST: Duration = Duration::from_millis(50);
const LATEST_OF_LENT: Duration = Duration::from_secs(1);

/// What waits for streams.
#[derive(Default)]
pub(super) struct DeferredReleases {
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

    /// Adds a holding that streams use.
    pub(super) fn wait_for(self: &Arc<Self>, held: Holding, uses: Vec<Use>) {
        self.add(|s| s.waiting.push((held, uses)));
    }

    /// Adds what a library has given back, to be dropped on a thread that may call the driver.
    pub(super) fn drop_elsewhere(self: &Arc<Self>, t: Keep) {
        self.add(|s| s.deleted.push(t));
    }

    /// Adds what is to be looked after, and makes sure that the thread runs.
    fn add(self: &Arc<Self>, add: impl FnOnce(&mut State)) {
        let mut state = self.state();
        add(&mut state);
        if !state.running {
            let me = self.clone();
            // Without a thread the next one to be dropped tries again.
            state.running = own_thread("baton-gpu", None, move |_| me.run()).is_ok();
        }
        self.kick.notify_one();
    }

    /// Has the thread look after what a session has lent.
    pub(super) fn watch(self: &Arc<Self>, lender: &Arc<Lender>) {
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

    /// Lets go of what streams have passed; whether there was any.
    pub(super) fn sweep(&self) -> bool {
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
