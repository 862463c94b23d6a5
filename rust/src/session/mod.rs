//! Sessions: one process's connection to its broker.

mod alloc;
mod arriving;
mod attach;
mod attaching;
mod background;
mod binding;
mod bundle;
mod closer;
mod copied;
mod core;
mod counted;
mod cursor;
mod custody;
pub(crate) mod deadline;
mod device;
mod device_tensor;
mod file;
mod fork;
mod got;
mod heir;
mod holders;
mod holding;
mod huge;
mod inner;
mod lane_space;
mod late;
mod leave;
mod legacy;
mod lend;
mod members;
mod memory;
mod message;
mod name;
mod names;
mod open;
mod options;
mod order;
mod pages;
mod payload;
mod pin;
mod poll;
mod queue;
mod quick;
mod reader;
mod rent;
mod retired;
mod room;
mod send;
mod shared;
mod sleeper;
mod spinner;
mod stamps;
mod start;
mod state_file;
#[cfg(feature = "tokio")]
mod tasks;
mod tensor;
mod topic;
mod trace;
mod view;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

pub use alloc::TensorMut;
pub(crate) use binding::interrupted;
pub use bundle::Bundle;
pub use closer::Closer;
pub use deadline::Deadline;
pub use holders::Holder;
pub use huge::HugePages;
pub use message::Message;
pub use name::Watch;
pub use names::Names;
pub use open::Lease;
pub use options::{NameOptions, QueueOptions, TopicOptions};
pub use payload::Payload;
pub use queue::Queue;
pub use reader::{Reader, Start};
pub use rent::DeviceAllocator;
pub(crate) use shared::Shared;
pub use tensor::Tensor;
pub(crate) use tensor::{Origin, Place, Span};
pub use topic::Topic;

use crate::error::{Code, Error, Result, unanswered};
use crate::layout::{LAYOUT, PROTOCOL};
use crate::ledger::PoolStats;
use crate::sys;
use crate::wire::ops::{ClientInfo, Hello, HelloReply, Nothing, Resume};
use crate::wire::{Control, Frames, Reply, decode};
use background::Background;
use core::Core;
use deadline::deadline;
use got::Got;
use inner::{Inner, NOTICE};
use pages::Pages;

/// How a session is opened.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) address: Option<String>,
    pub(crate) namespace: String,
    pub(crate) start: bool,
    pub(crate) name: String,
    pub(crate) binary: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) socket: String, // what the address led to when the session was opened
    pub(crate) named: bool,    // by the program or $BATON_ADDRESS
    pub(crate) language: &'static str,
    pub(crate) interrupted: Option<fn() -> bool>,
    /// Tells where the program, in a language of its own, asks for memory.
    pub(crate) place: Option<fn() -> Option<String>>,
}

impl Options {
    /// Whether a session opened with these may be the next opening of one that was opened with others.
    fn is_like(&self, o: &Options) -> bool {
        let place = |o: &Options| (o.socket.clone(), o.address.clone(), o.start, o.binary.clone());
        let identity = |o: &Options| (o.namespace.clone(), o.name.clone(), o.language);
        place(self) == place(o) && identity(self) == identity(o)
    }
}

/// Settings of a session; see [`Session::builder`].
#[derive(Debug, Clone)]
#[must_use = "call connect"]
pub struct Builder(Options);

impl Builder {
    /// The broker's socket: `unix:/path` or `/path`. Default: `$BATON_ADDRESS`, else the user's
    /// broker. A broker that was named is awaited and never started.
    pub fn address(mut self, address: impl Into<String>) -> Builder {
        self.0.address = Some(address.into());
        self
    }

    /// Where names live: one token. Default: `$BATON_NAMESPACE`, else `default`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Builder {
        self.0.namespace = namespace.into();
        self
    }

    /// Whether the user's broker is started when none runs. Default: true.
    pub fn start(mut self, start: bool) -> Builder {
        self.0.start = start;
        self
    }

    /// The name shown in listings, 1 to 48 bytes. Default: `$BATON_NAME`, else the program's.
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.0.name = name.into();
        self
    }

    /// The `baton` binary that starts the broker. Default: `$BATON_BINARY`, else `baton` on PATH or
    /// beside this program.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Builder {
        self.0.binary = Some(path.into());
        self
    }

    /// How long to wait for a broker. Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.0.timeout = timeout;
        self
    }

    /// Opens the session. Errors: `NoBroker`, `Timeout` of a broker that does not answer, `Version`, `PermissionDenied`, `TooMany`,
    /// `InvalidArgument`.
    pub fn connect(self) -> Result<Session> {
        let mut o = self.0;
        (o.socket, o.named) = start::address_of(o.address.as_deref())?;
        check_token("namespace", &o.namespace, 32)?;
        if o.name.is_empty() || o.name.len() > 48 {
            let what = format!("client name {:?} is unusable", o.name);
            return Err(Error::new(Code::InvalidArgument, "use 1 to 48 bytes", what));
        }
        Ok(Session::of(connect(o)?))
    }
}

/// How long a broker that listens has at least to greet.
const HELLO: Duration = Duration::from_secs(1);

fn connect(o: Options) -> Result<Arc<Inner>> {
    if let Some(inner) = fork::reopened(&o) {
        return Ok(inner);
    }
    let (control, pages, background) = reach(&o, deadline(o.timeout))?;
    let (background, spins) = (Arc::new(background), sys::several_processors());
    let inner = Core::open(Arc::new(Core::new(o, pages, control.clone(), background.clone(), spins)?));
    background.start(inner.core(), control)?;
    fork::register(&inner)?;
    Ok(inner)
}

/// Connects to a broker and says hello. One that goes away meanwhile is followed by another.
fn reach(o: &Options, until: Option<Instant>) -> Result<(Arc<Control>, Pages, Background)> {
    let mut pause = start::TICK;
    loop {
        let control = Arc::new(Control::new(start::dial(o, until)?));
        // A broker that has just been found may take a moment.
        let answers = until.map(|u| u.max(Instant::now() + HELLO));
        match greeted_pages(&control, o, answers) {
            Ok((pages, background)) => return Ok((control, pages, background)),
            Err(e) => {
                leave(&control);
                if !went_away(&e) || until.is_some_and(|u| Instant::now() + pause >= u) {
                    return Err(e);
                }
            }
        }
        start::wait(o, &mut pause)?;
    }
}

/// Whether a hello failed because its broker ended: another may be there soon.
fn went_away(e: &Error) -> bool {
    matches!(e.code(), Code::BrokerLost | Code::NoBroker)
}

fn greeted_pages(control: &Control, o: &Options, until: Option<Instant>) -> Result<(Pages, Background)> {
    let mut frames = Frames::default();
    let (json, fds) = greet(control, &mut frames, o, until)?;
    Ok((Pages::open(greeted(&json)?, fds)?, Background::new(frames)?))
}

/// Says hello and reads the answer.
fn greet(control: &Control, frames: &mut Frames, o: &Options, until: Option<Instant>) -> Reply {
    match control.request("hello", &hello(o, None), &[sys::alive()?]) {
        Ok((_, from)) => answered(control, frames, &from, until, o.interrupted),
        // A broker that refuses the connection has said why.
        Err(e) => answered(control, frames, &sync_channel(0).1, until, o.interrupted)
            .map_err(|_| control.refusal().unwrap_or(e)),
    }
}

/// Ends a session that came to nothing, which would stay until this process ends.
fn leave(control: &Control) {
    let _ = control.tell("bye", &Nothing {});
}

/// The answer to hello, of a broker that this client understands.
fn greeted(json: &RawValue) -> Result<HelloReply> {
    let reply: HelloReply = decode("hello", json)?;
    check_broker(&reply)?;
    Ok(reply)
}

/// Reads the answer to a request of a connection that nobody else reads yet. Events that come before it
/// are of no use to a session that has nothing yet.
fn answered(
    control: &Control,
    frames: &mut Frames,
    from: &Receiver<Reply>,
    until: Option<Instant>,
    interrupt: Option<fn() -> bool>,
) -> Reply {
    loop {
        if let Ok(reply) = from.try_recv() {
            return reply;
        }
        if let Some((json, fds)) = frames.next()? {
            control.deliver(json, fds)?;
            continue;
        }
        if let Some(refused) = control.refusal() {
            return Err(refused);
        }
        let notice = Instant::now() + NOTICE;
        let socket = control.socket()?;
        let come = sys::readable_by(&*socket, until.map_or(notice, |u| u.min(notice)));
        if matches!(come, Ok(false)) && until.is_none_or(|u| u > notice) {
            if interrupt.is_some_and(|look| look()) {
                return Err(interrupted());
            }
            continue;
        }
        if matches!(come, Ok(false)) {
            return Err(unanswered("hello")); // it listens: that is not the same as none
        }
        if come.is_err() || !frames.receive(&socket)? {
            return Err(Error::new(Code::NoBroker, "try again", "the broker was gone before it had answered"));
        }
    }
}

/// Refuses a broker of another protocol or layout: its pages would be misread without a sign.
fn check_broker(b: &HelloReply) -> Result<()> {
    let (theirs, ours) = ((b.protocol, b.layout), (PROTOCOL, LAYOUT));
    let remedy = match theirs.cmp(&ours) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => {
            "end the broker, which is the older of the two, and start it from the program that came with the client"
        }
        std::cmp::Ordering::Greater => "update the client, which is the older of the two",
    };
    let what = format!(
        "the broker ({}) speaks protocol {} with layout {}, this client ({}) protocol {PROTOCOL} with layout {LAYOUT}",
        b.version,
        b.protocol,
        b.layout,
        env!("CARGO_PKG_VERSION")
    );
    Err(Error::new(Code::Version, remedy, what))
}

fn hello(o: &Options, resume: Option<Resume>) -> Hello<'_> {
    Hello {
        protocol: PROTOCOL,
        layout: LAYOUT,
        // Whether there is a driver is seen when a tensor on a GPU is met.
        features: if cfg!(feature = "cuda") { &["cuda"] } else { &[] },
        client: ClientInfo { name: &o.name, language: o.language, version: env!("CARGO_PKG_VERSION") },
        namespace: &o.namespace,
        pid: std::process::id(),
        alive: true,
        resume,
    }
}

/// Accepts one token of `[A-Za-z0-9_-]`.
pub(crate) fn check_token(what: &str, text: &str, most: usize) -> Result<()> {
    let fits = !text.is_empty() && text.len() <= most;
    if fits && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-') {
        return Ok(());
    }
    let remedy = format!("use 1 to {most} of A-Z a-z 0-9 _ -");
    Err(Error::new(Code::InvalidArgument, remedy, format!("{what} {text:?} is not one token")))
}

/// Accepts tokens joined by `/`, at most 200 bytes.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.len() > 200 {
        let what = format!("name of {} bytes is longer than 200", name.len());
        return Err(Error::new(Code::InvalidArgument, "use a shorter one", what));
    }
    name.split('/').try_for_each(|t| check_token("part of a name", t, 200))
}

/// A connection to the user's broker, with this process's own pages. Clones are the same session; it
/// ends when the last clone, tensor, topic and reader of it is gone, or with [`Session::close`].
///
/// Any thread may use it.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let stats = session.stats();
/// assert_eq!((stats.handovers, session.namespace()), (0, "default"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Session {
    pub(crate) inner: Arc<Inner>,
    got: Arc<Got>,
}

/// What this process has and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The memory that this session allocates in.
    pub pool: PoolStats,
    /// Messages sent and names set.
    pub handovers: u64,
}

impl Session {
    pub(crate) fn of(inner: Arc<Inner>) -> Session {
        Session { inner, got: Arc::default() }
    }

    /// Opens a session with the user's broker, which is started if none runs.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// let session = baton::Session::connect()?;
    /// let mut x = session.alloc::<f32>(&[1024, 1024])?;
    /// x.fill(1.0);
    /// session.topic("batches")?.send(x.freeze())?;
    /// # Ok(()) }
    /// ```
    pub fn connect() -> Result<Session> {
        Session::builder().connect()
    }

    /// The socket of the broker that [`connect`](Session::connect) would use: `$BATON_ADDRESS`, else
    /// the user's.
    pub fn default_address() -> Result<String> {
        start::address_of(None).map(|(socket, _)| socket)
    }

    /// Settings for a session that is not the usual one.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    ///
    /// let usual = baton::Session::default_address()?;
    /// let other = baton::Session::builder()
    ///     .address(&usual) // awaited; without an address the user's broker is started
    ///     .start(false)
    ///     .binary("/usr/local/bin/baton")
    ///     .namespace("team")
    ///     .name("loader")
    ///     .timeout(Duration::from_secs(5))
    ///     .connect()?;
    /// assert_eq!((other.instance(), other.address()), (session.instance(), session.address()));
    /// assert!(other.serial() != session.serial() && other.namespace() == "team");
    /// drop(other.zeros::<f32>(&[1000])?);
    /// other.collect(); // to the broker, for others
    /// let same = other.clone();
    /// other.close();
    /// assert!(same.is_ended());
    /// # Ok(()) }
    /// ```
    pub fn builder() -> Builder {
        let program = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
        let program = || program.file_name().map_or("rust".into(), |n| n.to_string_lossy().into_owned());
        let mut name = std::env::var("BATON_NAME").ok().filter(|n| !n.is_empty()).unwrap_or_else(program);
        name.truncate(name.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|n| *n <= 48).last().unwrap_or(0));
        let namespace = std::env::var("BATON_NAMESPACE").ok().filter(|n| !n.is_empty());
        Builder(Options {
            address: None,
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            start: true,
            name,
            binary: None,
            timeout: Duration::from_secs(30),
            socket: String::new(),
            named: false,
            language: "rust",
            interrupted: None,
            place: None,
        })
    }

    /// Opens another session with the settings of this one, which stays as it is: after `SessionLost` a
    /// program goes on with the new one, and opens its topics, queues and readers there. Tensors of the old
    /// one can be read and copied. Errors: as [`Builder::connect`].
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let mut session = baton::Session::connect()?;
    /// match session.topic("batches") {
    ///     Err(e) if e.code() == baton::Code::SessionLost => session = session.reopen()?,
    ///     other => drop(other?),
    /// }
    /// # assert_ne!(session.reopen()?.serial(), session.serial());
    /// # Ok(()) }
    /// ```
    pub fn reopen(&self) -> Result<Session> {
        Ok(Session::of(connect(self.inner.options.clone())?))
    }

    /// Where this session's names live.
    pub fn namespace(&self) -> &str {
        &self.inner.options.namespace
    }

    /// The broker's socket.
    pub fn address(&self) -> &str {
        &self.inner.options.socket
    }

    /// Identifies the broker's memory; handles of another are refused.
    pub fn instance(&self) -> &str {
        &self.inner.pages.instance
    }

    /// The serial by which listings name this session; 0 in the child of a fork that cannot open one.
    pub fn serial(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.pages.serial)
    }

    /// Looks for storages that nobody holds any more and gives empty memory back to the broker, which
    /// otherwise stays here, warm, for the next tensors. The bytes given back.
    pub fn collect(&self) -> u64 {
        self.inner.opened_here().map_or(0, |inner| inner.collect(true))
    }

    /// What this process has and did.
    pub fn stats(&self) -> Stats {
        let Some(inner) = self.inner.opened_here() else { return Stats::default() };
        let mut pool = inner.pool.stats();
        if let Some(d) = inner.devices.get() {
            d.add_stats(&mut pool);
        }
        if let Some(h) = inner.huge.get() {
            h.add_stats(&mut pool);
        }
        Stats { pool, handovers: inner.handovers.load(Ordering::Relaxed) }
    }

    /// Ends the session for all its clones: calls of it, of its topics and of its readers are the error
    /// `Closed` from then on. What was sent is still received. Tensors that are still there keep their
    /// bytes until they are dropped. It returns when the broker has heard of it. While no broker runs, or the
    /// broker stands still, it returns after two seconds, and the next answer of a broker ends the session;
    /// dropping the last clone does not wait.
    pub fn close(self) {
        self.inner.close(true);
    }
}
