//! Memory of GPUs: what a session makes there, rents out and lends, and the order between streams of several processes.

mod deferred;
mod gpu;
mod lend;
mod order;
mod rent;

pub(crate) use gpu::{Devices, Gpu};
pub(crate) use order::{Done, Named, OnGpu, Point};
