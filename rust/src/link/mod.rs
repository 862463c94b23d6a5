//! A session's line to its broker: finding one, starting the user's, requests, and the next broker after one that is
//! gone.

mod client;
#[cfg(test)]
pub(crate) mod fixture;
mod hello;
mod life;
mod options;
mod pending;
mod reach;
mod served;
mod serving;
mod start;
mod state_file;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use client::{Broker, Client, forked};
pub(crate) use hello::{answered, greet, greeted, leave, went_away};
pub(crate) use life::Link;
pub(crate) use options::Options;
pub(crate) use pending::PendingRequest;
pub(crate) use reach::reach;
pub(crate) use served::{Ending, Job, Opened, Pools, Served};
pub(crate) use start::{address_of, unreachable_at};
pub(crate) use thread::Thread;
