//! Topics as programs use them.

use std::sync::Arc;
use std::time::Duration;

use super::reader::{Reader, Start};
use super::token::check_token;
use super::topic::TopicState;
use crate::deadline::deadline;
use crate::error::Result;
use crate::value::Payload;

/// A channel of messages with many senders and many readers. Any thread may use it; it is left with
/// the last clone and reader.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let topic = session.topic_with("batches", &baton::TopicOptions::default().depth(4))?;
/// topic.send(session.zeros::<f32>(&[8])?.freeze())?;
/// let mut late = topic.reader(baton::Start::Last)?; // what is kept is still there
/// assert_eq!(late.recv(None)?.tensor()?.shape(), [8]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Topic {
    pub(crate) state: Arc<TopicState>,
}

impl Topic {
    /// Its name, empty for a private one.
    pub fn name(&self) -> &str {
        &self.state.info.name
    }

    /// What opens a private topic in another process.
    pub fn token(&self) -> &str {
        &self.state.info.token
    }

    /// Hands a value to every reader. No tensor is copied. In a lossless topic it waits until the
    /// slowest reader has made room.
    ///
    /// # Errors
    /// `Closed`, `InvalidArgument`, `OutOfMemory`, `QuotaExceeded`.
    #[inline]
    pub fn send(&self, value: impl Into<Payload>) -> Result<()> {
        self.state.here()?.send(&mut value.into(), 0, None)
    }

    /// As [`send`](Topic::send), waiting for room at most so long (`Full`).
    pub fn send_timeout(&self, value: impl Into<Payload>, timeout: Duration) -> Result<()> {
        self.state.here()?.send(&mut value.into(), 0, deadline(timeout))
    }

    /// As [`send`](Topic::send), without waiting: false when there is no room. Errors as of
    /// [`send`](Topic::send).
    pub fn try_send(&self, value: impl Into<Payload>) -> Result<bool> {
        self.state.here()?.try_send(&mut value.into(), 0)
    }

    /// Joins as a reader, of every message from `start` on. In a topic that overwrites it may lose messages;
    /// in a lossless topic senders wait for it. Error: `TooMany`.
    pub fn reader(&self, start: Start) -> Result<Reader> {
        Reader::new(self.state.here()?.clone(), start, None)
    }

    /// Joins a lossless topic as one of the readers that share its messages under a name. Errors:
    /// `InvalidArgument` for a name that is none, and in a topic that overwrites; `TooMany`.
    pub fn group_reader(&self, group: &str) -> Result<Reader> {
        check_token("group", group, 32)?;
        Reader::new(self.state.here()?.clone(), Start::New, Some(group))
    }

    /// Whether it was closed for all sessions. In the child of a fork that is not known without a request.
    #[doc(hidden)]
    pub fn is_closed(&self) -> bool {
        !self.state.inner.is_foreign() && self.state.is_closed()
    }

    /// Closes the topic for all sessions, while a drop leaves it: sends fail with `Closed`, and readers get it once they
    /// have received all that is there. What another sends at that moment may be received although the send
    /// fails, and not the other way round.
    pub fn end(&self) -> Result<()> {
        self.state.here()?.end()
    }
}
