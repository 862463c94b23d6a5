//! How threads wait for what other processes do: they spin, and then sleep on the session's bell.
//!
//! A [`Waiter`] is a session's, whose [`Hub`](hub::Hub) has few threads sleep on the bell; [`Waiting`] is what the session has to do with the wait sets of one topic, and a
//! [`Sleeper`] sleeps for poll loops and async tasks. A [`Relay`](relay::Relay) rings what waits within a call once that is
//! over. Any thread may use them.
//!
//! Ownership: nothing here keeps a session. Hostile peers: a ring that comes for nothing costs a look, one that does
//! not come a second. Death: a dead process rings no session, so each sleeper looks again once a second.

mod hub;
#[cfg(not(baton_loom))]
mod poll;
#[cfg(not(baton_loom))]
mod relay;
mod sets;
#[cfg(not(baton_loom))]
mod sleeper;
mod spinner;
#[cfg(all(feature = "tokio", not(baton_loom)))]
mod tasks;
mod waiter;
#[cfg(not(baton_loom))]
mod watchers;

#[cfg(not(baton_loom))]
pub(crate) use poll::PollFd;
#[cfg(not(baton_loom))]
pub(crate) use relay::{Enclosing, Relay, Rouse, Rung, enclosed, enclosing};
pub(crate) use sets::{Place, Waiting};
#[cfg(not(baton_loom))]
pub(crate) use sleeper::Sleeper;
pub(crate) use spinner::Spinner;
#[cfg(all(feature = "tokio", not(baton_loom)))]
pub(crate) use tasks::{Tasks, noticed};
pub(crate) use waiter::{Look, Side, Waiter, wait};
#[cfg(not(baton_loom))]
pub(crate) use watchers::Watchers;
