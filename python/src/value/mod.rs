//! Values: nested structures of tensors and scalars, as the tree of the protocol
//! (docs/protocol.md, section 6).
//!
//! Reading is the crate's: it checks the tree, and here its values become Python's. Of writing the text is the
//! crate's (`Tree`), and the walk is not: here one through Python's objects finds arrays of others first, which
//! are then copied into one storage. A crate's `Value` in between would be built, and thrown away, for each send.

mod arguments;
mod decode;
mod encode;
mod entries;
mod functions;
mod kinds;
mod leaves;
mod names;
mod numbers;
mod ordered;
mod take;
mod tensordict;

pub(crate) use arguments::{arguments, of_args, of_reply, result};
pub(crate) use decode::{decode, of_bundle};
pub(crate) use encode::{encode, encode_as, with_meta};
pub(crate) use ordered::{attributes, metadata, ordered_class};
pub(crate) use take::Take;
