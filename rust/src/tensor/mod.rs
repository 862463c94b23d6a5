//! Tensors: views of what this process holds, memory that is being filled, copies, and work of GPUs on them.

mod alloc;
mod base;
mod copied;
mod filling;
mod gpu;
mod handles;
mod holders;
mod order;
mod raw;
mod slice;

pub use base::Tensor;
pub use filling::TensorMut;
pub(crate) use order::{await_written, order_send};
