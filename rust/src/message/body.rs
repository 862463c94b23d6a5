//! The body of a message: tensors, the JSON of the value tree, the JSON of meta.

use crate::dims::Dims;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::{DESC_READ_ONLY, DESC_STRIDES, NO_REF, body as head, limits, tensor_desc as rec};

/// One TensorDesc: a view over a storage of the message. Type, device, and whether the view lies
/// within its storage are for the caller to check.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TensorDesc {
    /// Which Ref of the message; `None`: no elements, no storage.
    pub(crate) storage: Option<u16>,
    pub(crate) dtype: DType,
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
    /// Bytes, from the begin of the storage.
    pub(crate) offset: u64,
    pub(crate) readonly: bool,
    pub(crate) shape: Dims,
    /// In elements; `None`: C-contiguous.
    pub(crate) strides: Option<Dims>,
    /// Path in the tree; empty: unnamed.
    pub(crate) name: String,
}

/// A body. Tree and meta are carried unread; an empty tree means: one unnamed tensor is the value
/// itself, otherwise a flat dict of the named tensors.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Body {
    pub(crate) tensors: Vec<TensorDesc>,
    pub(crate) tree: Vec<u8>,
    pub(crate) meta: Vec<u8>,
}

fn invalid(remedy: &str, what: String) -> Error {
    Error::new(Code::InvalidArgument, remedy, what)
}

/// Writes a body: begin, each tensor, end.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    tensors: usize,
}

impl<'a> Encoder<'a> {
    /// Begins a body in `out`, whose content goes.
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Encoder<'a> {
        out.clear();
        out.resize(head::SIZE as usize, 0);
        Encoder { out, tensors: 0 }
    }

    /// Adds a tensor. Refuses what has no wire form: too many tensors or dimensions, a tensor without
    /// storage that has elements, a name that is too long.
    pub(crate) fn add(&mut self, t: &TensorDesc) -> Result<()> {
        self.tensors += 1;
        if self.tensors > limits::TENSORS {
            let what = format!("a message of more than {} tensors", limits::TENSORS);
            return Err(invalid("send fewer at once", what));
        }
        t.encode(self.out)
    }

    /// Adds the rest and writes the lengths; the number of tensors.
    pub(crate) fn end(self, tree: &[u8], meta: &[u8]) -> Result<u16> {
        let Encoder { out, tensors } = self;
        let table = out.len() - head::SIZE as usize;
        out.extend_from_slice(tree);
        out.extend_from_slice(meta);
        if out.len() > limits::BODY {
            return Err(invalid(
                "put large values into tensors: they are handed over uncopied",
                format!("the description of the message is longer than {} bytes", limits::BODY),
            ));
        }
        for (i, n) in [tensors, table, tree.len(), meta.len()].into_iter().enumerate() {
            out[4 * i..4 * i + 4].copy_from_slice(&(n as u32).to_le_bytes());
        }
        Ok(tensors as u16)
    }
}

#[cfg(test)]
impl Body {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out);
        self.tensors.iter().try_for_each(|t| encoder.add(t))?;
        encoder.end(&self.tree, &self.meta)?;
        Ok(out)
    }
}

impl TensorDesc {
    fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
        let refused = |remedy: &str, what: String| {
            let name: String = self.name.chars().take(200).collect();
            Err(invalid(remedy, format!("tensor {name:?} {what}")))
        };
        if self.shape.len() > limits::NDIM {
            return refused("reshape it", format!("has {} dimensions, at most 64 fit", self.shape.len()));
        }
        if self.strides.as_ref().is_some_and(|s| s.len() != self.shape.len()) {
            return refused("give one stride for each dimension, or none", "has another number of strides".into());
        }
        if self.shape.iter().any(|d| *d < 0) {
            return refused("correct the shape", "has a negative dimension".into());
        }
        if self.storage.is_none() && !self.shape.contains(&0) || self.storage == Some(NO_REF) {
            return refused("name its storage", "has elements but no storage".into());
        }
        let words = self.shape.len() + self.strides.as_ref().map_or(0, |s| s.len());
        let size = (rec::SIZE as usize + 8 * words + self.name.len()).next_multiple_of(8);
        let Ok(short) = u16::try_from(size) else {
            return refused("use a shorter name", format!("needs a description of {size} bytes"));
        };
        let mut flags = 0;
        flags |= if self.strides.is_some() { DESC_STRIDES } else { 0 };
        flags |= if self.readonly { DESC_READ_ONLY } else { 0 };
        let at = out.len();
        let mut fixed = [0; rec::SIZE as usize];
        let mut put = |at: u64, bytes: &[u8]| fixed[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        put(rec::SIZE_AT, &short.to_le_bytes());
        put(rec::REF, &self.storage.unwrap_or(NO_REF).to_le_bytes());
        put(rec::CODE, &[self.dtype.code]);
        put(rec::BITS, &[self.dtype.bits]);
        put(rec::LANES, &self.dtype.lanes.to_le_bytes());
        put(rec::NDIM, &(self.shape.len() as u16).to_le_bytes());
        put(rec::NAME, &(self.name.len() as u16).to_le_bytes());
        put(rec::FLAGS, &flags.to_le_bytes());
        put(rec::DEVICE_TYPE, &self.device_type.to_le_bytes());
        put(rec::DEVICE_ID, &self.device_id.to_le_bytes());
        put(rec::OFFSET, &self.offset.to_le_bytes());
        out.extend_from_slice(&fixed);
        self.shape.iter().for_each(|d| out.extend_from_slice(&d.to_le_bytes()));
        self.strides.iter().flat_map(|s| s.iter()).for_each(|d| out.extend_from_slice(&d.to_le_bytes()));
        out.extend_from_slice(self.name.as_bytes());
        out.resize(at + size, 0);
        Ok(())
    }
}
