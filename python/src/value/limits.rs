//! Limits of a tree, which all languages keep.

/// Levels of JSON that a tree may have, tags included.
pub(super) const MOST_DEPTH: usize = 100;
/// Digits that an integer may have.
pub(super) const MOST_DIGITS: usize = 4096;
/// Integers beyond it, both ways, are tagged.
pub(super) const MOST_SAFE: i64 = (1 << 53) - 1;
