//! The places of a function that gives parts: as many of its calls run at a time as it says. A call that waits until
//! its caller takes parts gives its place to another, and has one again before it goes on.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use crate::holding::Opening;

#[derive(Debug)]
pub(super) struct Places {
    limit: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    busy: u32,
    /// The number of the next that waits.
    next: u64,
    /// Those that wait, the first one first.
    queue: VecDeque<u64>,
}

/// A turn at a place.
#[derive(Debug)]
pub(super) struct Ticket(u64);

impl Places {
    pub(super) fn new(limit: u32) -> Places {
        Places { limit, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Waits for a place behind those that wait already; without one only where the session has ended.
    pub(super) fn take(&self, inner: &Opening) {
        let ticket = self.queue();
        while !self.try_take(inner, &ticket) {
            // What a signal's hook wants of the wait is none of a thread that holds a call.
            let _ = inner.wait(None, None, None, || self.is_next(&ticket) || inner.is_closed());
        }
    }

    /// A place, if one is free and none waits for it.
    pub(super) fn take_free(&self) -> bool {
        let mut s = self.state();
        let free = s.queue.is_empty() && s.busy < self.limit;
        s.busy += u32::from(free);
        free
    }

    /// Begins to wait.
    pub(super) fn queue(&self) -> Ticket {
        let mut s = self.state();
        s.next += 1;
        let ticket = s.next;
        s.queue.push_back(ticket);
        Ticket(ticket)
    }

    /// Waits no more.
    pub(super) fn forget(&self, inner: &Opening, ticket: Ticket) {
        let mut s = self.state();
        s.queue.retain(|t| *t != ticket.0);
        let waits = s.busy < self.limit && !s.queue.is_empty();
        drop(s);
        if waits {
            inner.waiter.wake();
        }
    }

    /// Whether it is the turn of a ticket, and a place is free.
    pub(super) fn is_next(&self, ticket: &Ticket) -> bool {
        let s = self.state();
        s.busy < self.limit && s.queue.front() == Some(&ticket.0)
    }

    /// Takes the place that a ticket is for, if it is its turn. Where the session has ended it need not be.
    pub(super) fn try_take(&self, inner: &Opening, ticket: &Ticket) -> bool {
        let mut s = self.state();
        let turn = s.busy < self.limit && s.queue.front() == Some(&ticket.0);
        if !turn && !inner.is_closed() {
            return false;
        }
        s.busy += 1;
        s.queue.retain(|t| *t != ticket.0);
        let more = s.busy < self.limit && !s.queue.is_empty();
        drop(s);
        if more {
            inner.waiter.wake(); // the next one's turn
        }
        true
    }

    /// Gives a place back.
    pub(super) fn give(&self, inner: &Opening) {
        let mut s = self.state();
        s.busy = s.busy.saturating_sub(1);
        let waits = !s.queue.is_empty();
        drop(s);
        if waits {
            // What waits has read its bell before it looked, and the bell changes after the place.
            inner.waiter.wake();
        }
    }
}
