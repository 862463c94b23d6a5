//! Calling a function: what is looked at before anything is sent, the wait for its reply, and how a call ends without
//! one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Guard};

use super::args::{Received, Reply};
use super::arguments::{Arguments, IntoArguments};
use super::call;
use super::convert::FromValue;
use super::endpoint::Endpoint;
use super::fate::failure;
use super::name::check_function;
use super::pending::Pending;
use super::record::IS_ERROR;
use super::signature::{By, Signature};
use super::waiting::Waiting;
use crate::deadline::{deadline, within};
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::{FUNCTION, FunctionRecord, TopicState, Topics};
use crate::sys::{self, PerProcess};
use crate::value::Value;
use crate::wire::ops::TopicOpen;

/// Functions that stay open for calls by name.
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
}

impl Known {
    fn open(inner: &Arc<Opening>, name: &str) -> Result<Arc<Known>> {
        let open = TopicOpen { name: Some(name), kind: FUNCTION, ..TopicOpen::default() };
        let topic = Topics::open(inner, "topic.open", &open)?;
        if !topic.is_function() {
            return Err(crate::error::disagree(format!("{topic} was opened as a function")));
        }
        let record = FunctionRecord::of(&topic);
        Ok(Arc::new(Known { topic, record, signature: ArcSwapOption::empty() }))
    }

    pub(super) fn name(&self) -> &str {
        &self.topic.info.name
    }

    /// What it takes, as its newest registration says; nothing while the broker writes it.
    #[inline]
    fn signature(&self) -> Option<Guard<Read>> {
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
    fn described(&self) -> Signature {
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

    #[cold]
    pub(super) fn no_provider(&self) -> Error {
        let what = format!("no process provides the function {}", self.name());
        Error::new(Code::NoProvider, "start a process that provides it, or call with wait", what)
            .with("function", self.name())
    }
}

/// How long a call may take, and how long it waits for a provider.
#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    timeout: Option<Duration>,
    wait: Option<Duration>,
}

impl Calls {
    fn here(&self) -> Result<&Shared> {
        self.0.get_or(Shared::default)
    }

    /// The function of a name, with a version or without: then the newest one. `wait`: until when it is waited for.
    fn function(&self, inner: &Arc<Opening>, name: &str, wait: Option<Duration>) -> Result<Arc<Known>> {
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

    #[inline]
    fn endpoint(&self, inner: &Arc<Opening>) -> Result<Endpoint> {
        let spare = locked(&self.here()?.endpoints).pop();
        match spare {
            Some(e) if e.is_fit() => Ok(e),
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

/// A function that processes provide, to be called. Clones are the same one.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use std::time::Duration;
/// use baton::{Code, Tensor};
///
/// let doubles = session.provide("vision/scale")?.parameter("x", "tensor").optional("by", "float", 2.0);
/// let _doubles = doubles.result("tensor").doc("Scales.").serve(|args, _| {
///     let (mut x, by): (Tensor, f32) = (args.get("x")?, args.get("by")?);
///     // The caller waits, and nothing else has the tensor.
///     unsafe { x.as_mut_slice::<f32>()? }.iter_mut().for_each(|x| *x *= by);
///     Ok(x)
/// })?;
///
/// let scale = session.get_function("vision/scale")?;
/// assert_eq!((scale.doc(), scale.providers()), ("Scales.".to_owned(), 1));
/// assert_eq!(scale.signature(), "(x: tensor, by: float = 2.0) -> tensor");
/// let x = session.from_slice(&[2], &[1f32, 2.0])?.freeze();
/// let y: Tensor = scale.call((&x,))?; // a handle goes there and back
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0]);
/// let e = scale.call::<Tensor>(("text",)).unwrap_err(); // before anything is sent
/// assert_eq!(e.code(), Code::InvalidArgument);
/// scale.timeout(Duration::from_secs(5)).call::<Tensor>((&x, 0.5))?; // at most so long
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Function {
    inner: Arc<Opening>,
    calls: Arc<Calls>,
    known: Arc<Known>,
    limits: Limits,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Function {
    /// Opens the function of a name; waits for one, and for a provider, where that is given.
    pub(crate) fn open(
        inner: &Arc<Opening>,
        calls: &Arc<Calls>,
        name: &str,
        wait: Option<Duration>,
    ) -> Result<Function> {
        let until = deadline(wait);
        let known = calls.function(inner, name, wait)?;
        if wait.is_some() && !known.has_provider() {
            await_provider(inner, &known, until)?;
        }
        let limits = Limits { timeout: None, wait };
        Ok(Function { inner: inner.clone(), calls: calls.clone(), known, limits })
    }

    /// Its name, with its version.
    pub fn name(&self) -> &str {
        self.known.name()
    }

    /// What it does, as its provider says.
    pub fn doc(&self) -> String {
        self.known.described().doc
    }

    /// What it takes and gives, as its provider says.
    pub fn signature(&self) -> String {
        self.known.described().to_text()
    }

    /// How many sessions provide it now.
    pub fn providers(&self) -> u32 {
        self.known.record.registered().providers
    }

    /// The same function, whose calls take so long at most: `Timeout`. The provider is told that the caller does not
    /// wait any more.
    pub fn timeout(mut self, timeout: Duration) -> Function {
        self.limits.timeout = Some(timeout);
        self
    }

    /// The same function, whose calls wait so long for a provider where there is none.
    pub fn wait(mut self, wait: Duration) -> Function {
        self.limits.wait = Some(wait);
        self
    }

    /// Calls the function and waits for what it returns. It ends once: with the result, with the function's own error
    /// (`Remote`), or with `NoProvider`, `ProviderDied`, `Timeout`, `Closed`, `BrokerLost`; within another call
    /// also with `Cancelled`. Arguments that do not fit are `InvalidArgument`, before anything is sent.
    #[inline]
    pub fn call<R: FromValue>(&self, args: impl IntoArguments) -> Result<R> {
        R::from_value(self.invoke(args.into_arguments())?)
    }

    #[inline]
    fn invoke(&self, args: Arguments) -> Result<Value> {
        let (inner, known) = self.here()?;
        invoke(inner, &self.calls, &known, args, self.limits)?.result()
    }

    /// The name of the parameter that is given at a position, where its provider says, for bindings.
    #[doc(hidden)]
    pub fn parameter(&self, i: usize) -> Option<String> {
        let described = self.known.described();
        described.parameters().iter().filter(|p| p.by != By::Name).nth(i).map(|p| p.name.to_string())
    }

    /// As `call`, for bindings.
    #[inline]
    #[doc(hidden)]
    pub fn reply(&self, args: Arguments) -> Result<Reply> {
        let (inner, known) = self.here()?;
        invoke(inner, &self.calls, &known, args, self.limits).map(Reply)
    }

    /// The session and the function to use in this process: in the child of a fork those of its own.
    #[inline]
    fn here(&self) -> Result<(&Arc<Opening>, Cow<'_, Arc<Known>>)> {
        let inner = self.inner.here()?;
        let known = match self.known.topic.inner.is_foreign() {
            false => Cow::Borrowed(&self.known),
            true => Cow::Owned(self.calls.function(inner, self.known.name(), None)?),
        };
        Ok((inner, known))
    }

    /// As [`call`](Function::call), without waiting for what it returns: for the arguments to have room it waits. Each
    /// call that is under way so has a topic for its reply.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    ///
    /// let _square = session.provide("square")?.concurrency(2).serve(|args, _| Ok(args.get::<i64>(0)?.pow(2)))?;
    /// let square = session.get_function("square")?;
    /// let pending = (0..4).map(|i| square.submit((i,))).collect::<Result<Vec<_>, _>>()?;
    /// let sum: i64 = pending.into_iter().map(|p| p.wait::<i64>()).sum::<Result<_, _>>()?;
    /// assert_eq!(sum, 14);
    /// let mut one = square.submit((3,))?;
    /// while !one.wait_for(Duration::from_millis(10)) {} // meanwhile other things
    /// assert!(one.is_over());
    /// assert_eq!(one.wait::<i64>()?, 9);
    /// square.submit((4,))?.cancel(); // wanted no more, as where it is dropped
    /// # Ok(()) }
    /// ```
    pub fn submit(&self, args: impl IntoArguments) -> Result<Pending> {
        let mut args = args.into_arguments();
        let (inner, known) = self.here()?;
        let (until, wait_until) = prepare(inner, &known, &mut args, self.limits)?;
        let endpoint = within(until, || self.calls.endpoint(inner))?;
        Pending::send(inner, &self.calls, known.into_owned(), endpoint, (until, wait_until), args)
    }

    /// As [`call`](Function::call), for async tasks: the thread is free for others meanwhile. Dropped, as by `select!`,
    /// it cancels the call.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let _add = session.function("add", |args, _| Ok(args.get::<i64>(0)? + args.get::<i64>(1)?))?;
    /// let add = session.get_function("add")?;
    /// assert_eq!(add.call_async::<i64>((1, 2)).await?, 3);
    /// # Ok(()) }) }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn call_async<R: FromValue>(&self, args: impl IntoArguments) -> Result<R> {
        let args = args.into_arguments();
        self.submit(args)?.wait_async().await
    }
}

/// A call by name that is to be made; see [`Session::calling`](crate::Session::calling).
#[derive(Debug, Clone)]
#[must_use = "call it"]
pub struct Calling<'a> {
    inner: &'a Arc<Opening>,
    calls: &'a Arc<Calls>,
    name: &'a str,
    limits: Limits,
}

impl<'a> Calling<'a> {
    pub(crate) fn new(inner: &'a Arc<Opening>, calls: &'a Arc<Calls>, name: &'a str) -> Calling<'a> {
        Calling { inner, calls, name, limits: Limits::default() }
    }

    /// As [`Function::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Calling<'a> {
        self.limits.timeout = Some(timeout);
        self
    }

    /// As [`Function::wait`], also for the function itself.
    pub fn wait(mut self, wait: Duration) -> Calling<'a> {
        self.limits.wait = Some(wait);
        self
    }

    /// As [`Function::call`]; `NotFound` where there is no such function.
    #[inline]
    pub fn call<R: FromValue>(&self, args: impl IntoArguments) -> Result<R> {
        let known = self.calls.function(self.inner, self.name, self.limits.wait)?;
        R::from_value(invoke(self.inner, self.calls, &known, args.into_arguments(), self.limits)?.result()?)
    }
}

/// Waits until a function has a provider.
#[cold]
fn await_provider(inner: &Arc<Opening>, known: &Known, until: Option<Instant>) -> Result<()> {
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

/// The sooner of two times.
pub(super) fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A time by the clock of all processes; 0 for never.
#[inline]
pub(super) fn clock_time(until: Option<Instant>) -> u64 {
    until.map_or(0, |u| {
        sys::monotonic().saturating_add(u.saturating_duration_since(Instant::now()).as_nanos() as u64).max(1)
    })
}

/// Looks whether a call can be made, and that its arguments fit. Until when it may take, and until when a provider is
/// waited for.
#[inline]
fn prepare(inner: &Arc<Opening>, known: &Known, args: &mut Arguments, limits: Limits) -> Result<(Time, Time)> {
    let until = sooner(deadline(limits.timeout), call::current(|c| c.and_then(call::Call::deadline)));
    let wait_until = limits.wait.and_then(deadline);
    inner.check_open()?;
    if !known.has_provider() {
        match limits.wait {
            None => return Err(known.no_provider()),
            Some(_) => await_provider(inner, known, sooner(wait_until, until))?,
        }
    }
    if let Some(signature) = known.signature()
        && let Some(s) = &*signature
    {
        args.fit(&s.1).map_err(|e| Error::new(e.code(), e.remedy(), format!("{}: {}", known.name(), e.message())))?;
    }
    Ok((until, wait_until))
}

#[inline]
fn invoke(inner: &Arc<Opening>, calls: &Calls, known: &Known, mut args: Arguments, limits: Limits) -> Result<Received> {
    let (until, wait_until) = prepare(inner, known, &mut args, limits)?;
    let mut endpoint = within(until, || calls.endpoint(inner))?;
    let ended =
        Waiting { inner, known, endpoint: &mut endpoint, until, wait_until, away: None, closer: None }.call(args);
    calls.give_back(endpoint);
    succeeded(known, ended?, until)
}

/// A reply that is a result; else the error that it is. `until`: the call's deadline, which the function had as well.
#[inline]
pub(super) fn succeeded(known: &Known, received: Received, until: Time) -> Result<Received> {
    if received.head.flags & IS_ERROR == 0 {
        return Ok(received);
    }
    Err(failure(known, &received, until.is_some_and(|u| Instant::now() >= u)))
}

/// When something is over; `None`: without a limit.
pub(super) type Time = Option<Instant>;
