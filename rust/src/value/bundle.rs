//! Several named tensors: what a message or a name consists of.

use std::sync::Arc;

use super::names::Names;
use crate::tensor::Tensor;

/// Named tensors in their order. The names of a flat dict are its keys; those of a nested value are
/// paths, keys and positions joined by `/` (with `~` in a key as `~0`, `/` as `~1`).
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let x = session.zeros::<f32>(&[3])?.freeze();
/// let state = baton::Payload::named([("w", x.clone()), ("b", x)]);
/// session.set("state", state.meta(&"epoch 3")?)?;
/// let bundle = session.get("state", None)?;
/// assert_eq!(bundle.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["w", "b"]);
/// assert_eq!(bundle.meta(), br#""epoch 3""#);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Bundle {
    pub(crate) names: Names,
    /// As many as names. What is sent of the bundle shares them.
    pub(crate) tensors: Arc<Vec<Tensor>>,
    pub(crate) tree: Vec<u8>,
    pub(crate) meta: Vec<u8>,
    pub(crate) revision: u64,
    pub(crate) live: bool,
}

impl Bundle {
    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find(|(n, _)| *n == name).map(|(_, t)| t)
    }

    /// The first tensor.
    pub fn first(&self) -> Option<&Tensor> {
        self.tensors.first()
    }

    /// Names and tensors in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.names.iter().zip(&*self.tensors)
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

    /// The JSON of what was attached by [`Payload::meta`](super::Payload::meta); empty when that was
    /// nothing. Sending the bundle on does not repeat it.
    pub fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// The number that a name's revision got, 0 for other bundles.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether all may write the bundle in place, so that reads may see half a write.
    pub fn is_live(&self) -> bool {
        self.live
    }
}
