//! Waits of async tasks: for messages, and for room.
//!
//! A task cannot sleep on a futex. One thread of the session does so for all its tasks, from the first
//! wait on, and tells them all of a ring; each looks for itself and waits again when there was nothing
//! for it. Between a ring and the next wait nothing is announced, so a busy program costs its senders
//! nothing. No descriptor and no timer is used but that of a timeout.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::Queue;
use super::channel::Topic;
use super::message::Message;
use super::name::{Watch, bundle_of};
use super::queue::NO_ITEM;
use super::reader::Reader;
use super::send::LANE_FULL;
use super::topic::TopicState;
use crate::deadline::{deadline, shortly};
use crate::error::{Code, Result, closed};
use crate::layout::slot_flag;
use crate::sys::started;
use crate::value::Bundle;
use crate::value::Payload;
use crate::waits::{Sleeper, Tasks, noticed};

impl TopicState {
    fn tasks(&self) -> Result<Arc<Tasks>> {
        let inner = &self.inner;
        inner.check_open()?;
        if let Some(t) = inner.watchers.tasks.get() {
            return Ok(t.clone());
        }
        let made = started(Sleeper::start(Notify::new(), inner.waiter.parking.clone()))?;
        if let Err(second) = inner.watchers.tasks.set(made) {
            second.end(); // another thread was faster
        }
        if inner.is_closed() {
            inner.watchers.end(); // meanwhile, by a thread that saw none to end
        }
        inner.watchers.tasks.get().cloned().ok_or_else(|| closed("the session"))
    }

    /// Looks now and after each ring, until there is something; `None` when the time is over.
    pub(crate) async fn wait_for<T>(
        &self,
        until: Option<Instant>,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let tasks = self.tasks()?;
        loop {
            let mut rung = pin!(tasks.alarm.notified());
            rung.as_mut().enable();
            tasks.arm();
            let found = shortly(&mut look)?;
            if found.is_some() {
                return Ok(found);
            }
            match until {
                None => noticed(rung).await,
                Some(until) if timeout_at(until.into(), noticed(rung)).await.is_err() => return Ok(None),
                Some(_) => {}
            }
        }
    }
}

impl Reader {
    /// As [`recv`](Reader::recv), for async tasks: while it waits the thread is free for others. It may be
    /// cancelled, for instance by `select!`; no message is lost with it. A timeout needs tokio's timer. What
    /// it does between waits is as short as a hand-over, except that memory met for the first time costs a
    /// round trip to the broker. Errors as of [`recv`](Reader::recv).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let topic = session.topic("batches")?;
    /// let mut reader = topic.reader(baton::Start::New)?;
    /// topic.send(session.zeros::<f32>(&[3])?.freeze())?;
    /// let message = reader.recv_async(None).await?;
    /// assert_eq!(message.tensor()?.shape(), [3]);
    /// # Ok(()) }) }
    /// ```
    pub async fn recv_async(&mut self, timeout: impl Into<Option<Duration>>) -> Result<Message> {
        let until = deadline(timeout);
        self.receive_async(until, Code::Timeout, "no message").await
    }

    async fn receive_async(&mut self, until: Option<Instant>, code: Code, what: &str) -> Result<Message> {
        self.join_here()?;
        let topic = self.topic.clone();
        topic.wait_for(until, || self.poll()).await?.ok_or_else(|| self.timed_out(code, what))
    }
}

impl Watch {
    /// As [`next`](Watch::next), for async tasks; see [`Reader::recv_async`]. Errors as of
    /// [`next`](Watch::next).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let mut watch = session.watch("weights")?;
    /// session.set("weights", session.zeros::<f32>(&[3])?.freeze())?;
    /// assert_eq!(watch.next_async(None).await?.revision(), 1);
    /// # Ok(()) }) }
    /// ```
    pub async fn next_async(&mut self, timeout: impl Into<Option<Duration>>) -> Result<Bundle> {
        let until = deadline(timeout);
        let m = self.reader.receive_async(until, Code::Timeout, "no revision").await?;
        bundle_of(&m, self.reader.topic.is_stale())
    }
}

impl TopicState {
    async fn send_async(self: &Arc<Self>, mut value: Payload, flags: u32, timeout: Option<Duration>) -> Result<()> {
        let until = deadline(timeout);
        let here = self.here()?;
        let sent = here.wait_for(until, || Ok(here.attempt_send(&mut value, flags)?.then_some(())));
        sent.await?.ok_or_else(|| here.timed_out(Code::Full, LANE_FULL))
    }
}

impl Topic {
    /// As [`send`](Topic::send), for async tasks: while a lossless topic is full the thread is free for
    /// others. It may be cancelled, for instance by `select!`: then nothing was sent, and what was to
    /// be sent is dropped with the future, so a caller that wants to try again gives `&tensor` or a clone. A
    /// timeout (`Full`) needs tokio's timer.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let lossless = baton::TopicOptions::default().overwrite(false).depth(1);
    /// let topic = session.topic_with("batches", &lossless)?;
    /// let mut reader = topic.reader(baton::Start::New)?;
    /// let x = session.zeros::<f32>(&[3])?.freeze();
    /// topic.send_async(&x, None).await?;
    /// let second = tokio::spawn(async move { topic.send_async(x, None).await });
    /// assert_eq!(reader.recv_async(None).await?.sequence(), 1);
    /// second.await.unwrap()?; // there was room once the first had been received
    /// # Ok(()) }) }
    /// ```
    pub async fn send_async(&self, value: impl Into<Payload>, timeout: impl Into<Option<Duration>>) -> Result<()> {
        self.state.send_async(value.into(), 0, timeout.into()).await
    }
}

impl Queue {
    /// As [`put`](Queue::put), for async tasks; see [`Topic::send_async`]. Errors as of [`put`](Queue::put).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// # use std::time::Duration;
    /// let session = baton::Session::connect()?;
    /// let queue = session.queue_with("work", &baton::QueueOptions::default().depth(1))?;
    /// let x = session.zeros::<f32>(&[3])?.freeze();
    /// queue.put_async(&x, None).await?;
    /// let full = queue.put_async(&x, Duration::from_millis(10)).await.unwrap_err();
    /// assert_eq!(full.code(), baton::Code::Full);
    /// let cancelled = tokio::time::timeout(Duration::from_millis(10), queue.put_async(&x, None)).await;
    /// assert!(cancelled.is_err() && queue.waiting()? == 1);
    /// # Ok(()) }) }
    /// ```
    pub async fn put_async(&self, value: impl Into<Payload>, timeout: impl Into<Option<Duration>>) -> Result<()> {
        self.state.send_async(value.into(), slot_flag::WRITABLE, timeout.into()).await
    }

    /// As [`get`](Queue::get), for async tasks; see [`Reader::recv_async`]. Tasks that share a `Queue` take
    /// turns; threads in [`get`](Queue::get) are takers beside them. Errors as of [`get`](Queue::get).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let queue = session.queue("work")?;
    /// queue.put_async(session.zeros::<f32>(&[3])?.freeze(), None).await?;
    /// assert_eq!(queue.get_async(None).await?.tensor()?.shape(), [3]);
    /// # Ok(()) }) }
    /// ```
    pub async fn get_async(&self, timeout: impl Into<Option<Duration>>) -> Result<Message> {
        let until = deadline(timeout);
        let turn = self.takers()?.of_tasks.lock();
        let mut reader = match until {
            None => turn.await,
            Some(until) => match timeout_at(until.into(), turn).await {
                Ok(reader) => reader,
                Err(_) => return Err(self.timed_out()),
            },
        };
        let here = self.state.here()?;
        let got = here.wait_for(until, || self.joined(&mut reader)?.poll());
        got.await?.ok_or_else(|| here.timed_out(Code::Empty, NO_ITEM))
    }
}
