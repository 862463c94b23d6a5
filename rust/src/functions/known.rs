//! A function that a session has open.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::{ArcSwapOption, Guard};

use super::call;
use super::signature::Signature;
use crate::deadline::{is_past, sooner};
use crate::error::{Code, Error, Result, disagree};
use crate::holding::Opening;
use crate::lanes::{FUNCTION, FunctionRecord, TopicState, Topics};
use crate::wire::ops::TopicOpen;

/// What a function is called that came as an argument.
pub(super) const LENT: &str = "a function argument";

/// A signature with the version of the record that it was read of.
type Read = Option<Arc<(u64, Signature)>>;

/// A function that is open here.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) topic: Arc<TopicState>,
    pub(super) record: FunctionRecord,
    /// The name that was asked for, with a version or without; empty of one that came as an argument.
    pub(super) asked: Box<str>,
    signature: ArcSwapOption<(u64, Signature)>,
    /// Tasks that wait for room, one behind the other.
    #[cfg(feature = "tokio")]
    pub(super) turns: tokio::sync::Mutex<()>,
}

impl Known {
    pub(super) fn open(inner: &Arc<Opening>, name: &str) -> Result<Arc<Known>> {
        Known::opened(inner, &TopicOpen { name: Some(name), kind: FUNCTION, ..TopicOpen::default() })
    }

    pub(super) fn opened(inner: &Arc<Opening>, open: &TopicOpen<'_>) -> Result<Arc<Known>> {
        let topic = Topics::open(inner, "topic.open", open)?;
        if !topic.is_function() {
            return Err(disagree(format!("{topic} was opened as a function")));
        }
        let record = FunctionRecord::of(&topic);
        Ok(Arc::new(Known {
            topic,
            record,
            asked: open.name.unwrap_or_default().into(),
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

    /// Whether the name that was asked for may mean another function by now.
    pub(super) fn may_change(&self) -> bool {
        !self.asked.contains('@')
    }

    pub(super) fn has_provider(&self) -> bool {
        self.record.registered().providers > 0
    }

    #[cold]
    pub(super) fn late(&self) -> Error {
        let what = format!("the call of {} has not ended in time", self.name());
        if self.topic.info.name.is_empty() {
            return Error::new(Code::Timeout, "wait longer", what); // it was lent: no command shows its calls
        }
        if !self.has_provider() {
            let what = format!("{what}; no process provides the function: it was deleted, or its providers have ended");
            let events = self.topic.inner.options.typed("events", &[]);
            let remedy = format!(
                "start a process that provides it, or give a call that runs longer; `{events} --kind function` says how its providers ended"
            );
            return Error::new(Code::Timeout, remedy, what).with("function", self.name());
        }
        let remedy = format!(
            "wait longer, or look with `{}`",
            self.topic.inner.options.typed("why", &["function", self.name()])
        );
        Error::new(Code::Timeout, remedy, what).with("function", self.name())
    }

    /// What a call that was not sent ends with.
    #[cold]
    pub(super) fn unsent(&self, e: Error) -> Error {
        match e.code() {
            Code::Closed if e.is_end() => self.no_provider(),
            _ => e,
        }
    }

    /// How a call ends that was not sent: one whose deadline has passed while a broker was waited for ends by that.
    #[cold]
    pub(super) fn by_deadline(&self, e: Error, until: Option<Instant>) -> Error {
        let without_broker = e.is_away() || e.code() == Code::Full && self.topic.inner.broker_away();
        if without_broker && is_past(until) { self.late() } else { e }
    }

    #[cold]
    pub(super) fn no_provider(&self) -> Error {
        let what = format!("no process provides the function {}", self.name());
        Error::new(Code::NoProvider, "start a process that provides it, or wait for one", what)
            .with("function", self.name())
    }
}

/// Until when a call may take, and until when a provider is waited for.
pub(super) type Times = (Option<Instant>, Option<Instant>);

/// Waits until a function has a provider: `Timeout` where the call has no more time, `NoProvider` after the wait.
#[cold]
pub(super) fn await_provider(inner: &Arc<Opening>, known: &Known, (until, wait_until): Times) -> Result<()> {
    let over = || known.has_provider() || known.topic.is_closed() || inner.is_closed();
    let until_then = sooner(sooner(until, wait_until), call::current(|c| c.and_then(|c| c.deadline())));
    let wait = || inner.wait(None, None, until_then, || over() || call::check_current().is_err());
    let found = call::ending(wait)?;
    inner.check_open()?;
    call::check_current()?;
    if known.topic.is_closed() {
        return Err(known.topic.ended());
    }
    match found && known.has_provider() {
        true => Ok(()),
        false if is_past(until) => Err(known.late()),
        false => Err(known.no_provider()),
    }
}
