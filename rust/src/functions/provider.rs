//! Providing a function: its registration, and the threads that run its calls.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::answers::{Answers, Progress, reply_of};
use super::args::Args;
use super::arguments::Arguments;
use super::call::{self, Call};
use super::convert::refused;
use super::given::SessionCalls;
use super::name::check_function;
use super::places::{Places, Ticket};
use super::received::Received;
use super::signature::{By, Parameter, Signature};
use crate::crash_point;
use crate::deadline::deadline;
use crate::error::{Error, Result};
use crate::holding::Opening;
use crate::lanes::{Claimed, Closer, Counts, FUNCTION, FunctionRecord, Message, Reader, Start, Topics};
use crate::sys;
use crate::turns::Turnstile;
use crate::value::Value;
use crate::wire::ops::{FunctionRegister, FunctionRegistered, TopicOpen};

/// How many calls at a time one provider may take.
const MOST_CONCURRENCY: u32 = 1024;

/// How many calls of one function may wait for their callers to take parts, in the places of others.
const MOST_WAITING: usize = 1024;

type Handler = dyn Fn(&Args, &Call, &PartSender<'_>) -> Result<Arguments> + Send + Sync;

/// Settings of a function that is to be provided; see [`Session::provide`](crate::Session::provide).
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let crop = session.provide("vision/crop")?.parameter("x", "tensor").by_position().parameter("size", "int").by_name();
/// let crop = crop.optional("pad", "float", 0.0).by_name().result("tensor").doc("Cuts the middle out.");
/// let crop = crop.concurrency(2).exclusive(true).replace(true).over_nats(true);
/// let crop = crop.linger(std::time::Duration::from_secs(60)).serve(|args, _| {
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
    calls: Arc<dyn SessionCalls>,
    name: String,
    concurrency: u32,
    idempotent: bool,
    exclusive: bool,
    replace: bool,
    linger: Duration,
    signature: Signature,
    fault: Option<Error>,
}

impl Provide {
    pub(crate) fn new(inner: &Arc<Opening>, calls: Arc<dyn SessionCalls>, name: &str) -> Provide {
        Provide {
            inner: inner.clone(),
            calls,
            name: name.to_owned(),
            concurrency: 1,
            idempotent: false,
            exclusive: false,
            replace: false,
            linger: Duration::ZERO,
            signature: Signature::default(),
            fault: None,
        }
    }

    /// How many calls it runs at a time, each in a thread of its own (default 1).
    pub fn concurrency(mut self, calls: u32) -> Provide {
        self.concurrency = calls;
        self
    }

    /// Lets another provider run a call again whose provider ended before its reply: a call may run more than once.
    pub fn idempotent(mut self, yes: bool) -> Provide {
        self.idempotent = yes;
        self
    }

    /// Lets requests over NATS call it, by a broker that runs with `--nats-functions`.
    pub fn over_nats(mut self, yes: bool) -> Provide {
        self.signature.nats = yes;
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

    /// How long it stays listed once no session has it open (default: not at all). Calls are `NoProvider` all the same.
    pub fn linger(mut self, time: Duration) -> Provide {
        self.linger = time;
        self
    }

    /// What it does, for people.
    pub fn doc(mut self, text: impl Into<String>) -> Provide {
        self.signature.doc = text.into();
        self
    }

    /// Adds a parameter, with the types that it takes, joined by `|`: `none`, `bool`, `int`, `int64`, `float`, `str`,
    /// `bytes`, `tensor`, `dtype`, `device`, `list`, `tuple`, `dict`, `function`, `any`, or the name of a class as
    /// `module:Class`, which callers take for `any`. Callers refuse what does not fit before they send it; a function
    /// without any parameter here takes whatever is given. What is no such type, and a name that is empty, stands twice
    /// or has white space, is `InvalidArgument` as the function is provided.
    pub fn parameter(mut self, name: &str, types: &str) -> Provide {
        self.add(Parameter::new(name, types));
        self
    }

    /// Adds a parameter with the value that it has if it is not given: of one of its types, or None.
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
    pub fn by_name(self) -> Provide {
        self.by(By::Name)
    }
    /// Has the last parameter be given by its position alone.
    pub fn by_position(self) -> Provide {
        self.by(By::Position)
    }

    fn by(mut self, by: By) -> Provide {
        self.signature.parameters.iter_mut().flatten().last().into_iter().for_each(|p| p.by = by);
        self
    }

    /// What it gives, as the types of a parameter.
    pub fn result(mut self, types: &str) -> Provide {
        self.signature.result = types.to_owned();
        self
    }

    fn add(&mut self, p: Parameter) {
        self.signature.parameters.get_or_insert_default().push(p);
    }

    /// Takes what it takes and gives, and its doc, from a description (docs/protocol.md, Functions).
    #[doc(hidden)]
    pub fn description(mut self, json: &str) -> Result<Provide> {
        self.signature = Signature::parse(json.as_bytes())?;
        Ok(self)
    }

    /// Registers the function, whose calls are taken by `Provided::take`. `another`: has one thread more take them, while
    /// one waits for its caller to take parts; whether it did.
    #[doc(hidden)]
    pub fn register(self, another: impl Fn() -> bool + Send + Sync + 'static) -> Result<Provided> {
        self.open(Box::new(|_, _, _| Ok(Arguments::new())), Crew::Binding(Box::new(another)))
    }

    /// Registers the function, and runs its calls from here on, until what it returns is dropped.
    ///
    /// # Errors
    /// `Conflict` if it is registered otherwise, or this session provides it already; `PermissionDenied` if
    /// another user has the name; `InvalidArgument`, `TooMany`.
    pub fn serve<R, F>(self, handler: F) -> Result<Provided>
    where
        R: Into<Value>,
        F: Fn(&Args, &Call) -> Result<R> + Send + Sync + 'static,
    {
        self.serve_boxed(Box::new(move |args, call, _| handler(args, call).map(reply_of)))
    }

    /// As [`serve`](Provide::serve), of a function that gives parts, one after the other, before it returns:
    /// its callers call it by [`Function::stream`](crate::Function::stream). Errors as of
    /// [`serve`](Provide::serve).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let _count = session.provide("count")?.parameter("n", "int").result("int").serve_parts(|args, _, parts| {
    ///     (0..args.get::<i64>("n")?).try_for_each(|i| parts.send(i))?;
    ///     Ok("all of them")
    /// })?;
    /// let count = session.get_function("count")?;
    /// let mut parts = count.stream::<i64>((3,))?;
    /// assert_eq!(parts.by_ref().collect::<Result<Vec<_>, _>>()?, [0, 1, 2]);
    /// assert_eq!(parts.result::<String>()?, "all of them");
    /// # Ok(()) }
    /// ```
    pub fn serve_parts<R, F>(mut self, handler: F) -> Result<Provided>
    where
        R: Into<Value>,
        F: Fn(&Args, &Call, &PartSender<'_>) -> Result<R> + Send + Sync + 'static,
    {
        self.signature.parts = true;
        self.serve_boxed(Box::new(move |args, call, parts| handler(args, call, parts).map(reply_of)))
    }

    fn serve_boxed(self, handler: Box<Handler>) -> Result<Provided> {
        let concurrency = self.concurrency;
        let provided = self.open(handler, Crew::Threads(Mutex::default()))?;
        if let Crew::Threads(threads) = &provided.state.crew {
            let mut threads = threads.lock().unwrap_or_else(|p| p.into_inner());
            (0..concurrency).try_for_each(|_| provided.state.start(&mut threads))?;
        }
        Ok(provided)
    }

    fn open(self, handler: Box<Handler>, crew: Crew) -> Result<Provided> {
        check_function(&self.name)?;
        if let Some(e) = self.fault {
            return Err(e);
        }
        self.signature.check()?;
        if !(1..=MOST_CONCURRENCY).contains(&self.concurrency) {
            return Err(refused(format!("a concurrency of {} is not 1 to {MOST_CONCURRENCY}", self.concurrency)));
        }
        let inner = self.inner.here()?;
        let open = TopicOpen { name: Some(&self.name), kind: FUNCTION, create: true, ..TopicOpen::default() };
        let topic = Topics::open(inner, "topic.open", &open)?;
        let mut reader = Reader::new(topic.clone(), Start::All, Some(FUNCTION))?;
        let request = FunctionRegister {
            topic: topic.reference(),
            reader: reader.number(),
            description: &self.signature.to_json(),
            concurrency: self.concurrency,
            idempotent: self.idempotent,
            exclusive: self.exclusive,
            replace: self.replace,
            linger: self.linger.as_secs_f64(),
        };
        let ok: FunctionRegistered = inner.call("function.register", &request)?;
        crash_point::at("function-registered");
        let record = FunctionRecord::of(&topic);
        let counts = ok.counted.then(|| Counts::begin(&topic, reader.number())).flatten();
        let places = self.signature.parts.then(|| Places::new(self.concurrency));
        let answers = Arc::new(Answers::new(&topic, Arc::downgrade(&self.calls), self.signature, places, counts));
        reader.provide(record.clone(), ok.registration, Some(answers.clone().can_begin()));
        let state = Arc::new(Provider {
            name: self.name.into(),
            closer: reader.closer(),
            record,
            registration: ok.registration,
            concurrency: self.concurrency,
            reader: Turnstile::new(Some(reader)),
            answers,
            handler,
            running: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            crew,
            calls: self.calls,
        });
        Ok(Provided { state })
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
/// assert!(adds.is_current() && adds.running() <= 1);
/// drop(adds);
/// assert_eq!(session.call::<i64>("add", (2, 3)).unwrap_err().code(), baton::Code::NoProvider);
/// # Ok(()) }
/// ```
#[must_use = "dropped it provides the function no more"]
pub struct Provided {
    pub(super) state: Arc<Provider>,
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
        self.state.is_current() && !self.state.answers.inner().is_closed()
    }

    /// How many calls run now. One whose reply has just come may be among them still.
    pub fn running(&self) -> usize {
        self.state.running.load(Ordering::Relaxed)
    }

    /// Waits until it takes no more calls, so long at most; whether it takes none. What it has begun may still run.
    #[doc(hidden)]
    pub fn wait_over(&self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        self.state.answers.inner().wait(None, None, deadline(timeout), || !self.is_current())
    }

    /// Waits until it takes no more calls, and all that it has begun have ended: it was replaced or removed, or the
    /// session was closed.
    ///
    /// # Errors
    /// `SessionLost` if a broker has ended the session, `PermissionDenied` if its user may not use the broker any
    /// more.
    pub fn join(mut self) -> Result<()> {
        self.wait();
        self.state.answers.inner().check_lost()
    }

    fn wait(&mut self) {
        let here = std::thread::current().id();
        let Crew::Threads(threads) = &self.state.crew else { return };
        let next = || threads.lock().unwrap_or_else(|p| p.into_inner()).pop();
        // One that runs may have started another.
        while let Some(thread) = next() {
            if thread.thread().id() != here {
                let _ = thread.join(); // what panicked there was answered
            }
        }
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        if self.state.answers.inner().is_foreign() {
            return std::mem::forget(self.state.clone()); // its threads are the parent's
        }
        self.state.closer.close();
        self.wait();
    }
}

/// What the threads of a provided function share.
pub(super) struct Provider {
    name: Box<str>,
    pub(super) answers: Arc<Answers>,
    record: FunctionRecord,
    registration: u32,
    concurrency: u32,
    reader: Turnstile<Option<Reader>>,
    pub(super) closer: Closer,
    handler: Box<Handler>,
    pub(super) running: AtomicUsize,
    /// Threads that wait for a call, or for their turn at that.
    idle: AtomicUsize,
    crew: Crew,
    calls: Arc<dyn SessionCalls>,
}

/// What runs the calls.
enum Crew {
    Threads(Mutex<Vec<JoinHandle<()>>>),
    /// Those of a binding, with what starts another one, if it can.
    Binding(Box<dyn Fn() -> bool + Send + Sync>),
}

/// A call that was taken, with its place where the function gives parts.
type Next = (Message, Claimed, Option<Seat>);

/// The place of a call that runs.
pub(super) struct Seat {
    answers: Arc<Answers>,
    held: AtomicBool,
}

impl Seat {
    /// Gives it back for a while.
    pub(super) fn leave(&self) {
        if self.held.swap(false, Ordering::Relaxed) // of one thread at a time
            && let Some(places) = &self.answers.places
        {
            places.give(self.answers.inner());
        }
    }

    /// Has it again, if it is its turn. `ticket`: its turn, which it has from the first time on.
    pub(super) fn regain(&self, ticket: &mut Option<Ticket>) -> bool {
        let Some(places) = self.answers.places.as_ref().filter(|_| !self.held.load(Ordering::Relaxed)) else {
            return true;
        };
        let regained = places.try_take(self.answers.inner(), ticket.get_or_insert_with(|| places.queue()));
        if regained {
            *ticket = None;
            self.held.store(true, Ordering::Relaxed);
        }
        regained
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if *self.held.get_mut()
            && let Some(places) = &self.answers.places
            && !self.answers.inner().is_foreign()
        {
            places.give(self.answers.inner());
        }
    }
}

impl Provider {
    fn is_current(&self) -> bool {
        self.record.registered().registration == self.registration && !self.closer.is_closed()
    }

    /// Takes calls and runs them, one after the other, until the registration is over, or there are threads enough.
    fn run(self: &Arc<Self>) {
        sys::look_at_its_end(); // a thread of the program's, which goes on while it provides functions
        while !self.is_surplus() {
            let Some((message, claimed, seat)) = self.next() else {
                self.closer.close(); // the other threads are at the end, too
                return self.leave();
            };
            self.answer(message, claimed);
            drop(seat);
            if self.answers.inner().is_foreign() {
                return; // in the child of a fork, whose parent goes on
            }
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
        if self.closer.is_closed() {
            self.leave();
        }
    }

    /// Whether others wait for calls in the place of this thread: it was started for one that waited itself.
    pub(super) fn is_surplus(&self) -> bool {
        self.answers.places.is_some() && self.idle.load(Ordering::Relaxed) >= self.concurrency as usize
    }

    /// Whether a call may give its place back while it waits: there is a thread that takes others meanwhile, which is
    /// started where there is none.
    pub(super) fn relieve(self: &Arc<Self>) -> bool {
        if self.idle.load(Ordering::Relaxed) > 0 || self.closer.is_closed() {
            return true;
        }
        if self.running.load(Ordering::Relaxed) > MOST_WAITING {
            return false;
        }
        match &self.crew {
            Crew::Binding(start) => start(),
            Crew::Threads(all) => {
                let mut all = all.lock().unwrap_or_else(|p| p.into_inner());
                all.retain(|t| !t.is_finished());
                self.start(&mut all).is_ok()
            }
        }
    }

    fn start(self: &Arc<Self>, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
        let state = self.clone();
        let thread = std::thread::Builder::new().name("baton-function".to_owned()).spawn(move || state.run());
        threads.push(sys::started(thread)?);
        Ok(())
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
    pub(super) fn next(&self) -> Option<Next> {
        self.idle.fetch_add(1, Ordering::Relaxed);
        let next = self.take();
        self.idle.fetch_sub(1, Ordering::Relaxed);
        next
    }

    fn take(&self) -> Option<Next> {
        let mut reader = self.reader.lock_until(None, || false).ok()??;
        loop {
            let next = reader.as_mut()?.next_call(
                |reader| self.seat(reader),
                || {
                    self.answers.replies.sweep();
                    self.calls.sweep();
                    !self.is_current()
                },
            );
            match next {
                Ok(next) => {
                    let n = self.running.fetch_add(usize::from(next.is_some()), Ordering::Relaxed);
                    debug_assert!(n <= MOST_CONCURRENCY as usize + MOST_WAITING);
                    return next;
                }
                Err(e) if self.answers.inner().is_closed() || e.is_end() || !self.is_current() => return None,
                // What is not available now, such as the memory of a message while no broker runs.
                Err(_) => std::thread::sleep(crate::deadline::A_MOMENT / 100),
            }
        }
    }

    /// The place for a call that may be there, waiting for one; `Some(None)` where the function needs none.
    fn seat(&self, reader: &Reader) -> Result<Option<Option<Seat>>> {
        let Some(places) = &self.answers.places else { return Ok(Some(None)) };
        if !reader.may_be_ready() {
            return Ok(None);
        }
        let inner = self.answers.inner();
        if !places.take_free() {
            let ticket = places.queue();
            let over = || inner.is_closed() || !self.is_current();
            let waited = inner.wait(None, None, None, || places.is_next(&ticket) || over());
            if waited.is_err() || over() || !places.try_take(inner, &ticket) {
                places.forget(inner, ticket);
                return waited.map(|_| None);
            }
        }
        Ok(Some(Some(Seat { answers: self.answers.clone(), held: AtomicBool::new(true) })))
    }

    /// Runs a call and replies, unless it is over.
    fn answer(self: &Arc<Self>, message: Message, claimed: Claimed) {
        let Some((received, mut call)) = self.answers.begin(message, claimed) else { return };
        let outcome = self.call(received, &call);
        self.answers.finish(&mut call, outcome);
    }

    /// Runs the function. The arguments are let go after it.
    fn call(self: &Arc<Self>, received: Received, call: &Call) -> Result<Arguments> {
        let args = Args::new(received, self.answers.clone());
        let parts = PartSender { provider: self, call, progress: Progress::default() };
        self.answers.run(|| call::within(call, || (self.handler)(&args, call, &parts)))
    }
}

/// Gives the parts of a call to its caller, one after the other; see [`Provide::serve_parts`].
pub struct PartSender<'a> {
    provider: &'a Arc<Provider>,
    call: &'a Call,
    progress: Progress,
}

impl fmt::Debug for PartSender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartSender").finish_non_exhaustive()
    }
}

impl PartSender<'_> {
    /// Gives a part. If the caller has not taken as many before as it lets be ahead, it waits, and the function takes
    /// other calls meanwhile.
    ///
    /// # Errors
    /// `Cancelled` if the caller wants no more, or has gone; `Timeout` after the call's deadline; those of a value
    /// that cannot be sent.
    pub fn send(&self, part: impl Into<Value>) -> Result<()> {
        let part = reply_of(part);
        self.provider.answers.send_part(self.call, &self.progress, part, || self.provider.relieve())
    }
}
