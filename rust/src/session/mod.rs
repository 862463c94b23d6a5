//! Sessions: one process's connection to its broker.

mod alloc;
mod binding;
mod close;
mod core;
mod file;
mod fork;
mod functions;
mod gpu;
mod handles;
mod heir;
mod inherit;
mod legacy;
mod names;
mod pin;
mod poll;
mod rent;
mod restore;
mod served;
mod shown;
mod topics;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use alloc::Allocation;
pub(crate) use fork::open_sessions;
pub use rent::DeviceAllocator;

use crate::deadline::{at_once, deadline};
use crate::devices::Devices;
use crate::error::{Code, Error, Result};
use crate::functions::Calls;
use crate::holding::Opening;
use crate::lanes::{Got, check_token};
use crate::ledger::PoolStats;
use crate::link::{Options, address_of, reach};
use crate::memory::{SessionFiles, traces};
use crate::sys;
use crate::tensor::Tensor;
use crate::wire::ops::{Nothing, Status, Unread};
use close::close;
use core::Core;
use served::reclaim;

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

    /// Opens the session.
    ///
    /// # Errors
    /// `NoBroker`, `Timeout` of a broker that does not answer, `Version`, `PermissionDenied`, `TooMany`,
    /// `InvalidArgument`.
    pub fn connect(self) -> Result<Session> {
        let mut o = self.0;
        (o.socket, o.named) = address_of(o.address.as_deref())?;
        check_token("namespace", &o.namespace, 32)?;
        if o.name.is_empty() || o.name.len() > 48 {
            let what = format!("client name {:?} is unusable", o.name);
            return Err(Error::new(Code::InvalidArgument, "use 1 to 48 bytes", what));
        }
        Ok(Session::of(connect(o)?))
    }
}

fn connect(o: Options) -> Result<Arc<Opening>> {
    if let Some(inner) = fork::reopened(&o) {
        return Ok(inner);
    }
    let (control, thread, files) = reach(&o, deadline(o.timeout), SessionFiles::open)?;
    let core = Arc::new(Core::new(o, files, control, thread, Vec::new(), sys::several_processors(), traces())?);
    let inner = core.open();
    core.start()?;
    fork::register(&core)?;
    Ok(inner)
}

/// A connection to the user's broker, with this process's own session file. Clones are the same session; it
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
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Arc<Opening>,
    got: Arc<Got>,
    calls: Arc<Calls>,
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

/// What a broker keeps for handles in pickles (made with [`Lease::Once`](crate::Lease::Once)) that were not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct UnreadPickles {
    /// How many there are.
    pub waiting: u64,
    /// Since the oldest of them was handed over.
    pub oldest: Duration,
    /// Of them, those that are old enough to be given up if memory is refused.
    pub may_go: u64,
    /// How many were given up.
    pub given_up: u64,
}

impl Session {
    /// The session to use in this process.
    #[inline]
    pub(crate) fn inner(&self) -> Result<&Arc<Opening>> {
        self.inner.here()
    }

    pub(crate) fn of(inner: Arc<Opening>) -> Session {
        Session { inner, got: Arc::default(), calls: Arc::default() }
    }

    /// Opens a session with the user's broker, which is started if none runs. Errors as of
    /// [`Builder::connect`].
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
        address_of(None).map(|(socket, _)| socket)
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
    /// one can be read and copied.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    ///
    /// # Example
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
        Ok(Session::of(connect(self.inner.link.options.clone())?))
    }

    /// Where this session's names live.
    pub fn namespace(&self) -> &str {
        &self.inner.link.options.namespace
    }

    /// The broker's socket.
    pub fn address(&self) -> &str {
        &self.inner.link.options.socket
    }

    /// Identifies the broker's memory. A handle of another instance is fetched if both brokers run with `--span`, else
    /// refused.
    pub fn instance(&self) -> &str {
        &self.inner.memory.files.instance
    }

    /// The serial by which listings name this session; 0 in the child of a fork that cannot open one.
    pub fn serial(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.memory.files.serial)
    }

    /// Looks for storages that have no holder any more and gives empty memory back to the broker, which
    /// otherwise stays here, warm, for the next tensors. The bytes given back.
    pub fn collect(&self) -> u64 {
        self.inner.opened_here().map_or(0, |inner| reclaim(inner, true))
    }

    /// What this process has and did.
    pub fn stats(&self) -> Stats {
        let Some(inner) = self.inner.opened_here() else { return Stats::default() };
        // What has no holder any more is free, though none was allocated since.
        inner.memory.each_pool(|p| p.find_free(&inner.access));
        let mut pool = inner.memory.pool_stats();
        if let Some(d) = Devices::known(&inner.memory) {
            d.add_stats(&inner.access, &mut pool);
        }
        Stats { pool, handovers: inner.handovers.load(Ordering::Relaxed) }
    }

    /// What the broker keeps for pickles that were not read, of all its sessions. `None` if no broker answers
    /// in a moment.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let handle = session.zeros::<f32>(&[3])?.freeze().handle(baton::Lease::Once)?;
    /// assert_eq!(session.unread_pickles().map(|u| u.waiting), Some(1));
    /// session.open(&handle)?;
    /// assert_eq!(session.unread_pickles().map(|u| u.waiting), Some(0));
    /// # Ok(()) }
    /// ```
    pub fn unread_pickles(&self) -> Option<UnreadPickles> {
        let inner = self.inner.opened_here()?;
        let status = at_once(|| inner.call::<_, Status>("status", &Nothing {}).map(Some)).ok()??;
        let Unread { waiting, oldest_seconds, may_go, given_up } = status.unread_pickles;
        let oldest = Duration::try_from_secs_f64(oldest_seconds).unwrap_or_default();
        Some(UnreadPickles { waiting, oldest, may_go, given_up })
    }

    /// Ends the session for all its clones: calls of it, of its topics and of its readers are the error
    /// `Closed` from then on. What was sent is still received. Tensors that are still there keep their
    /// bytes until they are dropped. It returns when the broker has been notified of it. While no broker runs, or the
    /// broker is unresponsive, it returns after two seconds, and the next answer of a broker ends the session;
    /// dropping the last clone does not wait.
    pub fn close(self) {
        close(&self.inner, true);
    }
}

impl Tensor {
    /// The session that it was allocated or received in.
    pub fn session(&self) -> Session {
        Session::of(self.held.inner().clone())
    }
}
