//! Options of topics, queues and names.

use std::time::Duration;

/// Options of a topic. One left out takes what exists, else the default; one that differs from the
/// existing topic's is the error `Conflict`.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let lossless = baton::TopicOptions::default().overwrite(false).depth(2);
/// let topic = session.topic_with("ranks", &lossless)?;
/// assert_eq!(session.topic("ranks")?.name(), topic.name()); // takes what exists
/// let e = session.topic_with("ranks", &baton::TopicOptions::default().depth(3)).unwrap_err();
/// assert_eq!(e.code(), baton::Code::Conflict);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct TopicOptions {
    pub(crate) depth: Option<u32>,
    pub(crate) overwrite: Option<bool>,
    pub(crate) description: Option<u32>,
    pub(crate) linger: Option<Duration>,
    pub(crate) must_exist: bool,
}

impl TopicOptions {
    /// How many messages of each sender are kept (default 8).
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// False makes a topic lossless: a send waits for the slowest reader.
    #[must_use]
    pub fn overwrite(mut self, yes: bool) -> Self {
        self.overwrite = Some(yes);
        self
    }

    /// Bytes of a slot for what describes a message (default 1024); a longer description costs a
    /// storage.
    #[must_use]
    pub fn description(mut self, bytes: u32) -> Self {
        self.description = Some(bytes);
        self
    }

    /// How long the topic stays when no session has it open (default 60 s).
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = Some(time);
        self
    }

    /// Opens only what is there: `NotFound` otherwise.
    #[must_use]
    pub fn must_exist(mut self) -> Self {
        self.must_exist = true;
        self
    }
}

/// Options of a queue. One left out takes what exists, else the default; one that differs from the
/// existing queue's is the error `Conflict`.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let queue = session.queue_with("work", &baton::QueueOptions::default().depth(1))?;
/// let x = session.zeros::<u8>(&[1])?.freeze();
/// assert!(queue.try_put(&x)? && !queue.try_put(&x)?);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct QueueOptions {
    pub(crate) depth: Option<u32>,
    pub(crate) redeliver: Option<bool>,
    pub(crate) description: Option<u32>,
    pub(crate) linger: Option<Duration>,
    pub(crate) must_exist: bool,
}

impl QueueOptions {
    /// How many items of each sender wait at most (default 64).
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Gives an item whose taker dies before dropping it to another.
    #[must_use]
    pub fn redeliver(mut self, yes: bool) -> Self {
        self.redeliver = Some(yes);
        self
    }

    /// Bytes of a slot for what describes an item (default 1024).
    #[must_use]
    pub fn description(mut self, bytes: u32) -> Self {
        self.description = Some(bytes);
        self
    }

    /// How long the queue stays when no session has it open (default 60 s).
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = Some(time);
        self
    }

    /// Opens only what is there: `NotFound` otherwise.
    #[must_use]
    pub fn must_exist(mut self) -> Self {
        self.must_exist = true;
        self
    }
}

/// Options of a revision of a name. They hold until the name is set again.
#[derive(Debug, Clone, Default)]
pub struct NameOptions {
    pub(crate) live: bool,
    pub(crate) ephemeral: bool,
}

impl NameOptions {
    /// True makes it one bundle that all sessions may write in place.
    #[must_use]
    pub fn live(mut self, yes: bool) -> Self {
        self.live = yes;
        self
    }

    /// True deletes the name at the end of this session.
    #[must_use]
    pub fn ephemeral(mut self, yes: bool) -> Self {
        self.ephemeral = yes;
        self
    }
}
