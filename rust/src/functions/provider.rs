//! Providing a function: its registration, and the threads that run its calls.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use super::args::{Args, Received};
use super::arguments::{Arguments, give_back};
use super::call::{self, Call};
use super::convert::refused;
use super::fate::{MOST_CAUSES, cause_of};
use super::name::check_function;
use super::record::{Head, IS_ERROR, Link, REPLY, REQUEST};
use super::replies::Replies;
use super::signature::{By, Parameter, Signature};
use crate::crash_point;
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::{Claimed, Closer, FUNCTION, FunctionRecord, Message, Reader, Start, TopicState, Topics};
use crate::sys;
use crate::turns::Turnstile;
use crate::value::Value;
use crate::wire::ops::{FunctionRegister, FunctionRegistered, TopicOpen};

/// How many calls at a time one provider may take.
const MOST_CONCURRENCY: u32 = 1024;

type Handler = dyn Fn(&Args, &Call) -> Result<Value> + Send + Sync;

/// Settings of a function that is to be provided; see [`Session::provide`](crate::Session::provide).
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let crop = session.provide("vision/crop")?.parameter("x", "tensor").parameter("size", "int").by_name();
/// let crop = crop.optional("pad", "float", 0.0).by_name().result("tensor").doc("Cuts the middle out.");
/// let crop = crop.concurrency(2).exclusive(true).replace(true).serve(|args, _| {
///     let (x, size): (baton::Tensor, i64) = (args.get("x")?, args.get("size")?);
///     x.as_strided(&[size], None, (x.len() as u64 - size as u64) / 2)
/// })?;
/// assert_eq!(crop.name(), "vision/crop");
/// let x = session.from_slice(&[4], &[1, 2, 3, 4])?.freeze();
/// let middle: baton::Tensor = session.call("vision/crop", baton::Arguments::new().arg(x).named("size", 2))?;
/// assert_eq!(middle.to_vec::<i32>()?, [2, 3]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "call serve"]
pub struct Provide {
    inner: Arc<Opening>,
    name: String,
    concurrency: u32,
    idempotent: bool,
    exclusive: bool,
    replace: bool,
    signature: Signature,
    fault: Option<Error>,
}

impl Provide {
    pub(crate) fn new(inner: &Arc<Opening>, name: &str) -> Provide {
        Provide {
            inner: inner.clone(),
            name: name.to_owned(),
            concurrency: 1,
            idempotent: false,
            exclusive: false,
            replace: false,
            signature: Signature::default(),
            fault: None,
        }
    }

    /// How many calls it runs at a time, each in a thread of its own (default 1).
    pub fn concurrency(mut self, calls: u32) -> Provide {
        self.concurrency = calls;
        self
    }

    /// Gives what a provider that has ended had begun to another: the function may run more than once for one call.
    pub fn idempotent(mut self, yes: bool) -> Provide {
        self.idempotent = yes;
        self
    }

    /// Allows one process alone to provide it.
    pub fn exclusive(mut self, yes: bool) -> Provide {
        self.exclusive = yes;
        self
    }

    /// Takes the place of the providers that there are: what runs there ends there, what waits comes here. The signature
    /// may be another one.
    pub fn replace(mut self, yes: bool) -> Provide {
        self.replace = yes;
        self
    }

    /// What it does, for people.
    pub fn doc(mut self, text: impl Into<String>) -> Provide {
        self.signature.doc = text.into();
        self
    }

    /// Adds a parameter, with the types that it takes, joined by `|`: `none`, `bool`, `int`, `int64`, `float`, `str`,
    /// `bytes`, `tensor`, `dtype`, `device`, `list`, `tuple`, `dict`, `any`. Callers refuse what does not fit before
    /// they send it; a function without any parameter here takes whatever is given.
    pub fn parameter(mut self, name: &str, types: &str) -> Provide {
        self.add(Parameter::new(name, types));
        self
    }

    /// Adds a parameter that has a value where it is not given.
    pub fn optional(mut self, name: &str, types: &str, default: impl Into<Value>) -> Provide {
        match Parameter::new(name, types).with_default(&default.into()) {
            Ok(p) => self.add(p),
            Err(e) => self.fault = Some(e),
        }
        self
    }

    /// Says that it takes no parameters.
    pub fn no_parameters(mut self) -> Provide {
        self.signature.parameters = Some(Vec::new());
        self
    }

    /// Has the last parameter be given by its name alone.
    pub fn by_name(mut self) -> Provide {
        if let Some(p) = self.signature.parameters.as_mut().and_then(|all| all.last_mut()) {
            p.by = By::Name;
        }
        self
    }

    /// What it gives, as the types of a parameter.
    pub fn result(mut self, types: &str) -> Provide {
        self.signature.result = types.to_owned();
        self
    }

    fn add(&mut self, p: Parameter) {
        let all = self.signature.parameters.get_or_insert_default();
        if p.name.is_empty() || all.iter().any(|other| other.name == p.name) {
            self.fault = Some(refused(format!("two parameters are named {:?}, or one is not", p.name)));
        }
        all.push(p);
    }

    /// Takes what it takes and gives, and its doc, from a description (docs/protocol.md, Functions).
    #[doc(hidden)]
    pub fn description(mut self, json: &str) -> Result<Provide> {
        self.signature = Signature::parse(json.as_bytes())?;
        Ok(self)
    }

    /// Registers the function, whose calls are taken by `Provided::take`.
    #[doc(hidden)]
    pub fn register(self) -> Result<Provided> {
        self.open(Box::new(|_, _| Ok(Value::Null)))
    }

    /// Registers the function, and runs its calls from here on, until what it returns is dropped. Errors: `Conflict`
    /// where it is registered otherwise, or this session provides it already; `PermissionDenied` where another user has
    /// the name; `InvalidArgument`, `TooMany`.
    pub fn serve<R, F>(self, handler: F) -> Result<Provided>
    where
        R: Into<Value>,
        F: Fn(&Args, &Call) -> Result<R> + Send + Sync + 'static,
    {
        let handler: Box<Handler> = Box::new(move |args, call| handler(args, call).map(R::into));
        self.serve_boxed(handler)
    }

    fn serve_boxed(self, handler: Box<Handler>) -> Result<Provided> {
        let concurrency = self.concurrency;
        let mut provided = self.open(handler)?;
        for _ in 0..concurrency {
            let state = provided.state.clone();
            let thread = std::thread::Builder::new().name("baton-function".to_owned()).spawn(move || state.run());
            provided.threads.push(thread.map_err(|e| {
                Error::new(Code::TooMany, "raise the limit of threads", format!("start a thread: {e}")).caused_by(e)
            })?);
        }
        Ok(provided)
    }

    fn open(self, handler: Box<Handler>) -> Result<Provided> {
        check_function(&self.name)?;
        if let Some(e) = self.fault {
            return Err(e);
        }
        if !(1..=MOST_CONCURRENCY).contains(&self.concurrency) {
            return Err(refused(format!("a concurrency of {} is not 1 to {MOST_CONCURRENCY}", self.concurrency)));
        }
        let inner = self.inner.here()?;
        let open = TopicOpen { name: Some(&self.name), kind: FUNCTION, create: true, ..TopicOpen::default() };
        let topic = Topics::open(inner, "topic.open", &open)?;
        let mut reader = Reader::new(topic.clone(), Start::All, Some(FUNCTION))?;
        let description = self.signature.to_json();
        let request = FunctionRegister {
            topic: topic.reference(),
            reader: reader.number(),
            description: &description,
            concurrency: self.concurrency,
            idempotent: self.idempotent,
            exclusive: self.exclusive,
            replace: self.replace,
        };
        let ok: FunctionRegistered = inner.call("function.register", &request)?;
        crash_point::at("function-registered");
        let record = FunctionRecord::of(&topic);
        reader.provide(record.clone(), ok.registration);
        let link = Link { topic_id: topic.info.id, slot: inner.memory.files.slot };
        let state = Arc::new(Provider {
            name: self.name.into(),
            closer: reader.closer(),
            record,
            registration: ok.registration,
            reader: Turnstile::new(Some(reader)),
            topic,
            link,
            signature: Arc::new(self.signature),
            handler,
            replies: Replies::default(),
            running: AtomicUsize::new(0),
        });
        Ok(Provided { state, threads: Vec::new() })
    }
}

/// A function that this process provides. Dropped it takes no more calls, waits for those that run, and leaves. A child of
/// a fork provides nothing.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let adds = session.function("add", |args, _| Ok(args.get::<i64>(0)? + args.get::<i64>(1)?))?;
/// assert_eq!(session.call::<i64>("add", (2, 3))?, 5);
/// assert!(adds.is_current() && adds.running() == 0);
/// drop(adds);
/// assert_eq!(session.call::<i64>("add", (2, 3)).unwrap_err().code(), baton::Code::NoProvider);
/// # Ok(()) }
/// ```
#[must_use = "dropped it provides the function no more"]
pub struct Provided {
    pub(super) state: Arc<Provider>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Provided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provided").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Provided {
    /// The function's name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Whether it takes calls: not any more once another provider has replaced it, it was removed, or the session has
    /// ended.
    pub fn is_current(&self) -> bool {
        self.state.is_current() && !self.state.topic.inner.is_closed()
    }

    /// How many calls run now.
    pub fn running(&self) -> usize {
        self.state.running.load(Ordering::Relaxed)
    }

    /// Waits until it takes no more calls, and all that it has begun have ended: it was replaced or removed, or the
    /// session was closed. Errors: `SessionLost` where a broker has ended the session, `PermissionDenied` where its user
    /// may not use the broker any more.
    pub fn join(mut self) -> Result<()> {
        self.wait();
        self.state.topic.inner.check_lost()
    }

    fn wait(&mut self) {
        let here = std::thread::current().id();
        for thread in std::mem::take(&mut self.threads) {
            if thread.thread().id() != here {
                let _ = thread.join(); // what panicked there was answered
            }
        }
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        if self.state.topic.inner.is_foreign() {
            return std::mem::forget(std::mem::take(&mut self.threads)); // the parent's
        }
        self.state.closer.close();
        self.wait();
    }
}

/// What the threads of a provided function share.
pub(super) struct Provider {
    name: Box<str>,
    pub(super) topic: Arc<TopicState>,
    record: FunctionRecord,
    registration: u32,
    reader: Turnstile<Option<Reader>>,
    pub(super) closer: Closer,
    link: Link,
    pub(super) signature: Arc<Signature>,
    handler: Box<Handler>,
    replies: Replies,
    pub(super) running: AtomicUsize,
}

impl Provider {
    fn is_current(&self) -> bool {
        self.record.registered().registration == self.registration && !self.closer.is_closed()
    }

    /// Takes calls and runs them, one after the other, until the registration is over.
    fn run(&self) {
        while let Some((message, claimed)) = self.next() {
            self.answer(message, claimed);
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
        self.closer.close(); // the other threads are at the end, too
        self.leave();
    }

    /// Leaves the group, once no call runs.
    pub(super) fn leave(&self) {
        // The last that comes here leaves the group: the calls of others are over by then.
        if let Ok(Some(mut reader)) = self.reader.lock_until(None, || false)
            && self.running.load(Ordering::Relaxed) == 0
        {
            let left = reader.take();
            drop(reader);
            drop(left);
        }
    }

    /// The next call, which is counted as running. One thread at a time waits for it.
    pub(super) fn next(&self) -> Option<(Message, Claimed)> {
        let mut reader = self.reader.lock_until(None, || false).ok()??;
        loop {
            let next = reader.as_mut()?.next_call(|| {
                self.replies.sweep();
                !self.is_current()
            });
            match next {
                Ok(next) => {
                    let n = self.running.fetch_add(usize::from(next.is_some()), Ordering::Relaxed);
                    debug_assert!(n <= MOST_CONCURRENCY as usize);
                    return next;
                }
                Err(e) if self.topic.inner.is_closed() || e.is_end() || !self.is_current() => return None,
                // What is not available now, such as the memory of a message while no broker runs.
                Err(_) => std::thread::sleep(crate::deadline::A_MOMENT / 100),
            }
        }
    }

    /// Runs a call and replies, unless it is over.
    fn answer(&self, message: Message, claimed: Claimed) {
        let Some((received, mut call)) = self.begin(message, claimed) else { return };
        let outcome = self.call(received, &call);
        crash_point::at("call-ran");
        self.finish(&mut call, outcome);
    }

    /// Begins a call, unless it is over.
    pub(super) fn begin(&self, message: Message, claimed: Claimed) -> Option<(Received, Call)> {
        let received = Received::of(message).ok()?;
        let head = received.head;
        if head.kind != REQUEST {
            return None; // its caller has broken the protocol: the call is over
        }
        let began = sys::monotonic();
        let mut call = Call { claimed, head, chain: received.chain(), link: self.link, began };
        let late = head.time != 0 && began >= head.time;
        if late || call.cancelled() || !call.claimed.begin() {
            return None;
        }
        Some((received, call))
    }

    /// Replies, and ends the call.
    pub(super) fn finish(&self, call: &mut Call, outcome: Result<Arguments>) {
        let replied = self.reply(call, outcome);
        crash_point::at("call-replied");
        call.claimed.end(replied);
    }

    /// Runs the function. The arguments are let go behind it.
    fn call(&self, received: Received, call: &Call) -> Result<Arguments> {
        let args = Args::new(received, self.signature.clone());
        let ran = catch_unwind(AssertUnwindSafe(|| call::within(call, || (self.handler)(&args, call))));
        let value = ran.unwrap_or_else(|panic| Err(Error::of_kind("panic", text_of(&*panic))))?;
        Ok(Arguments::new().arg(value))
    }

    /// Sends a reply. Whether its caller has it.
    fn reply(&self, call: &Call, outcome: Result<Arguments>) -> bool {
        if call.claimed.is_deserted() {
            return false;
        }
        let inner = &self.topic.inner;
        let failed = match outcome {
            _ if call.cancelled() => Error::new(Code::Cancelled, "", "the caller wants the call no more"),
            Ok(reply) => match self.send(inner, call, reply, 0) {
                Err(e) if is_of_value(&e) => e,
                sent => return sent.unwrap_or(false),
            },
            Err(e) => e,
        };
        self.send(inner, call, error_of(&failed), IS_ERROR).unwrap_or(false)
    }

    /// Sends a reply, for as long as its caller waits where a broker has to be asked and none answers.
    fn send(&self, inner: &Arc<Opening>, call: &Call, reply: Arguments, flags: u32) -> Result<bool> {
        let head = Head { kind: REPLY, flags, call: call.head.call, time: call.began, ..Head::default() };
        let mut payload = reply.into_payload(&head, [].into_iter())?;
        loop {
            match self.replies.send(inner, &call.head, &mut payload) {
                Err(e) if e.is_uncertain() && !inner.is_closed() && call.check().is_ok() => {}
                sent => {
                    give_back(&mut payload);
                    return sent;
                }
            }
        }
    }
}

/// Whether an error says that a value cannot be sent: it is an error of the function.
fn is_of_value(e: &Error) -> bool {
    use Code::{Expired, InvalidArgument, OutOfMemory, QuotaExceeded, TooMany};
    matches!(e.code(), InvalidArgument | Expired | OutOfMemory | QuotaExceeded | TooMany)
}

/// The reply that an error is.
fn error_of(e: &Error) -> Arguments {
    let text = |key: &str| e.detail().get(key).and_then(serde_json::Value::as_str);
    let of_another = e.code() == Code::Remote;
    let kind = text("kind").filter(|_| of_another).map_or_else(|| format!("baton.{}", e.code()), str::to_owned);
    let message = text("message").filter(|_| of_another).map_or_else(|| e.to_string(), str::to_owned);
    let trace = text("trace").unwrap_or_default();
    let mut reply = Arguments::new();
    for (name, v) in [("kind", kind), ("message", message), ("trace", trace.to_owned())] {
        reply.put(name, v.into());
    }
    if let Some(cause) = e.detail().get("cause").filter(|c| c.is_object()) {
        reply.put("cause", cause_of(cause, MOST_CAUSES));
    }
    reply
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "the function panicked".to_owned())
}
