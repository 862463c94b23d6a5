//! How threads wait for what other processes do: they spin, and then sleep on the session's bell.
//!
//! A [`Waiter`] is a session's; [`Waiting`] is what the session has to do with the wait sets of one topic, and a
//! [`Sleeper`] sleeps for poll loops and async tasks. Any thread may use them.
//!
//! Ownership: nothing here keeps a session. Hostile peers: a ring that comes for nothing costs a look, one that does
//! not come a second. Death: a dead process rings no session, so each sleeper looks again once a second.

mod poll;
mod sets;
mod sleeper;
mod spinner;
#[cfg(feature = "tokio")]
mod tasks;
mod waiter;
mod watchers;

pub(crate) use poll::PollFd;
pub(crate) use sets::{Place, Waiting};
pub(crate) use sleeper::Sleeper;
pub(crate) use spinner::Spinner;
#[cfg(feature = "tokio")]
pub(crate) use tasks::Tasks;
pub(crate) use waiter::{Look, Side, Waiter, wait};
pub(crate) use watchers::Watchers;
