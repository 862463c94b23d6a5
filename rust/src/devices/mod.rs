//! Memory of GPUs: what a session makes there, rents out and lends, and the order between streams of several processes.

mod all;
mod deferred;
mod gpu;
mod lend;
mod order;
mod rent;
mod uses;

pub(crate) use all::Devices;
pub(crate) use gpu::Gpu;
pub(crate) use order::{Done, Named, Point};
pub(crate) use uses::OnGpu;
