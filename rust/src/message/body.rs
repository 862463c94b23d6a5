//! The body of a message: tensors, the JSON of the value tree, the JSON of meta.

use std::ops::Deref;

use crate::dims::Dims;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::{DESC_READ_ONLY, DESC_STRIDES, NO_REF, body as head, limits, tensor_desc as rec};

/// One TensorDesc: a view over a storage of the message. Type, device, and whether the view lies
/// within its storage are for the caller to check.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TensorDesc<'a, D = Dims> {
    /// Which Ref of the message; `None`: no elements, no storage.
    pub(crate) storage: Option<u16>,
    pub(crate) dtype: DType,
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
    /// Bytes, from the start of the storage.
    pub(crate) offset: u64,
    pub(crate) readonly: bool,
    pub(crate) shape: D,
    /// In elements; `None`: C-contiguous.
    pub(crate) strides: Option<D>,
    /// Path in the tree; empty: unnamed.
    pub(crate) name: &'a str,
}

/// Extents or strides of a description where they were received. They are copied but once, to where they
/// stay: a processor that moves what it has just written in parts waits for that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Extents<'a>(pub(super) &'a [[u8; 8]]);

impl<'a> Extents<'a> {
    /// The numbers in their order.
    #[inline(always)]
    pub(crate) fn iter(self) -> impl ExactSizeIterator<Item = i64> + Clone + 'a {
        self.0.iter().map(|n| i64::from_le_bytes(*n))
    }

    /// A copy.
    #[inline(always)]
    pub(crate) fn dims(self) -> Dims {
        Dims::from_fn(self.0.len(), |i| i64::from_le_bytes(self.0[i]))
    }
}

/// A body. Tree and meta are carried unread; an empty tree means: one unnamed tensor is the value
/// itself, otherwise a flat dict of the named tensors.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Body<'a> {
    pub(crate) tensors: Vec<TensorDesc<'a>>,
    pub(crate) tree: &'a [u8],
    pub(crate) meta: &'a [u8],
}

/// Words of a body before its tensors.
const HEAD_WORDS: usize = head::SIZE as usize / 8;

const _: () = {
    // `encode` writes the fixed part as words.
    assert!(rec::SIZE_AT == 0 && rec::REF == 2 && rec::CODE == 4 && rec::BITS == 5 && rec::LANES == 6);
    assert!(rec::NDIM == 8 && rec::NAME == 10 && rec::FLAGS == 12 && rec::ZERO == 14);
    assert!(rec::DEVICE_TYPE == 16 && rec::DEVICE_ID == 20 && rec::OFFSET == 24 && rec::SIZE == 32);
};

fn invalid(remedy: &str, what: String) -> Error {
    Error::new(Code::InvalidArgument, remedy, what)
}

/// Writes a body, which is words up to its texts, behind what is there: begin, each tensor, end.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    out: &'a mut Vec<u64>,
    begin: usize,
    tensors: usize,
}

impl<'a> Encoder<'a> {
    /// Begins a body at the end of `out`.
    #[inline]
    pub(crate) fn new(out: &'a mut Vec<u64>) -> Encoder<'a> {
        let begin = out.len();
        out.extend_from_slice(&[0; HEAD_WORDS]);
        Encoder { out, begin, tensors: 0 }
    }

    /// Adds a tensor. Refuses what has no wire form: too many tensors or dimensions, a tensor without
    /// storage that has elements, a name that is too long.
    #[inline(always)] // most of it falls away where there is no name
    pub(crate) fn add<D: Deref<Target = [i64]>>(&mut self, t: &TensorDesc<'_, D>) -> Result<()> {
        self.tensors += 1;
        if self.tensors > limits::TENSORS {
            let what = format!("a message of more than {} tensors", limits::TENSORS);
            return Err(invalid("send fewer at once", what));
        }
        t.encode(self.out)
    }

    /// Adds the rest and writes the lengths; the number of tensors, and how many bytes the body has.
    #[inline]
    pub(crate) fn end(self, tree: &[u8], meta: &[u8]) -> Result<(u16, u32)> {
        let Encoder { out, begin, tensors } = self;
        let table = 8 * (out.len() - begin - HEAD_WORDS);
        let bytes = head::SIZE as usize + table + tree.len() + meta.len();
        if bytes > limits::BODY {
            return Err(invalid(
                "put large values into tensors: they are handed over uncopied",
                format!("the description of the message is longer than {} bytes", limits::BODY),
            ));
        }
        let pair = |low: usize, high: usize| (high as u64) << 32 | low as u64;
        out[begin..][..HEAD_WORDS].copy_from_slice(&[pair(tensors, table), pair(tree.len(), meta.len())]);
        match (tree, meta) {
            ([], one) | (one, []) => append_bytes(out, one),
            _ => append_bytes(out, &[tree, meta].concat()),
        }
        Ok((tensors as u16, bytes as u32))
    }
}

#[cfg(test)]
impl Body<'_> {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out);
        self.tensors.iter().try_for_each(|t| encoder.add(t))?;
        let (_, n) = encoder.end(self.tree, self.meta)?;
        Ok(first_bytes(&out, n as usize))
    }
}

/// Adds bytes to words, padded to one.
pub(crate) fn append_bytes(words: &mut Vec<u64>, bytes: &[u8]) {
    let chunks = bytes.chunks_exact(8);
    let rest = chunks.remainder();
    words.extend(chunks.map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default())));
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u64::from_le_bytes(last));
    }
}

/// The first `n` bytes of words, which have as many.
pub(crate) fn first_bytes(words: &[u64], n: usize) -> Vec<u8> {
    let words = &words[..n.div_ceil(8)];
    let mut all = vec![0; 8 * words.len()];
    all.chunks_exact_mut(8).zip(words).for_each(|(bytes, w)| bytes.copy_from_slice(&w.to_le_bytes()));
    all.truncate(n);
    all
}

impl<D: Deref<Target = [i64]>> TensorDesc<'_, D> {
    #[inline(always)]
    fn encode(&self, out: &mut Vec<u64>) -> Result<()> {
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
        out.extend_from_slice(&[
            u64::from(short)
                | u64::from(self.storage.unwrap_or(NO_REF)) << 16
                | u64::from(self.dtype.code) << 32
                | u64::from(self.dtype.bits) << 40
                | u64::from(self.dtype.lanes) << 48,
            self.shape.len() as u64 | (self.name.len() as u64) << 16 | u64::from(flags) << 32,
            u64::from(self.device_type as u32) | u64::from(self.device_id as u32) << 32,
            self.offset,
        ]);
        self.shape.iter().for_each(|d| out.push(*d as u64));
        if let Some(strides) = &self.strides {
            strides.iter().for_each(|d| out.push(*d as u64));
        }
        if !self.name.is_empty() {
            append_bytes(out, self.name.as_bytes());
        }
        Ok(())
    }
}
