//! Queues: each item to one taker.

use std::sync::Arc;
use std::time::Duration;

use super::message::Message;
use super::reader::{Reader, Start};
use super::topic::TopicState;
use crate::deadline::{at_once, deadline, persist};
use crate::error::{Code, Error, Result};
use crate::layout::slot_flag;
use crate::sys::PerProcess;
use crate::turns::Turnstile;
use crate::value::Payload;

/// Gives each item to one taker. Threads that share a `Queue` take turns in `get`; open it once for
/// each thread that is to take side by side.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use std::time::Duration;
///
/// let queue = session.queue("work")?;
/// queue.put(session.from_slice(&[2], &[1, 2])?.freeze(), Duration::from_secs(1))?;
/// let item = queue.get(Duration::from_secs(1))?;
/// assert_eq!(item.tensor()?.to_vec::<i32>()?, [1, 2]);
/// assert_eq!(queue.get(Duration::ZERO).unwrap_err().code(), baton::Code::Empty);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Queue {
    pub(crate) state: Arc<TopicState>,
    takers: Arc<PerProcess<Takers>>,
}

/// The memberships of one process: of its threads and of its tasks. A child of a fork joins anew.
#[derive(Debug, Default)]
pub(crate) struct Takers {
    of_threads: Turnstile<Option<Reader>>,
    #[cfg(feature = "tokio")]
    pub(crate) of_tasks: tokio::sync::Mutex<Option<Reader>>,
}

/// Why a take ended without an item.
pub(crate) const NO_ITEM: &str = "no item";

impl Queue {
    pub(crate) fn new(state: Arc<TopicState>) -> Queue {
        Queue { state, takers: Arc::default() }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn timed_out(&self) -> crate::error::Error {
        self.state.timed_out(Code::Empty, NO_ITEM)
    }

    /// Its name, empty for a private one.
    pub fn name(&self) -> &str {
        &self.state.info.name
    }

    /// What opens a private queue in another process.
    pub fn token(&self) -> &str {
        &self.state.info.token
    }

    /// Adds an item, which its taker may write, waiting while the queue is full: without a limit when there is no
    /// timeout.
    ///
    /// # Errors
    /// `Full`, `Closed`, `InvalidArgument`, `OutOfMemory`.
    pub fn put(&self, value: impl Into<Payload>, timeout: impl Into<Option<Duration>>) -> Result<()> {
        let until = deadline(timeout);
        self.state.here()?.send(&mut value.into(), slot_flag::WRITABLE, until)
    }

    /// As `put`, also waiting while `most` items of this session, fewer than the depth, are not taken yet: for
    /// items of which fewer should wait than of others. One may be there in any case.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    ///
    /// let queue = session.queue("large")?;
    /// let item = || Ok::<_, baton::Error>(session.from_slice(&[2], &[1, 2])?.freeze());
    /// queue.put_ahead(item()?, 1, Duration::ZERO)?;
    /// let full = queue.put_ahead(item()?, 1, Duration::ZERO).unwrap_err();
    /// assert_eq!(full.code(), baton::Code::Full);
    /// queue.put(item()?, Duration::ZERO)?; // of which more may wait
    /// # Ok(()) }
    /// ```
    #[doc(hidden)] // of the Python extension, for queues that stand in place of torch's
    pub fn put_ahead(&self, value: impl Into<Payload>, most: u32, timeout: impl Into<Option<Duration>>) -> Result<()> {
        let until = deadline(timeout);
        self.state.here()?.send_ahead(&mut value.into(), slot_flag::WRITABLE, most.max(1), until)
    }

    /// Takes an item, waiting for one: without a timeout until it comes, not at all with zero. Errors:
    /// `Empty`; `Closed` when the queue was closed and is empty.
    pub fn get(&self, timeout: impl Into<Option<Duration>>) -> Result<Message> {
        let until = deadline(timeout);
        let takers = &self.takers()?.of_threads;
        match takers.lock_until(until, || self.state.inner.interrupted())? {
            Some(mut reader) => {
                let joined = persist(until, Error::is_away, || self.joined(&mut reader).map(|_| ()));
                joined.map_err(|e| self.state.deadline_error(e, Code::Empty, NO_ITEM))?;
                self.joined(&mut reader)?.receive(until, Code::Empty, NO_ITEM)
            }
            None => Err(self.state.here()?.timed_out(Code::Empty, NO_ITEM)),
        }
    }

    /// Takes an item if one is there; other threads that are in [`get`](Queue::get) come first. Errors as of
    /// [`get`](Queue::get), but for `Empty`.
    pub fn try_get(&self) -> Result<Option<Message>> {
        match self.takers()?.of_threads.try_lock() {
            Some(mut reader) => at_once(|| self.joined(&mut reader)?.poll()),
            None => Ok(None),
        }
    }

    /// Adds an item if there is room; false when there is none. Errors as of [`put`](Queue::put).
    pub fn try_put(&self, value: impl Into<Payload>) -> Result<bool> {
        self.state.here()?.try_send(&mut value.into(), slot_flag::WRITABLE)
    }

    /// How many items wait to be taken. `NotFound` if the queue is no more.
    pub fn waiting(&self) -> Result<usize> {
        self.state.here()?.waiting()
    }

    pub(crate) fn takers(&self) -> Result<&Takers> {
        self.takers.get_or(Takers::default)
    }

    /// Joins the takers at the first call.
    pub(crate) fn joined<'a>(&self, reader: &'a mut Option<Reader>) -> Result<&'a mut Reader> {
        Ok(match reader {
            Some(r) => r,
            none => none.insert(Reader::new(self.state.here()?.clone(), Start::All, Some("queue"))?),
        })
    }

    /// Whether it was closed for all sessions. In the child of a fork that is not known without a request.
    #[doc(hidden)]
    pub fn is_closed(&self) -> bool {
        !self.state.inner.is_foreign() && self.state.is_closed()
    }

    /// Closes the queue for all sessions, while a drop leaves it: puts fail with `Closed`, and takers get it once the
    /// queue is empty.
    pub fn end(&self) -> Result<()> {
        self.state.here()?.end()
    }
}
