//! Values: nested structures of tensors and scalars, as the tree of the protocol
//! (docs/protocol.md, section 6).

mod decode;
mod encode;

pub(crate) use decode::{decode, json_to_py};
pub(crate) use encode::{Take, encode, encode_as, meta};

/// Levels of JSON that a tree may have, tags included.
const MOST_DEPTH: usize = 100;
/// Digits that an integer may have.
const MOST_DIGITS: usize = 4096;
/// Integers beyond it, both ways, are tagged.
const MOST_SAFE: i64 = (1 << 53) - 1;
