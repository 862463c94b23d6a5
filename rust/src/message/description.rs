//! The bytes that describe a message, as they were received.

use std::ops::Deref;

use super::first_bytes;

/// Words of the description of one tensor of four dimensions, and of a call with one argument.
const SHORT: usize = 12;

/// A private copy of a body. Short ones stand inline.
#[derive(Debug, Clone)]
pub(crate) enum Description {
    Short(usize, Words),
    Long(Box<[u8]>),
}

/// Bytes that are moved as words.
#[derive(Debug, Clone)]
#[repr(align(8))]
pub(crate) struct Words([[u8; 8]; SHORT]);

impl Description {
    /// The first `n` bytes of words, which have as many and mostly more: then a short description is
    /// moved in one go, with whatever stands behind it.
    #[inline]
    pub(crate) fn of_words(words: &[u64], n: usize) -> Description {
        match words.first_chunk::<SHORT>() {
            Some(some) if n <= 8 * SHORT => Description::Short(n, Words(some.map(u64::to_le_bytes))),
            _ => Description::Long(first_bytes(words, n).into()),
        }
    }
}

impl Deref for Description {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Description::Short(n, words) => &words.0.as_flattened()[..*n],
            Description::Long(all) => all,
        }
    }
}

impl From<Vec<u8>> for Description {
    fn from(all: Vec<u8>) -> Description {
        Description::Long(all.into())
    }
}
