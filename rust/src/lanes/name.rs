//! Names: published revisions that are not written any more, and live ones that all write.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::closer::Closer;
use super::message::Message;
use super::reader::{Reader, Start};
use super::topic::Topics;
use crate::deadline::deadline;
use crate::error::{Code, Result};
use crate::holding::Opening;
use crate::value::Bundle;
use crate::wire::ops::NameRef;

/// Follows a name: the current revision at once, then always the newest.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let mut watch = session.watch("weights/actor")?;
/// session.set("weights/actor", session.zeros::<f32>(&[4])?.freeze())?;
/// assert_eq!(watch.next(None)?.revision(), 1);
/// # Ok(()) }
/// ```
pub struct Watch {
    pub(crate) reader: Reader,
}

impl Watch {
    /// Follows a name.
    pub(crate) fn new(inner: &Arc<Opening>, name: &str) -> Result<Watch> {
        let topic = Topics::open(inner, "name.open", &NameRef { name })?;
        let mut reader = Reader::new(topic, Start::Last, None)?;
        reader.closer = Closer::new(&reader.topic.inner, "the watch");
        Ok(Watch { reader })
    }

    /// The newest revision not seen yet, waiting for one: without a limit when there is no timeout, not at all with
    /// zero. A name that was deleted may be set again: the watch waits for that. Error: `Timeout`.
    pub fn next(&mut self, timeout: impl Into<Option<Duration>>) -> Result<Bundle> {
        self.next_until(deadline(timeout))
    }

    pub(crate) fn next_until(&mut self, until: Option<Instant>) -> Result<Bundle> {
        let m = self.reader.receive(until, Code::Timeout, "no revision")?;
        bundle_of(&m, self.reader.topic.is_stale())
    }
}

impl Watch {
    /// The newest revision not seen yet, if there is one. Errors as of [`next`](Watch::next).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let mut watch = session.watch("run")?;
    /// assert!(watch.try_next()?.is_none());
    /// let until_this_session_ends = baton::NameOptions::default().ephemeral(true);
    /// session.set_with("run", session.zeros::<f32>(&[3])?.freeze(), &until_this_session_ends)?;
    /// assert_eq!(watch.try_next()?.map(|bundle| bundle.revision()), Some(1));
    /// # Ok(()) }
    /// ```
    pub fn try_next(&mut self) -> Result<Option<Bundle>> {
        let m = self.reader.try_recv()?;
        m.map(|m| bundle_of(&m, self.reader.topic.is_stale())).transpose()
    }
}

impl Watch {
    /// What closes it from another thread, as [`Reader::closer`] does.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let mut watch = session.watch("weights")?;
    /// watch.closer().close();
    /// assert_eq!(watch.try_next().unwrap_err().message(), "the watch was closed");
    /// # Ok(()) }
    /// ```
    pub fn closer(&self) -> Closer {
        self.reader.closer()
    }
}

pub(crate) fn bundle_of(m: &Message, stale: bool) -> Result<Bundle> {
    let mut b = m.bundle()?;
    (b.revision, b.stamp, b.stale) = (m.sequence(), m.stamp(), stale);
    Ok(b)
}
