//! Several named tensors: what a message or a name consists of.

use super::tensor::Tensor;

/// Named tensors in their order; a path in a nested value has its parts joined by `/`.
#[derive(Debug, Clone, Default)]
pub struct Bundle {
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) tree: Vec<u8>,
    pub(crate) revision: u64,
    pub(crate) live: bool,
}

impl Bundle {
    /// The tensor of a path; in a flat dict of tensors also of a key, whose path has `/` as `~1` and
    /// `~` as `~0`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let flat = self.tree.is_empty();
        let is = |path: &str| path == name || flat && path.replace("~1", "/").replace("~0", "~") == name;
        self.tensors.iter().find(|(path, _)| is(path)).map(|(_, t)| t)
    }

    /// The first tensor.
    pub fn first(&self) -> Option<&Tensor> {
        self.tensors.first().map(|(_, t)| t)
    }

    /// Names and tensors in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(n, t)| (n.as_str(), t))
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The JSON of the value tree (docs/protocol.md, section 6); empty: one unnamed tensor is the
    /// value itself, otherwise a flat dict.
    pub fn tree(&self) -> &[u8] {
        &self.tree
    }

    /// The number that a name's revision got, 0 for other bundles.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether everybody may write the bundle in place, so that reads may see half a write.
    pub fn is_live(&self) -> bool {
        self.live
    }
}
