//! What a message consists of on the wire: references to storages, and the body that describes
//! tensors, value tree and meta. Parsing works on private copies of what another process wrote, and
//! checks every number before use.

mod body;
mod parse;
mod refs;

#[cfg(test)]
mod vectors;

pub(crate) use body::{Body, TensorDesc};
pub(crate) use refs::{Ref, parse_spill, spill};
