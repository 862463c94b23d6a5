//! What some broker must do, whichever: where one goes away before it has answered the next is asked.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use crate::error::{Code, Result};
use crate::wire::{Control, Reply};

/// A request that is made until a broker has answered it.
pub(crate) trait PendingRequest: Debug + Send {
    /// Asks by a connection.
    fn ask(&self, control: &Control) -> Result<Receiver<Reply>>;

    /// Notes that a broker was asked, and went away before it had answered.
    fn unanswered(&mut self);

    /// Does what follows from an answer of a broker.
    fn answered(self: Box<Self>, reply: Reply);

    /// Whether a broker has done it without being asked, as it writes in its file.
    fn is_done(&self) -> bool;

    /// Does what follows from that, or from the end of the session.
    fn end(self: Box<Self>);
}

/// Where pending requests that a broker was asked for wait for its answer: the session's thread.
pub(crate) trait Awaits {
    /// Has one wait.
    fn await_answer(&self, asked: Asked);
}

/// A pending request that a broker was asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    request: Box<dyn PendingRequest>,
    answer: Receiver<Reply>,
}

impl Asked {
    /// As it was before it was asked for.
    fn unanswered(mut self) -> Box<dyn PendingRequest> {
        self.request.unanswered();
        self.request
    }

    /// Does what follows from an answer; comes back where no broker has answered.
    fn complete(self, reply: Reply) -> Option<Box<dyn PendingRequest>> {
        match reply {
            Err(e) if e.code() == Code::BrokerLost || e.is_session_lost() => Some(self.unanswered()),
            reply => {
                self.request.answered(reply);
                None
            }
        }
    }

    /// Awaits the answer, and does what follows from it.
    pub(super) fn finish(self, receive: impl FnOnce(&Receiver<Reply>) -> Reply) -> Option<Box<dyn PendingRequest>> {
        let reply = receive(&self.answer);
        self.complete(reply)
    }
}

/// The connection of a session, and the pending requests that wait for another one.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) control: Arc<Control>,
    pending: Vec<Box<dyn PendingRequest>>,
}

impl Line {
    pub(super) fn new(control: Arc<Control>) -> Line {
        Line { control, pending: Vec::new() }
    }

    /// Whether a pending request waits for another connection.
    pub(super) fn is_behind(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Has a pending request wait for another connection.
    pub(crate) fn put_off(&mut self, request: Box<dyn PendingRequest>) {
        self.pending.push(request);
    }

    /// Asks the broker, whose answer the thread awaits; where there is none the next one is asked.
    pub(crate) fn send(&mut self, request: Box<dyn PendingRequest>, thread: &dyn Awaits) {
        match request.ask(&self.control) {
            Ok(answer) => thread.await_answer(Asked { request, answer }),
            Err(_) => self.pending.push(request),
        }
    }

    /// Takes those that are done, or all of them.
    pub(super) fn take_done(&mut self, all: bool) -> Vec<Box<dyn PendingRequest>> {
        self.pending.extract_if(.., |e| all || e.is_done()).collect()
    }

    /// Takes back those that were asked for; the ones that a broker has answered are to be completed.
    pub(super) fn take_back(&mut self, asked: Vec<Asked>) -> Vec<(Asked, Reply)> {
        let mut answered = Vec::new();
        for one in asked {
            match one.answer.try_recv() {
                Ok(reply) if !matches!(&reply, Err(e) if e.code() == Code::BrokerLost) => answered.push((one, reply)),
                _ => self.pending.push(one.unanswered()),
            }
        }
        answered
    }

    /// Has those that were asked for wait for another connection, whatever was answered.
    pub(super) fn take_unanswered(&mut self, asked: Vec<Asked>) {
        self.pending.extend(asked.into_iter().map(Asked::unanswered));
    }

    /// Puts a new connection in the place of a lost one. What is owed goes first by it, so that a later request
    /// finds left what was left.
    pub(super) fn renew(&mut self, control: Arc<Control>, thread: &dyn Awaits) {
        let owed = std::mem::replace(&mut self.control, control);
        for request in std::mem::take(&mut self.pending) {
            self.send(request, thread);
        }
        for owed in owed.take_owed() {
            let _ = self.control.tell_value(owed);
        }
    }
}

/// Does what follows from answers of a broker that is gone.
pub(super) fn complete_all(answered: Vec<(Asked, Reply)>) {
    for (one, reply) in answered {
        let _ = one.complete(reply); // which was an answer
    }
}
