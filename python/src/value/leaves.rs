//! What a walk through a value finds: tensors, and arrays of others, which are still to be copied.

use crate::arrays::source::Source;

/// The tensors and arrays of a value, in their order. There may be thousands: the two kinds stand apart, so
/// that neither has to be moved.
#[derive(Default)]
pub(super) struct Leaves {
    pub(super) arrays: Vec<Source>,
    pub(super) own: Vec<baton::Tensor>,
    pub(super) own_at: Vec<usize>, // where these stand among all
}

impl Leaves {
    pub(super) fn len(&self) -> usize {
        self.arrays.len() + self.own.len()
    }

    pub(super) fn push_own(&mut self, t: baton::Tensor) {
        self.own_at.push(self.len());
        self.own.push(t);
    }

    /// Makes room for so many of the kind that there is already.
    pub(super) fn reserve(&mut self, n: usize) {
        if self.own.is_empty() {
            return self.arrays.reserve(n);
        }
        self.own.reserve(n);
        self.own_at.reserve(n);
    }
}
