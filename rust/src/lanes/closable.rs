//! Readers and watches of which several threads have one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::any::{Awaited, Object, Sealed, Shared, Waitable};
use super::closer::Closer;
use super::name::Watch;
use super::reader::Reader;
use super::topic::TopicState;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::holding::Opening;
use crate::turns::{Turn, Turns};

/// What receives, for bindings whose objects any thread may use: threads take turns with it, and it can be closed
/// while one of them waits.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use baton::bindings::Closable;
/// use baton::{Deadline, Reader};
///
/// let reader = Closable::new(session.topic("t")?.reader(baton::Start::New)?)?;
/// assert!(reader.try_with(Reader::try_recv)?.is_none());
/// assert!(baton::wait_any(&mut [&mut &reader], std::time::Duration::ZERO)?.is_empty());
/// reader.close();
/// let closed = reader.with(Deadline::after(None), || false, |r| r.recv(None)).unwrap_err();
/// assert_eq!(closed.code(), baton::Code::Closed);
/// assert_eq!(baton::wait_any(&mut [&mut &reader, &mut &reader], None)?, [0, 1]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Closable<T> {
    turns: Turns<Option<T>>,
    closer: Closer,
    /// Waits for several objects that look at this one when a turn has ended.
    passed_over: AtomicU32,
}

/// A [`Reader`] or a [`Watch`].
pub trait Receives: Send {
    fn reader(&self) -> &Reader;
    fn reader_mut(&mut self) -> &mut Reader;
}

impl Receives for Reader {
    fn reader(&self) -> &Reader {
        self
    }

    fn reader_mut(&mut self) -> &mut Reader {
        self
    }
}

impl Receives for Watch {
    fn reader(&self) -> &Reader {
        &self.reader
    }

    fn reader_mut(&mut self) -> &mut Reader {
        &mut self.reader
    }
}

impl<T: Receives> Closable<T> {
    /// Of a reader or a watch that is not in use.
    pub fn new(value: T) -> Result<Closable<T>> {
        let closer = value.reader().closer.clone();
        Ok(Closable { turns: Turns::new(Some(value))?, closer, passed_over: AtomicU32::new(0) })
    }

    fn gone(&self) -> Error {
        self.closer.check().err().unwrap_or_else(|| Error::closed_here("the reader"))
    }

    /// Receives at the thread's turn, which it waits for until the deadline, or until `look`, which is called after a
    /// signal, ends the wait.
    pub fn with<R>(
        &self,
        t: Deadline,
        look: impl Fn() -> bool,
        receive: impl FnOnce(&mut T) -> Result<R>,
    ) -> Result<R> {
        let mut turn = self.turns.lock(t.left(), look)?;
        let got = turn.as_mut().map_or_else(|| Err(self.gone()), receive);
        drop(turn);
        self.turn_ended();
        got
    }

    /// Looks, unless another thread is receiving.
    pub fn try_with<R>(&self, look: impl FnOnce(&mut T) -> Result<Option<R>>) -> Result<Option<R>> {
        self.closer.check()?;
        let Some(mut turn) = self.turns.try_lock()? else { return Ok(None) };
        let got = turn.as_mut().map_or_else(|| Err(self.gone()), look);
        drop(turn);
        self.turn_ended();
        got
    }

    /// Whether [`close`](Closable::close) was called.
    pub fn is_closed(&self) -> bool {
        self.closer.is_closed()
    }

    /// Ends it for all threads. It waits for none, since the one that receives may be this one, in a signal's handler.
    pub fn close(&self) {
        self.closer.close();
        self.turn_ended();
    }

    /// Drops what was closed, unless a thread is receiving, which does so after it; and has those look that passed it
    /// over.
    fn turn_ended(&self) {
        // One of the two that come here at the same moment, the closing one and the receiving one, sees the other: each
        // has written, and reads after this. So do one that has had its turn and one that passes it over.
        fence(Ordering::SeqCst);
        // In a forked child that cannot have it, it is gone already.
        if self.closer.is_closed()
            && let Ok(Some(mut turn)) = self.turns.try_lock()
        {
            drop(turn.take());
        }
        if self.passed_over.load(Ordering::Relaxed) > 0 {
            self.closer.wake();
        }
    }
}

impl<T: Receives> Waitable for &Closable<T> {}

impl<T: Receives> Sealed for &Closable<T> {
    fn awaited(&mut self) -> Awaited<'_> {
        let session = self.closer.session();
        Awaited(Object::Shared(Box::new(Awaiting { of: self, turn: None, session, passes: false })))
    }
}

/// One of them in a wait: it has its turn as soon as no other thread has one. Until then it is not ready, as a call
/// that does not wait would find nothing.
struct Awaiting<'a, T: Receives> {
    of: &'a Closable<T>,
    turn: Option<Turn<'a, Option<T>>>,
    session: Option<Arc<Opening>>,
    /// Whether it is counted in `passed_over`.
    passes: bool,
}

impl<T: Receives> Awaiting<'_, T> {
    fn reader(&self) -> Option<&Reader> {
        self.turn.as_ref()?.as_ref().map(T::reader)
    }
}

impl<T: Receives> Shared for Awaiting<'_, T> {
    fn is_ready(&mut self) -> Result<bool> {
        if self.turn.is_none() {
            self.of.closer.check()?;
            if !std::mem::replace(&mut self.passes, true) {
                self.of.passed_over.fetch_add(1, Ordering::SeqCst);
            }
            self.turn = self.of.turns.try_lock()?;
        }
        match &mut self.turn {
            None => Ok(false),
            Some(turn) => turn.as_mut().map_or_else(|| Err(self.of.gone()), |r| r.reader_mut().is_ready()),
        }
    }

    fn may_be_ready(&self) -> bool {
        match &self.turn {
            None => self.of.closer.is_closed() || self.of.turns.are_free(),
            Some(_) => self.reader().is_none_or(Reader::may_be_ready),
        }
    }

    fn topic(&self) -> Option<&TopicState> {
        self.reader().map(|r| &*r.topic)
    }

    fn session(&self) -> Option<&Opening> {
        self.reader().map(|r| &*r.topic.inner).or(self.session.as_deref())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self.of).addr()
    }
}

impl<T: Receives> Drop for Awaiting<'_, T> {
    fn drop(&mut self) {
        if self.passes {
            self.of.passed_over.fetch_sub(1, Ordering::SeqCst);
        }
        if self.turn.take().is_some() {
            self.of.turn_ended();
        }
    }
}
