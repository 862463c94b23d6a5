//! Several named tensors: what a message or a name consists of.

use std::sync::Arc;
use std::time::Duration;

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
    /// When the revision was set, by CLOCK_MONOTONIC; 0: it is none.
    pub(crate) stamp: u64,
    pub(crate) stale: bool,
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

    /// How long ago the revision of a name was set, also on another host; zero for other bundles.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// session.set("weights", session.zeros::<f32>(&[3])?.freeze())?;
    /// let weights = session.get("weights", None)?;
    /// assert!(weights.age() < std::time::Duration::from_secs(60) && !weights.is_stale());
    /// # Ok(()) }
    /// ```
    pub fn age(&self) -> Duration {
        let since = crate::sys::monotonic().wrapping_sub(self.stamp) as i64;
        Duration::from_nanos(if self.stamp == 0 { 0 } else { since.max(0) as u64 })
    }

    /// Whether the broker could not say, when the bundle was taken, that this revision is the newest of a name that spans
    /// several hosts: it has not got a newer one yet, or does not reach what orders them. An example is that of
    /// [`age`](Bundle::age).
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// The number that a name's revision got, 0 for other bundles. It grows with each revision, by more than one where
    /// the name spans several hosts.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether all may write the bundle in place, so that reads may see half a write.
    pub fn is_live(&self) -> bool {
        self.live
    }
}
