//! The sizes in which storages are handed out.

use crate::layout::ALIGNMENT;

/// Rounds a size up: to 256 bytes below 4 KiB, above to an eighth of the power of two below it, so
/// that tensors of nearly one size share a bin and at most an eighth is wasted.
pub(super) fn class_of(n: u64) -> u64 {
    let mut step = ALIGNMENT;
    if n > 4096 {
        step = step.max((1 << (63 - (n - 1).leading_zeros())) >> 3);
    }
    n.next_multiple_of(step)
}

/// The number of a class that `class_of` made: 16 up to 4 KiB, then 8 for each power of two.
pub(super) fn bin_of(class: u64) -> usize {
    if class <= 4096 {
        return (class / ALIGNMENT) as usize;
    }
    let log = 63 - (class - 1).leading_zeros();
    let eighths = (class >> (log - 3)) - 8;
    (16 + 8 * u64::from(log - 12) + eighths) as usize
}
