//! What the calls of a session have in common: the functions that it has open, and what is used again.

use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::call;
use super::doors::{Doors, Lends};
use super::endpoint::Endpoint;
use super::given::{Scope, SessionCalls};
use super::known::Known;
use super::name::check_function;
use super::spare::Spare;
use crate::deadline::{deadline, sooner, unanswered};
use crate::error::{Code, Result};
use crate::holding::Opening;
use crate::lanes::FUNCTION;
use crate::sys::PerProcess;
use crate::wire::ops::TopicOpen;

/// Functions that stay open for calls by name, and private ones by which others lend theirs.
const KEPT: usize = 64;

/// What the calls of a session have in common.
#[derive(Debug, Default)]
pub(crate) struct Calls(PerProcess<Shared>);

#[derive(Debug, Default)]
struct Shared {
    functions: Mutex<HashMap<Box<str>, Arc<Known>>>,
    spare: Arc<Spare>,
    /// Private functions that are open, by which others lend theirs.
    lent: Mutex<HashMap<[u8; 16], Arc<Known>>>,
    doors: Arc<Doors>,
}

impl Shared {
    /// What a name meant before, where that has a provider.
    #[inline]
    fn known(&self, name: &str) -> Option<Arc<Known>> {
        locked(&self.functions).get(name).filter(|f| f.has_provider() && !f.topic.is_closed()).cloned()
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|p| p.into_inner())
}

/// Keeps a function open: those that are not kept any longer for it, without a provider or any one of them.
fn keep<K: Clone + Eq + Hash>(all: &mut HashMap<K, Arc<Known>>, key: K, known: Arc<Known>) -> Vec<Arc<Known>> {
    let mut over = Vec::new();
    if all.len() >= KEPT {
        over.extend(all.extract_if(|_, f| !f.has_provider()).map(|(_, f)| f));
    }
    if all.len() >= KEPT {
        let one = all.keys().next().cloned();
        over.extend(one.and_then(|key| all.remove(&key)));
    }
    over.extend(all.insert(key, known));
    over
}

impl Calls {
    fn here(&self) -> Result<&Shared> {
        self.0.get_or(Shared::default)
    }

    /// The function of a name, with a version or without: then the newest one of now. `wait`: until when it is waited
    /// for.
    pub(super) fn function(&self, inner: &Arc<Opening>, name: &str, wait: Option<Duration>) -> Result<Arc<Known>> {
        let shared = self.here()?;
        // One of exactly this name that has a provider is what the broker would find.
        if let Some(known) = shared.known(name).filter(|f| f.name() == name) {
            return Ok(known);
        }
        call::ending(|| self.open(shared, inner, name, wait))
    }

    /// The function of a name whose call has found no provider: another version may have one.
    #[cold]
    pub(super) fn anew(&self, inner: &Arc<Opening>, name: &str) -> Result<Arc<Known>> {
        call::ending(|| self.open(self.here()?, inner, name, None))
    }

    /// The function of a call by name: that which the name meant before, as long as that has a provider. A broker that
    /// does not answer is waited for until the deadline of the call.
    #[inline]
    pub(super) fn function_to_call(
        &self,
        inner: &Arc<Opening>,
        name: &str,
        until: Option<Instant>,
        wait: Option<Duration>,
    ) -> Result<Arc<Known>> {
        let goes_on = || {
            inner.check_interrupted()?;
            call::check_current()
        };
        let shared = self.here()?;
        match shared.known(name) {
            Some(known) => Ok(known),
            None => call::ending(|| unanswered(until, goes_on, || self.open(shared, inner, name, wait))),
        }
    }

    #[cold]
    fn open(&self, shared: &Shared, inner: &Arc<Opening>, name: &str, wait: Option<Duration>) -> Result<Arc<Known>> {
        check_function(name)?;
        let ends = call::current(|c| c.and_then(|c| c.deadline()));
        let until = deadline(wait).filter(|_| wait.is_some());
        let mut pause = Duration::from_millis(5);
        let known = loop {
            match Known::open(inner, name) {
                // The broker rings no session for what is not there.
                Err(e) if e.code() == Code::NotFound && until.is_some_and(|u| Instant::now() < u) => {
                    pause = (2 * pause).min(Duration::from_millis(250));
                    let over = || inner.is_closed() || call::check_current().is_err();
                    inner.wait(None, None, sooner(Some(Instant::now() + pause), ends), over)?;
                    inner.check_open()?;
                    call::check_current()?;
                }
                known => break known?,
            }
        };
        let over = keep(&mut locked(&shared.functions), name.into(), known.clone());
        drop(over); // unlocked: the last user of a topic leaves it
        Ok(known)
    }

    /// The private function of a token.
    pub(super) fn lent(&self, inner: &Arc<Opening>, token: &[u8; 16]) -> Result<Arc<Known>> {
        let shared = self.here()?;
        if let Some(known) = locked(&shared.lent).get(token).filter(|f| !f.topic.is_closed()) {
            return Ok(known.clone());
        }
        let text: String = token.iter().map(|b| format!("{b:02x}")).collect();
        let open = TopicOpen { token: Some(&text), kind: FUNCTION, ..TopicOpen::default() };
        let known = call::ending(|| Known::opened(inner, &open))?;
        let over = keep(&mut locked(&shared.lent), *token, known.clone());
        drop(over); // unlocked: the last user of a topic leaves it
        Ok(known)
    }

    #[inline]
    pub(super) fn endpoint(&self, inner: &Arc<Opening>, of: &Known, all_replied: bool) -> Result<Endpoint> {
        self.here()?.spare.take(inner, of.topic.info.id, all_replied)
    }

    #[inline]
    pub(super) fn give_back(&self, e: Endpoint) {
        if let Ok(shared) = self.here() {
            shared.spare.give_back(e);
        }
    }
}

impl SessionCalls for Calls {
    fn home(self: Arc<Self>, inner: &Arc<Opening>, scope: Option<Arc<Scope>>) -> Arc<dyn Any + Send + Sync> {
        Arc::new(Home { inner: inner.clone(), calls: Arc::downgrade(&self), scope })
    }

    fn sweep(&self) {
        let Some(shared) = self.0.get() else { return };
        let mut all = locked(&shared.lent);
        let over: Vec<_> = all.extract_if(|_, f| !f.has_provider()).collect();
        drop(all);
        drop(over); // unlocked: the last user of a topic leaves it
    }
}

impl Lends for Arc<Calls> {
    fn doors(&self) -> Result<&Arc<Doors>> {
        Ok(&self.here()?.doors)
    }

    fn session_calls(&self) -> Weak<dyn SessionCalls> {
        Arc::<Calls>::downgrade(self)
    }
}

/// Where functions can be called that came with a message.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) inner: Arc<Opening>,
    pub(super) calls: Weak<Calls>,
    /// Of the call that they came with; a result has registered functions alone.
    pub(super) scope: Option<Arc<Scope>>,
}
