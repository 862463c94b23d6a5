//! Tensors given to others: views, buffers, capsules, the exchange table.

pub(crate) mod buffer;
pub(crate) mod dlpack;
pub(crate) mod exchange;
pub(crate) mod index;
pub(crate) mod torch;
pub(crate) mod view;
