//! Errors: one type, whose [`Code`] is the protocol's. Match by code, never by text.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Map, Value};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What went wrong, with the same name in every language of the protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every code that this version knows.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// The name in the protocol.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// Reads a name of the protocol.
            pub fn parse(text: &str) -> Option<Code> {
                match text { $($text => Some(Code::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// No broker answers at the address.
    NoBroker = "NoBroker",
    /// The broker was there and has gone.
    BrokerLost = "BrokerLost",
    /// Broker and client have another protocol or layout.
    Version = "Version",
    /// A malformed frame or message.
    Protocol = "Protocol",
    /// An unknown op, feature or device.
    Unsupported = "Unsupported",
    /// The socket, file or memory may not be used.
    PermissionDenied = "PermissionDenied",
    /// The machine, the container or the broker's limit is full.
    OutOfMemory = "OutOfMemory",
    /// The quota of the session or of all together is used up.
    QuotaExceeded = "QuotaExceeded",
    /// A table is full: sessions, topics, lanes, chunks, references.
    TooMany = "TooMany",
    /// A shape, dtype, name or option that cannot be.
    InvalidArgument = "InvalidArgument",
    /// A handle that is malformed, outside its segment, or of another broker that this one does not reach.
    InvalidHandle = "InvalidHandle",
    /// The storage has been recycled.
    Expired = "Expired",
    /// The session, topic or queue is closed.
    Closed = "Closed",
    /// An option differs from what exists.
    Conflict = "Conflict",
    /// Nothing has that name.
    NotFound = "NotFound",
    /// Time ran out.
    Timeout = "Timeout",
    /// Time ran out and the queue has no item.
    Empty = "Empty",
    /// Time ran out and there is no room.
    Full = "Full",
    /// The memory must not be written.
    ReadOnly = "ReadOnly",
    /// It is not possible now; try again.
    Busy = "Busy",
    /// A mistake in Baton.
    Internal = "Internal",
    /// No process provides the function.
    NoProvider = "NoProvider",
    /// The process that ran the function has ended without a reply.
    ProviderDied = "ProviderDied",
    /// The caller wanted the call no more.
    Cancelled = "Cancelled",
    /// The function itself failed: the detail has `kind`, `message` and `trace`.
    Remote = "Remote",
    /// Nothing is known of another host now: the link to it is down, or it does not answer.
    Unreachable = "Unreachable",
    /// The host that has the bytes is gone.
    HostLost = "HostLost",
    /// The broker said that the session is over: open a new one. Tensors of it can still be read.
    SessionLost = "SessionLost",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened, to what, and what to do next.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let e = session.get("never/set", std::time::Duration::ZERO).unwrap_err();
/// match e.code() {
///     baton::Code::NotFound => println!("{}: {}", e.message(), e.remedy()),
///     _ => return Err(e),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error(Box<Parts>);

impl fmt::Debug for Error {
    /// What a program prints that ends with it: the code, and what `Display` says. With `{:#?}` all parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { self.0.fmt(f) } else { write!(f, "{}: {self}", self.0.code) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if self.0.remedy.is_empty() { Ok(()) } else { write!(f, " ({})", self.0.remedy) }
    }
}

impl std::error::Error for Error {
    /// The error of the system or of another crate that it comes from, such as an [`io::Error`].
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|e| e.as_ref() as _)
    }
}

#[derive(Debug, Clone)]
struct Parts {
    code: Code,
    message: String,
    remedy: String,
    detail: Map<String, Value>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(code: Code, remedy: impl Into<String>, message: impl Into<String>) -> Error {
        let (message, remedy) = (message.into(), remedy.into());
        Error(Box::new(Parts { code, message, remedy, detail: Map::new(), source: None }))
    }

    /// Notes what it comes from.
    pub(crate) fn caused_by(mut self, e: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.0.source = Some(Arc::new(e));
        self
    }

    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Error {
        self.0.detail.insert(key.to_owned(), value.into());
        self
    }

    pub(crate) fn with_detail(mut self, detail: Map<String, Value>) -> Error {
        self.0.detail = detail;
        self
    }

    /// The error of a function that failed, for its caller: of a kind that has a name where the function is written, as
    /// `ValueError`; an empty one is `error`.
    pub fn of_kind(kind: impl Into<String>, message: impl Into<String>) -> Error {
        let (mut kind, message) = (kind.into(), message.into());
        if kind.is_empty() {
            kind.push_str("error");
        }
        let e = Error::new(Code::Remote, "", of_kind(&kind, &message));
        e.with("kind", kind).with("message", message)
    }

    /// Adds where the error of a function happened, and what led to it: `kind`, `message`, `trace` and `cause` again.
    #[doc(hidden)]
    #[must_use]
    pub fn traced(self, trace: String, cause: Option<Value>) -> Error {
        let e = self.with("trace", trace);
        match cause {
            Some(cause) => e.with("cause", cause),
            None => e,
        }
    }

    /// The protocol's code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What happened, to what.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What to do next; empty when there is nothing to say.
    pub fn remedy(&self) -> &str {
        &self.0.remedy
    }

    /// Whether it says that a session is over, which no other answer of a broker will change.
    pub(crate) fn is_session_lost(&self) -> bool {
        let denied = || self.0.code == Code::PermissionDenied && self.0.detail.contains_key(SESSION);
        self.0.code == Code::SessionLost || denied()
    }

    /// Figures that belong to the error, by name.
    pub fn detail(&self) -> &Map<String, Value> {
        &self.0.detail
    }

    /// Whether time ran out: `Timeout`, `Empty` and `Full`.
    pub fn is_timeout(&self) -> bool {
        matches!(self.0.code, Code::Timeout | Code::Empty | Code::Full)
    }

    /// Whether it is the `Closed` of a topic or queue that was closed for all sessions, after all that was
    /// sent: what a loop over it ends with. The `Closed` of a session or reader that this program has
    /// closed is none.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let topic = session.topic("t")?;
    /// let mut reader = topic.reader(baton::Start::New)?;
    /// topic.end()?;
    /// assert!(reader.recv(None).unwrap_err().is_end());
    /// session.close();
    /// assert!(!reader.recv(None).unwrap_err().is_end());
    /// # Ok(()) }
    /// ```
    pub fn is_end(&self) -> bool {
        self.0.code == Code::Closed && self.0.detail.contains_key(TOPIC)
    }

    /// Whether there was no memory: `OutOfMemory` and `QuotaExceeded`.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.0.code, Code::OutOfMemory | Code::QuotaExceeded)
    }

    /// Whether the broker has given up pickles for what it refused: one more attempt may find what they held. And
    /// whether that is memory of other sessions, which are asked for it.
    pub(crate) fn gave_up(&self) -> Option<bool> {
        self.0.detail.contains_key(GIVEN_UP).then(|| self.0.detail.contains_key(ELSEWHERE))
    }

    /// Whether it leaves open that a broker has carried the request out.
    pub(crate) fn is_uncertain(&self) -> bool {
        matches!(self.code(), Code::Timeout | Code::BrokerLost)
    }

    /// Whether a request has had no answer, and another one may have: it was not the program's hook that ended the wait.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_away() || self.code() == Code::BrokerLost
    }

    /// Whether the broker has not answered a request in time, as one that is suspended.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_away() && self.0.code == Code::Timeout
    }

    /// Whether no broker has answered a request in time: it is suspended, or there has been none.
    pub(crate) fn is_away(&self) -> bool {
        self.0.detail.contains_key(REQUEST)
    }

    /// Says of a request that has waited for a broker that none came in time.
    pub(crate) fn away(self, op: &str) -> Error {
        if self.0.code == Code::BrokerLost { self.with(REQUEST, op) } else { self }
    }

    /// Adds to the end of a wait that the broker has not answered meanwhile.
    pub(crate) fn unanswered_too(mut self, e: &Error) -> Error {
        self.0.message += &format!("; {}", e.message());
        self.0.detail.extend(e.0.detail.clone());
        self
    }

    /// Whether this process cannot reach the device that `detail` names.
    pub(crate) fn about_device(&self) -> bool {
        self.0.detail.contains_key("device")
    }
}

impl Error {
    /// The error of a use of what the program itself has closed.
    #[doc(hidden)]
    pub fn closed_here(what: &str) -> Error {
        Error::new(Code::Closed, "open a new one", format!("{what} was closed"))
    }
}

const REQUEST: &str = "request";
/// The details of a refusal for which pickles were given up.
const GIVEN_UP: &str = "given_up";
const ELSEWHERE: &str = "elsewhere";
/// The detail of the error of a topic that is closed.
const TOPIC: &str = "topic";

/// An error of a program that functions end with: its kind is known to callers in any language. `?` makes an [`Error`] of
/// it, whose message is what it displays.
///
/// At a caller in Rust it is the [`source`](std::error::Error::source) again if [`register_error`] has named its kind.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use std::error::Error;
///
/// #[derive(Debug)]
/// struct OutOfStock(String);
/// impl std::fmt::Display for OutOfStock {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         f.write_str(&self.0)
///     }
/// }
/// impl Error for OutOfStock {}
/// impl baton::KindedError for OutOfStock {
///     fn kind(&self) -> &str {
///         "shop.OutOfStock"
///     }
/// }
///
/// baton::register_error("shop.OutOfStock", |e| OutOfStock(e.detail()["message"].as_str().unwrap_or_default().to_owned()))?;
/// let _order = session.function("order", |args, _| {
///     let what: String = args.get(0)?;
///     if what == "pens" { Err(OutOfStock(what))? } else { Ok(1) }
/// })?;
/// let e = session.call::<i64>("order", ("pens",)).unwrap_err();
/// assert_eq!((e.code(), e.detail()["kind"].as_str()), (baton::Code::Remote, Some("shop.OutOfStock")));
/// let own = e.source().and_then(|e| e.downcast_ref::<OutOfStock>());
/// assert_eq!(own.map(|e| e.0.as_str()), Some("pens"));
/// # Ok(()) }
/// ```
pub trait KindedError: std::error::Error {
    /// Such as `shop.OutOfStock`.
    fn kind(&self) -> &str;
}

impl<E: KindedError + Send + Sync + 'static> From<E> for Error {
    fn from(e: E) -> Error {
        Error::of_kind(e.kind(), e.to_string()).caused_by(e)
    }
}

/// The error of a program that the error of a function is.
type Make = dyn Fn(&Error) -> Arc<dyn std::error::Error + Send + Sync> + Send + Sync;

static REGISTERED: RwLock<BTreeMap<String, Arc<Make>>> = RwLock::new(BTreeMap::new());

/// Has errors of functions that have a kind be errors of the program as well, which are their `source`: for the whole
/// process. See [`KindedError`].
///
/// # Errors
/// `Conflict` if the kind was registered already; `InvalidArgument` for an empty one, and one of Baton's own (`baton.…`).
pub fn register_error<E>(kind: &str, make: impl Fn(&Error) -> E + Send + Sync + 'static) -> Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    if kind.is_empty() || kind.starts_with("baton.") {
        let what = format!("{kind:?} cannot be the kind of an error of a program");
        return Err(Error::new(Code::InvalidArgument, "use a name of your own, as shop.OutOfStock", what));
    }
    let mut all = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    if all.contains_key(kind) {
        let what = format!("the kind of errors {kind} is registered already");
        return Err(Error::new(Code::Conflict, "register it once, at the start of the program", what));
    }
    all.insert(kind.to_owned(), Arc::new(move |e| Arc::new(make(e))));
    Ok(())
}

impl Error {
    /// The error of a function, with that of the program for its kind as its source.
    pub(crate) fn into_registered(mut self) -> Error {
        let all = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        let make = self.0.detail.get("kind").and_then(|kind| all.get(kind.as_str()?)).cloned();
        drop(all); // what it calls may register more
        if let Some(make) = make {
            self.0.source = Some(make(&self));
        }
        self
    }
}

/// What the error of a function says: its kind, where it has one, and its message.
pub(crate) fn of_kind(kind: &str, message: &str) -> String {
    if kind.is_empty() { message.to_owned() } else { format!("{kind}: {message}") }
}

/// The error of a request that the broker has not answered in time.
pub(crate) fn unanswered(op: &str) -> Error {
    let what = format!("time ran out waiting for the broker to answer {op}");
    Error::new(Code::Timeout, "wait longer, or look whether the broker runs", what).with(REQUEST, op)
}

/// The error of a wait that the program's own hook has ended.
pub(crate) fn interrupted() -> Error {
    Error::new(Code::Timeout, "call it again", "the wait was interrupted by a signal")
}

/// A system call that failed while doing something that has a name.
pub(crate) fn os(code: Code, remedy: &str, what: impl fmt::Display, cause: impl Into<io::Error>) -> Error {
    let cause = cause.into();
    Error::new(code, remedy, format!("{what}: {cause}")).caused_by(cause)
}

/// The detail of an error of a session that is over.
const SESSION: &str = "session";

/// The error of every call of a session that a broker has ended.
pub(crate) fn lost(instance: &str, serial: u64, why: &str) -> Error {
    let remedy = "open a new session; tensors of this one can still be read, copied and released";
    over(Code::SessionLost, remedy, instance, serial, why)
}

/// The same, as the broker has said it.
pub(crate) fn told_lost(instance: &str, serial: u64, said: &Error) -> Error {
    over(Code::SessionLost, said.remedy(), instance, serial, said.message())
}

/// The error of every call of a session whose user may not use the broker any more, as that has said.
pub(crate) fn denied(instance: &str, serial: u64, said: &Error) -> Error {
    let remedy = format!("{}; tensors of this session can still be read, copied and released", said.remedy());
    over(Code::PermissionDenied, &remedy, instance, serial, said.message())
}

fn over(code: Code, remedy: &str, instance: &str, serial: u64, why: &str) -> Error {
    Error::new(code, remedy, format!("session {serial} of broker {instance} is over: {why}"))
        .with(SESSION, serial)
        .with("instance", instance)
}

/// The error of a topic that was closed for all sessions.
pub(crate) fn ended(name: &str, what: impl fmt::Display) -> Error {
    closed(what).with(TOPIC, name)
}

pub(crate) fn closed(what: impl fmt::Display) -> Error {
    Error::new(Code::Closed, "open a new one", format!("{what} is closed"))
}

#[cold]
pub(crate) fn expired(why: &str) -> Error {
    Error::new(
        Code::Expired,
        "ask the sender for it again, or hold a lease",
        format!("the tensor is no longer kept: {why}"),
    )
}

#[cold]
pub(crate) fn disagree(what: impl Into<String>) -> Error {
    Error::new(Code::Protocol, "stop the broker and start one of this client's version", what)
}
