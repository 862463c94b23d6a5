//! What a message consists of on the wire: references to storages, and the body that describes
//! tensors, value tree and meta. Parsing works on private copies of what another process wrote, and
//! checks every number before use.

mod body;
mod brief;
mod description;
mod order;
mod parse;
mod refs;

#[cfg(all(test, not(baton_loom)))]
mod vectors;

#[cfg(all(test, not(baton_loom)))]
pub(crate) use body::append_bytes;
pub(crate) use body::{Body, Encoder, Extents, TensorDesc, first_bytes};
pub(crate) use brief::Brief;
pub(crate) use description::Description;
pub(crate) use order::Order;
pub(crate) use parse::Descriptions;
pub(crate) use refs::{Ref, parse_spill, spill_front};
