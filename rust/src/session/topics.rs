//! Opening topics and queues.

use super::Session;
use crate::error::Result;
use crate::lanes::{Queue, QueueOptions, Topic, TopicOptions, Topics, check_name};
use crate::wire::ops::TopicOpen;

impl Session {
    /// Opens or makes a topic with the defaults. An empty name makes a private one. Errors:
    /// `InvalidArgument`, `Conflict`, `TooMany`.
    pub fn topic(&self, name: &str) -> Result<Topic> {
        self.topic_with(name, &TopicOptions::default())
    }

    /// Opens or makes a topic. Errors as of [`topic`](Session::topic), and `NotFound` for one that must
    /// exist.
    pub fn topic_with(&self, name: &str, o: &TopicOptions) -> Result<Topic> {
        if !name.is_empty() {
            check_name(name)?;
        }
        let request = TopicOpen {
            name: Some(name).filter(|n| !n.is_empty()),
            kind: "topic",
            depth: o.depth,
            overwrite: o.overwrite,
            description: o.description,
            linger: o.linger.map(|d| d.as_secs_f64()),
            create: !o.must_exist,
            ..TopicOpen::default()
        };
        Ok(Topic { state: Topics::open(self.inner()?, "topic.open", &request)? })
    }

    /// Opens another process's private topic by its token. Errors: `NotFound` if no private topic has the
    /// token, `Conflict` if a queue has it.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    /// use baton::{Payload, TopicOptions};
    ///
    /// let lossless = TopicOptions::default().overwrite(false).depth(1).description(512).linger(Duration::ZERO);
    /// let topic = session.topic_with("", &lossless)?; // without a name: private
    /// let mut members = [topic.group_reader("g")?, session.private_topic(topic.token())?.group_reader("g")?];
    /// topic.send_timeout(Payload::default(), Duration::from_secs(1))?;
    /// assert!(!topic.try_send(Payload::default())?); // full
    /// assert_eq!(members[0].recv(None)?.sequence(), 1);
    /// assert!(members[1].try_recv()?.is_none()); // one of them has it
    /// # Ok(()) }
    /// ```
    pub fn private_topic(&self, token: &str) -> Result<Topic> {
        let request = TopicOpen { token: Some(token), kind: "topic", ..TopicOpen::default() };
        Ok(Topic { state: Topics::open(self.inner()?, "topic.open", &request)? })
    }
}

impl Session {
    /// Opens or makes a queue with the defaults. An empty name makes a private one. Errors as of
    /// [`topic`](Session::topic).
    pub fn queue(&self, name: &str) -> Result<Queue> {
        self.queue_with(name, &QueueOptions::default())
    }

    /// Opens or makes a queue. Errors as of [`topic_with`](Session::topic_with).
    pub fn queue_with(&self, name: &str, o: &QueueOptions) -> Result<Queue> {
        if !name.is_empty() {
            check_name(name)?;
        }
        let request = TopicOpen {
            name: Some(name).filter(|n| !n.is_empty()),
            kind: "queue",
            depth: o.depth,
            redeliver: o.redeliver,
            description: o.description,
            linger: o.linger.map(|d| d.as_secs_f64()),
            create: !o.must_exist,
            ..TopicOpen::default()
        };
        Ok(Queue::new(Topics::open(self.inner()?, "topic.open", &request)?))
    }

    /// Opens another process's private queue by its token. Errors: `NotFound` if no private queue has the
    /// token, `Conflict` if a topic has it.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::{Code, Payload, QueueOptions};
    ///
    /// let again = QueueOptions::default().redeliver(true).description(512).linger(std::time::Duration::ZERO);
    /// let queue = session.queue_with("", &again)?; // without a name: private
    /// let theirs = session.private_queue(queue.token())?;
    /// assert!(theirs.try_get()?.is_none());
    /// queue.put(Payload::default(), None)?;
    /// assert_eq!(theirs.try_get()?.unwrap().sequence(), 1);
    /// let absent = session.queue_with("absent", &QueueOptions::default().must_exist()).unwrap_err();
    /// assert_eq!(absent.code(), Code::NotFound);
    /// # Ok(()) }
    /// ```
    pub fn private_queue(&self, token: &str) -> Result<Queue> {
        let request = TopicOpen { token: Some(token), kind: "queue", ..TopicOpen::default() };
        Ok(Queue::new(Topics::open(self.inner()?, "topic.open", &request)?))
    }
}
