//! The functions that a session has open, and what its calls use again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Guard};

use super::call;
use super::doors::{Door, Doors};
use super::endpoint::Endpoint;
use super::name::check_function;
use super::signature::Signature;
use crate::deadline::deadline;
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::{FUNCTION, FunctionRecord, TopicState, Topics};
use crate::sys::PerProcess;
use crate::wire::ops::TopicOpen;

/// What a function is called that came as an argument.
pub(super) const LENT: &str = "a function argument";

/// Functions that stay open for calls by name, and private ones by which others lend theirs.
const KEPT: usize = 64;
/// Topics for replies that stay for the next calls.
const SPARE: usize = 256;

/// What the calls of a session have in common.
#[derive(Debug, Default)]
pub(crate) struct Calls(PerProcess<Shared>);

#[derive(Debug, Default)]
struct Shared {
    functions: Mutex<HashMap<Box<str>, Arc<Known>>>,
    endpoints: Mutex<Vec<Endpoint>>,
    /// Private functions that are open, by which others lend theirs.
    lent: Mutex<HashMap<[u8; 16], Arc<Known>>>,
    doors: Doors,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|p| p.into_inner())
}

/// A signature with the version of the record that it was read of.
type Read = Option<Arc<(u64, Signature)>>;

/// A function that is open here.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) topic: Arc<TopicState>,
    pub(super) record: FunctionRecord,
    signature: ArcSwapOption<(u64, Signature)>,
    /// Tasks that wait for room, one behind the other.
    #[cfg(feature = "tokio")]
    pub(super) turns: tokio::sync::Mutex<()>,
}

impl Known {
    pub(super) fn open(inner: &Arc<Opening>, name: &str) -> Result<Arc<Known>> {
        Known::opened(inner, &TopicOpen { name: Some(name), kind: FUNCTION, ..TopicOpen::default() })
    }

    fn opened(inner: &Arc<Opening>, open: &TopicOpen<'_>) -> Result<Arc<Known>> {
        let topic = Topics::open(inner, "topic.open", open)?;
        if !topic.is_function() {
            return Err(crate::error::disagree(format!("{topic} was opened as a function")));
        }
        let record = FunctionRecord::of(&topic);
        Ok(Arc::new(Known {
            topic,
            record,
            signature: ArcSwapOption::empty(),
            #[cfg(feature = "tokio")]
            turns: tokio::sync::Mutex::default(),
        }))
    }

    pub(super) fn name(&self) -> &str {
        match &*self.topic.info.name {
            "" => LENT,
            name => name,
        }
    }

    /// What it takes, as its newest registration says; nothing while the broker writes it.
    #[inline]
    pub(super) fn signature(&self) -> Option<Guard<Read>> {
        let known = self.signature.load();
        let version = self.record.version();
        if known.as_ref().is_some_and(|k| k.0 == version) {
            return Some(known);
        }
        self.read_signature()?;
        Some(self.signature.load())
    }

    #[cold]
    fn read_signature(&self) -> Option<()> {
        let (version, _, text) = self.record.description()?;
        // One that is none was let in by a broker: nothing is looked at then.
        let read = (version, Signature::parse(&text).unwrap_or_default());
        self.signature.store(Some(Arc::new(read)));
        Some(())
    }

    /// As `signature`, for people.
    pub(super) fn described(&self) -> Signature {
        let known = self.signature();
        known.and_then(|s| s.as_ref().map(|s| s.1.clone())).unwrap_or_default()
    }

    pub(super) fn has_provider(&self) -> bool {
        self.record.registered().providers > 0
    }

    #[cold]
    pub(super) fn late(&self) -> Error {
        let what = format!("the call of {} has not ended in time", self.name());
        Error::new(Code::Timeout, "wait longer, or look with `baton show function`", what).with("function", self.name())
    }

    /// What a call that was not sent ends with.
    #[cold]
    pub(super) fn unsent(&self, e: Error) -> Error {
        match e.code() {
            Code::Closed if e.is_end() => self.no_provider(),
            _ => e,
        }
    }

    #[cold]
    pub(super) fn no_provider(&self) -> Error {
        let what = format!("no process provides the function {}", self.name());
        Error::new(Code::NoProvider, "start a process that provides it, or call with wait", what)
            .with("function", self.name())
    }
}

impl Calls {
    fn here(&self) -> Result<&Shared> {
        self.0.get_or(Shared::default)
    }

    /// The function of a name, with a version or without: then the newest one. `wait`: until when it is waited for.
    pub(super) fn function(&self, inner: &Arc<Opening>, name: &str, wait: Option<Duration>) -> Result<Arc<Known>> {
        let shared = self.here()?;
        if let Some(known) = locked(&shared.functions).get(name).filter(|f| f.has_provider() && !f.topic.is_closed()) {
            return Ok(known.clone());
        }
        self.open(shared, inner, name, wait)
    }

    #[cold]
    fn open(&self, shared: &Shared, inner: &Arc<Opening>, name: &str, wait: Option<Duration>) -> Result<Arc<Known>> {
        check_function(name)?;
        let until = deadline(wait).filter(|_| wait.is_some());
        let mut pause = Duration::from_millis(5);
        let known = loop {
            match Known::open(inner, name) {
                // The broker rings no session for what is not there.
                Err(e) if e.code() == Code::NotFound && until.is_some_and(|u| Instant::now() < u) => {
                    pause = (2 * pause).min(Duration::from_millis(250));
                    inner.wait(None, None, Some(Instant::now() + pause), || inner.is_closed())?;
                    inner.check_open()?;
                }
                known => break known?,
            }
        };
        let mut functions = locked(&shared.functions);
        let mut over = Vec::new();
        if functions.len() >= KEPT {
            over.extend(functions.extract_if(|_, f| !f.has_provider()).map(|(_, f)| f));
        }
        if functions.len() >= KEPT {
            let one = functions.keys().next().cloned(); // any
            over.extend(one.and_then(|name| functions.remove(&name)));
        }
        over.extend(functions.insert(name.into(), known.clone()));
        drop(functions);
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
        let known = Known::opened(inner, &open)?;
        let mut all = locked(&shared.lent);
        let mut over = Vec::new();
        if all.len() >= KEPT {
            over.extend(all.extract_if(|_, f| !f.has_provider()).map(|(_, f)| f));
        }
        if all.len() >= KEPT {
            let one = all.keys().next().copied(); // any
            over.extend(one.and_then(|token| all.remove(&token)));
        }
        over.extend(all.insert(*token, known.clone()));
        drop(all);
        drop(over); // unlocked: the last user of a topic leaves it
        Ok(known)
    }

    /// Leaves private functions whose lender has ended.
    pub(super) fn sweep(&self) {
        let Some(shared) = self.0.get() else { return };
        let mut all = locked(&shared.lent);
        let over: Vec<_> = all.extract_if(|_, f| !f.has_provider()).collect();
        drop(all);
        drop(over); // unlocked: the last user of a topic leaves it
    }

    /// A door that no thread has now.
    pub(super) fn spare_door(&self) -> Option<Arc<Door>> {
        self.here().ok()?.doors.spare()
    }

    pub(super) fn give_back_door(&self, door: Arc<Door>) {
        if let Ok(shared) = self.here() {
            shared.doors.give_back(door);
        }
    }

    /// The door of the thread that serves what is waited for later.
    pub(super) fn keeper(self: &Arc<Self>, inner: &Arc<Opening>) -> Result<Arc<Door>> {
        self.here()?.doors.keeper(inner, self)
    }

    #[inline]
    pub(super) fn endpoint(&self, inner: &Arc<Opening>, settled: bool) -> Result<Endpoint> {
        let spare = locked(&self.here()?.endpoints).pop();
        match spare {
            Some(e) if e.is_fit() && (!settled || e.is_settled()) => Ok(e),
            over => {
                drop(over);
                Endpoint::new(inner)
            }
        }
    }

    #[inline]
    pub(super) fn give_back(&self, e: Endpoint) {
        if let Ok(shared) = self.here()
            && e.is_fit()
        {
            let mut spare = locked(&shared.endpoints);
            if spare.len() < SPARE {
                spare.push(e);
            }
        }
    }
}

/// Waits until a function has a provider.
#[cold]
pub(super) fn await_provider(inner: &Arc<Opening>, known: &Known, until: Option<Instant>) -> Result<()> {
    let over = || known.has_provider() || known.topic.is_closed() || inner.is_closed();
    let cancelled = || call::current(|c| c.is_some_and(|c| c.cancelled()));
    let found = inner.wait(None, None, until, || over() || cancelled())?;
    inner.check_open()?;
    if known.topic.is_closed() {
        return Err(known.topic.ended());
    }
    match found && known.has_provider() {
        true => Ok(()),
        false => Err(known.no_provider()),
    }
}
