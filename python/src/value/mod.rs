//! Values: nested structures of tensors and scalars, as the tree of the protocol
//! (docs/protocol.md, section 6).
//!
//! Reading is the crate's: it checks the tree, and here its values become Python's. Writing is not: the
//! crate writes values whose tensors are there already, while here a walk through Python's objects finds
//! arrays of others first, which are then copied into one storage. A crate's `Value` in between would be
//! built, and thrown away, for each send. What is written is compared with the crate's reading, and with
//! Go's, by the tests.

mod arguments;
mod decimal;
mod decode;
mod encode;
mod functions;
mod kinds;
mod leaves;
mod limits;
mod names;
mod take;
mod tensordict;

pub(crate) use arguments::{arguments, of_args, of_reply, result};
pub(crate) use decode::{decode, of_bundle};
pub(crate) use encode::{encode, encode_as, with_meta};
pub(crate) use take::Take;
