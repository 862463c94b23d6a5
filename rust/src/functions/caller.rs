//! Calling a function: what is looked at before anything is sent, the wait for its reply, and how a call ends without
//! one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Guard};

use super::args::Received;
use super::arguments::{Arguments, IntoArguments, give_back};
use super::call;
use super::convert::FromValue;
use super::endpoint::Endpoint;
use super::name::check_function;
use super::record::{Head, IS_ERROR, IS_PART, Link, MOST_CHAIN, REQUEST};
use super::signature::Signature;
use crate::crash_point;
use crate::deadline::{A_MOMENT, deadline, within};
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::{FUNCTION, FunctionRecord, Sent, TopicState, Topics};
use crate::layout::{broker_file, limits, session_record, topic_record};
use crate::link::Broker;
use crate::memory::text;
use crate::shm::Stands;
use crate::sys::{self, PerProcess};
use crate::value::Value;
use crate::waits::Look;
use crate::wire::ops::{Fate, FunctionFate, TopicOpen};

/// Functions that stay open for calls by name.
const KEPT: usize = 64;
/// Topics for replies that stay for the next calls.
const SPARE: usize = 32;
/// How long a call waits for a broker, before one of whose provider nothing is left is given up.
const BROKER_AWAY: Duration = Duration::from_secs(5);

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

/// A function that is open here.
#[derive(Debug)]
struct Known {
    topic: Arc<TopicState>,
    record: FunctionRecord,
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

    fn name(&self) -> &str {
        &self.topic.info.name
    }

    /// What it takes, as its newest registration says; nothing while the broker writes it.
    #[inline]
    fn signature(&self) -> Option<Guard<Option<Arc<(u64, Signature)>>>> {
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

    fn has_provider(&self) -> bool {
        self.record.registered().providers > 0
    }

    #[cold]
    fn no_provider(&self) -> Error {
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
    fn give_back(&self, e: Endpoint) {
        if let Ok(shared) = self.here()
            && e.is_fit()
        {
            let mut spare = locked(&shared.endpoints);
            if spare.len() < SPARE {
                return spare.push(e);
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
/// scale.timeout(Duration::from_secs(5)).call::<Tensor>((&x, 0.5))?;
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
        invoke(self.inner.here()?, &self.calls, &self.known, args, self.limits)
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
        R::from_value(invoke(self.inner, self.calls, &known, args.into_arguments(), self.limits)?)
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
fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A time by the clock of all processes; 0 for never.
#[inline]
fn clock_time(until: Option<Instant>) -> u64 {
    until.map_or(0, |u| {
        sys::monotonic().saturating_add(u.saturating_duration_since(Instant::now()).as_nanos() as u64).max(1)
    })
}

#[inline]
fn invoke(
    inner: &Arc<Opening>,
    calls: &Calls,
    known: &Arc<Known>,
    mut args: Arguments,
    limits: Limits,
) -> Result<Value> {
    let until = sooner(deadline(limits.timeout), call::current(|c| c.and_then(call::Call::deadline)));
    let wait_until = limits.wait.and_then(|w| deadline(w));
    let known = if known.topic.inner.is_foreign() { &calls.function(inner, known.name(), None)? } else { known };
    inner.check_open()?;
    if !known.has_provider() {
        match wait_until {
            None => return Err(known.no_provider()),
            Some(_) => await_provider(inner, known, sooner(wait_until, until))?,
        }
    }
    if let Some(signature) = known.signature()
        && let Some(s) = &*signature
    {
        args.fit(&s.1).map_err(|e| Error::new(e.code(), e.remedy(), format!("{}: {}", known.name(), e.message())))?;
    }
    let mut endpoint = within(until, || calls.endpoint(inner))?;
    let ended = Waiting { inner, known, endpoint: &mut endpoint, until, wait_until, away: None }.call(args);
    calls.give_back(endpoint);
    let received = ended?;
    if received.head.flags & IS_ERROR == 0 {
        return received.result();
    }
    Err(failure(known, &received))
}

/// A call that is under way.
struct Waiting<'a> {
    inner: &'a Arc<Opening>,
    known: &'a Known,
    endpoint: &'a mut Endpoint,
    until: Option<Instant>,
    /// Until when a provider is waited for, if one is.
    wait_until: Option<Instant>,
    /// Since when there has been no broker.
    away: Option<Instant>,
}

impl Waiting<'_> {
    fn call(mut self, args: Arguments) -> Result<Received> {
        let (info, token) = (&self.endpoint.topic.info, self.endpoint.token);
        let (topic, topic_id) = (info.topic, info.id);
        let number = self.endpoint.begin();
        let head = Head { kind: REQUEST, flags: 0, call: number, time: clock_time(self.until), topic, topic_id, token };
        let mut payload = call::current(|outer| match outer {
            None => args.into_payload(&head, [].into_iter()),
            Some(outer) => {
                let chain = self.chain(outer)?;
                args.into_payload(&head, chain.into_iter())
            }
        })?;
        let sent = self.known.topic.send_call(&mut payload, self.until);
        give_back(&mut payload);
        drop(payload);
        crash_point::at("call-sent");
        let sent = sent.map_err(|e| match e.code() {
            Code::Closed if e.is_end() => self.known.no_provider(),
            _ => e,
        })?;
        self.reply(&sent)
    }

    /// The chain of a call within another, which must end somewhere.
    #[cold]
    fn chain(&self, outer: &call::Call) -> Result<Vec<Link>> {
        let mut chain = outer.chain.clone();
        chain.push(outer.link);
        let this = self.known.topic.info.id;
        let within = chain.iter().filter(|l| l.topic_id == this).count() as u32;
        let text = || {
            let names = chain.iter().map(|l| name_of(self.inner, l.topic_id));
            names.chain([self.known.name().to_owned()]).collect::<Vec<_>>().join(" > ")
        };
        if chain.len() > MOST_CHAIN {
            let what = format!("calls within each other are {MOST_CHAIN} deep: {}", text());
            return Err(Error::new(Code::InvalidArgument, "call less deep", what));
        }
        if within > 0 && within >= self.known.record.concurrency() {
            let what = format!("the call would wait for itself: {}", text());
            return Err(Error::new(Code::InvalidArgument, "register the function with a higher concurrency", what));
        }
        Ok(chain)
    }

    /// Waits for the reply, or for what says that none comes.
    fn reply(&mut self, sent: &Sent) -> Result<Received> {
        loop {
            if let Some(received) = self.endpoint.poll()? {
                if received.head.flags & IS_PART != 0 {
                    continue; // none was asked for
                }
                return Ok(received);
            }
            let mut parked = false;
            let (inner, known, away) = (self.inner, self.known, &mut self.away);
            let waits = self.wait_until.filter(|u| Instant::now() < *u);
            let found = self.endpoint.reader.wait_beside(sooner(self.until, waits), |look| {
                if look == Look::Spinning {
                    return false;
                }
                parked = true;
                is_news(inner, known, sent, away, self.wait_until)
            });
            let found = found.inspect_err(|_| self.give_up(sent))?; // a signal's
            if found && !parked {
                continue; // mostly a reply
            }
            if let Some(received) = self.endpoint.poll()? {
                return Ok(received);
            }
            let late = self.until.is_some_and(|u| Instant::now() >= u);
            if let Some(ended) = self.ended(sent, late) {
                return ended;
            }
        }
    }

    /// How the call has ended without a reply, if it has.
    #[cold]
    fn ended(&mut self, sent: &Sent, late: bool) -> Option<Result<Received>> {
        if let Err(e) = self.inner.check_open() {
            self.give_up(sent);
            return Some(Err(e));
        }
        let stands = sent.stands();
        if let Stands::Over(member) = stands {
            // SYNC claim: behind the look at the claim; a reply was published before it.
            return Some(match self.endpoint.poll() {
                Ok(Some(received)) => Ok(received),
                Ok(None) if late => Err(self.late()),
                Ok(None) => Err(self.fate(member)),
                Err(e) => Err(e),
            });
        }
        if late {
            self.give_up(sent);
            return Some(Err(self.late()));
        }
        if let Some(e) = call::current(|outer| outer.and_then(|o| o.check().err())) {
            self.give_up(sent);
            return Some(Err(e));
        }
        let waits = self.wait_until.is_some_and(|u| Instant::now() < u);
        if stands == Stands::Open && (!self.known.has_provider() && !waits) && sent.withdraw(&self.known.topic) {
            return Some(Err(self.known.no_provider()));
        }
        if self.known.topic.is_closed() && sent.withdraw(&self.known.topic) {
            return Some(Err(self.known.topic.ended()));
        }
        if self.away.is_some_and(|since| since.elapsed() >= BROKER_AWAY) && is_hopeless(self.inner, self.known, stands)
        {
            self.give_up(sent);
            let what =
                format!("the process that had the call of {} has ended, and no broker says how", self.known.name());
            return Some(Err(Error::new(Code::BrokerLost, "start the broker again", what)));
        }
        None
    }

    /// Ends the call here: no provider begins it any more, or the one that has it is told.
    #[cold]
    fn give_up(&mut self, sent: &Sent) {
        if sent.withdraw(&self.known.topic) {
            return;
        }
        if !matches!(sent.stands(), Stands::Over(_)) {
            let _ = self.known.topic.cancel(sent);
        }
        self.endpoint.abandon();
    }

    fn late(&self) -> Error {
        let what = format!("the call of {} has not ended in time", self.known.name());
        Error::new(Code::Timeout, "wait longer, or look with `baton show function`", what)
            .with("function", self.known.name())
    }

    /// The error of a call whose provider has ended without a reply.
    #[cold]
    fn fate(&self, member: u16) -> Error {
        let name = self.known.name();
        if member == 0 {
            let what = format!("the call of {name} was dropped by an operator, or its topic was closed");
            return Error::new(Code::Cancelled, "call again", what).with("function", name);
        }
        let ask = FunctionFate { topic: self.known.topic.reference(), member };
        let soon = Some(Instant::now() + A_MOMENT);
        let fate = within(soon, || self.inner.call_of::<_, Fate>(Broker::This, "function.fate", &ask, &[]));
        let fate = fate.map_or_else(|_| Fate { name: "the provider".into(), ..Fate::default() }, |(fate, _)| fate);
        if fate.lives {
            let what = format!("the call of {name} was ended without a reply by {} (pid {})", fate.name, fate.pid);
            return Error::new(Code::Protocol, "the provider is at fault: update or restart it", what);
        }
        let who = if fate.name.is_empty() { "its provider" } else { &fate.name };
        let pid = if fate.pid == 0 { String::new() } else { format!(" (pid {})", fate.pid) };
        let why = if fate.reason.is_empty() { String::new() } else { format!(": {}", fate.reason) };
        let what = format!("{who}{pid} ended while it had the call of {name}{why}");
        let e = Error::new(Code::ProviderDied, "look at its log; call again if that does no harm", what);
        e.with("function", name).with("pid", fate.pid).with("provider", fate.name).with("reason", fate.reason)
    }
}

/// Whether there is something besides a reply that a call that waits has to look at.
fn is_news(
    inner: &Opening,
    known: &Known,
    sent: &Sent,
    away: &mut Option<Instant>,
    wait_until: Option<Instant>,
) -> bool {
    let stands = sent.stands();
    if inner.broker_away() {
        if away.get_or_insert_with(Instant::now).elapsed() >= BROKER_AWAY && is_hopeless(inner, known, stands) {
            return true;
        }
    } else {
        *away = None;
    }
    let no_provider = || !known.has_provider() && wait_until.is_none_or(|u| Instant::now() >= u);
    match stands {
        Stands::Over(_) => true,
        Stands::Open if no_provider() || known.topic.is_closed() => true,
        _ => call::current(|outer| outer.is_some_and(|o| o.check().is_err())),
    }
}

/// Whether the process that has a call has ended, or all that could take it have.
fn is_hopeless(inner: &Opening, known: &Known, stands: Stands) -> bool {
    match stands {
        Stands::Claimed(member) | Stands::Begun(member) => is_gone(inner, u32::from(member)),
        Stands::Over(_) => false,
        Stands::Open => {
            let at = broker_file::topic(known.topic.info.topic) + topic_record::READERS;
            let words =
                (0..limits::BITMAP_WORDS as u32).map(|w| (w, inner.memory.files.broker.load(at + 8 * u64::from(w))));
            let mut slots =
                words.flat_map(|(w, word)| (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| 64 * w + b));
            slots.all(|slot| is_gone(inner, slot))
        }
    }
}

/// Whether the process of the session of a slot has ended. One that cannot be looked at lives.
fn is_gone(inner: &Opening, slot: u32) -> bool {
    let (broker, at) = (&inner.memory.files.broker, broker_file::session(slot));
    if slot >= limits::SESSIONS || broker.load(at + session_record::PID_NS) != sys::pid_namespace().unwrap_or_default()
    {
        return false;
    }
    let (pid, began) = (broker.load32(at + session_record::PID) as i32, broker.load(at + session_record::START_TIME));
    if broker.load(at + session_record::SERIAL) == 0 || began == 0 {
        return false;
    }
    match sys::start_time(pid) {
        Some(now) => now != began,
        None => sys::no_process(pid),
    }
}

/// The name of the function that a topic is, as the broker's records say.
fn name_of(inner: &Opening, topic_id: u64) -> String {
    let broker = &inner.memory.files.broker;
    let is = |i: &u32| broker.load(broker_file::topic(*i) + topic_record::ID) == topic_id;
    let found = (0..limits::TOPICS).find(is);
    found.map_or_else(
        || "a function that is gone".to_owned(),
        |i| text(broker, broker_file::topic(i) + topic_record::NAME, 256),
    )
}

/// The error that a function has ended with.
#[cold]
fn failure(known: &Known, received: &Received) -> Error {
    let text = |name: &str| match received.named(name) {
        Ok(Some(Value::Text(s))) => s,
        _ => String::new(),
    };
    let (kind, message, trace) = (text("kind"), text("message"), text("trace"));
    let provider = received.message().sender().to_owned();
    if kind == "baton.Cancelled" {
        let what = format!("{} was cancelled in {provider}: {message}", known.name());
        return Error::new(Code::Cancelled, "", what).with("function", known.name());
    }
    let what = format!("{} failed in {provider}: {kind}: {message}", known.name());
    let e = Error::new(Code::Remote, "", what).with("function", known.name()).with("kind", kind);
    e.with("message", message).with("trace", trace).with("provider", provider)
}
