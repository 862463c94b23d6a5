//! Values: nested structures of tensors and scalars, as the tree of the protocol
//! (docs/protocol.md, section 6).
//!
//! Reading is the crate's: it checks the tree, and here its values become Python's. Writing is not: the
//! crate writes values whose tensors are there already, while here a walk through Python's objects finds
//! arrays of others first, which are then copied into one storage. A crate's `Value` in between would be
//! built, and thrown away, for each send. What is written is compared with the crate's reading, and with
//! Go's, by the tests.

mod decode;
mod encode;
mod take;
mod tensordict;

pub(crate) use decode::decode;
pub(crate) use encode::{encode, encode_as};
pub(crate) use take::Take;

use baton::{Payload, Session};
use pyo3::prelude::*;

use crate::errors::OrRaise;

/// The payload of a value, and of what goes along with it.
pub(crate) fn with_meta(
    session: &Session,
    value: &Bound<'_, PyAny>,
    meta: Option<&Bound<'_, PyAny>>,
) -> PyResult<Payload> {
    let p = encode(session, value)?;
    match meta {
        None => Ok(p),
        Some(m) => p.meta(&encode::meta(m)?).or_raise(value.py()),
    }
}

/// Levels of JSON that a tree may have, tags included.
const MOST_DEPTH: usize = 100;
/// Digits that an integer may have.
const MOST_DIGITS: usize = 4096;
/// Integers beyond it, both ways, are tagged.
const MOST_SAFE: i64 = (1 << 53) - 1;
