//! What is sent: tensors under their names, a value tree, meta.

use std::sync::Arc;

use serde::Serialize;

use super::bundle::{Bundle, path_of};
use super::holding::Holding;
use super::inner::Inner;
use super::tensor::Tensor;
use crate::error::{Code, Error, Result};
use crate::layout::{reference, slot_flag};
use crate::message::{Body, Ref, TensorDesc, spill};
use crate::shm::{SlotHead, append_bytes};

/// A value to send, put or set: one tensor, or several under names; with meta where that is wanted.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let image = session.alloc::<u8>(&[28, 28])?.freeze();
/// let value = baton::Payload::named([("image", image)]).meta(&3)?;
/// session.topic("batches")?.send(value)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Payload {
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) tree: Vec<u8>,
    meta: Vec<u8>,
}

impl Payload {
    /// Tensors under the keys of a flat dict, which is what receivers in Python see.
    pub fn named<K: AsRef<str>>(tensors: impl IntoIterator<Item = (K, Tensor)>) -> Payload {
        let tensors: Vec<_> = tensors.into_iter().map(|(k, t)| (path_of(k.as_ref()), t)).collect();
        // No tensors and no tree would read as one unnamed tensor.
        let tree = if tensors.is_empty() { b"{}".to_vec() } else { Vec::new() };
        Payload { tensors, tree, meta: Vec::new() }
    }

    /// Attaches what JSON can hold.
    pub fn meta(mut self, meta: &impl Serialize) -> Result<Payload> {
        self.meta = serde_json::to_vec(meta).map_err(|e| {
            Error::new(Code::InvalidArgument, "use values that JSON can hold", format!("encode meta: {e}"))
        })?;
        Ok(self)
    }
}

impl From<Tensor> for Payload {
    fn from(t: Tensor) -> Payload {
        Payload { tensors: vec![(String::new(), t)], ..Payload::default() }
    }
}

impl From<&Tensor> for Payload {
    fn from(t: &Tensor) -> Payload {
        t.clone().into()
    }
}

impl From<&Bundle> for Payload {
    fn from(b: &Bundle) -> Payload {
        let tree = if b.is_empty() && b.tree.is_empty() { b"{}".to_vec() } else { b.tree.clone() };
        let flat = b.tree.is_empty();
        let name = |n: &String| if flat { path_of(n) } else { n.clone() };
        Payload { tensors: b.tensors.iter().map(|(n, t)| (name(n), t.clone())).collect(), tree, meta: Vec::new() }
    }
}

/// A message before it has a place.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) head: SlotHead,
    pub(crate) refs: Vec<Ref>,
    pub(crate) body: Vec<u8>,
    counted: Vec<(u32, bool)>, // what the place will count, as (index, own)
    spilled: Option<Holding>,
}

impl Outgoing {
    /// Gathers refs and body. Tensors of another session are refused: their memory is another
    /// broker's, or counted in another row.
    pub(crate) fn compose(inner: &Arc<Inner>, value: &Payload, flags: u32) -> Result<Outgoing> {
        let mut refs: Vec<Ref> = Vec::new();
        let mut counted = Vec::new();
        let mut desc = Body { tree: value.tree.clone(), meta: value.meta.clone(), tensors: Vec::new() };
        let mut bytes = 0;
        for (name, t) in &value.tensors {
            if !Arc::ptr_eq(&t.held.inner, inner) {
                let what = format!("tensor {name:?} belongs to another session");
                return Err(Error::new(Code::InvalidArgument, "send tensors of the same session", what));
            }
            t.check_shared()?;
            let mut storage = None;
            if let Some(h) = t.storage() {
                let at = refs.iter().position(|r| *r == h.reference).unwrap_or_else(|| {
                    refs.push(h.reference);
                    counted.push((h.reference.index, h.at.own));
                    refs.len() - 1
                });
                storage = Some(u16::try_from(at).map_err(|_| {
                    Error::new(
                        Code::InvalidArgument,
                        "pack tensors into one storage",
                        "a message of more than 65,535 storages",
                    )
                })?);
                bytes = t.num_bytes().saturating_add(bytes); // strides of 0 make many of few
            }
            desc.tensors.push(TensorDesc {
                storage,
                dtype: t.dtype(),
                device_type: 1,
                device_id: 0,
                offset: if storage.is_some() { t.offset } else { 0 },
                readonly: t.is_read_only(),
                shape: t.shape.clone(),
                strides: t.strides.clone(),
                name: name.clone(),
            });
        }
        let body = desc.encode()?;
        let head =
            SlotHead { flags, nref: 0, tensors: desc.tensors.len() as u16, bytes, body: body.len() as u32, stamp: 0 };
        Ok(Outgoing { head, refs, body, counted, spilled: None })
    }

    /// Lays the message out for a place with `room` bytes, in a spill storage of its own when it is
    /// too long.
    pub(crate) fn place(&mut self, inner: &Arc<Inner>, room: usize) -> Result<Vec<u64>> {
        if self.refs.len() * reference::SIZE as usize + self.body.len() <= room {
            self.head.nref = self.refs.len() as u16;
            let mut words: Vec<u64> = self.refs.iter().flat_map(|r| r.words()).collect();
            append_bytes(&mut words, &self.body);
            return Ok(words);
        }
        let bytes = spill(&self.refs, &self.body)?;
        let holding = inner.fill(bytes.len() as u64)?;
        let h = &holding.storages[0];
        let to = h.address(true)?;
        // SAFETY: the storage was just allocated with as many bytes, and nobody else has it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        let reference = h.reference;
        self.counted.insert(0, (reference.index, true));
        self.head.flags |= slot_flag::SPILLED;
        (self.head.nref, self.head.body) = (1, 0);
        self.spilled = Some(holding);
        Ok(reference.words().to_vec())
    }

    /// What the place will count, as (index, own).
    pub(crate) fn counted(&self) -> &[(u32, bool)] {
        &self.counted
    }

    /// The spill storage, if there is one; it is let go with this value, when the place counts it.
    pub(crate) fn spill_ref(&self) -> Option<Ref> {
        self.spilled.as_ref().map(|h| h.storages[0].reference)
    }
}
