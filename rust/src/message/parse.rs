//! Reading a body that another process wrote, from a private copy.

use super::body::{Body, Extents, TensorDesc};
use super::refs::{bad, u32_at, u64_at};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{DESC_READ_ONLY, DESC_STRIDES, NO_REF, body as head, limits, tensor_desc as rec};

/// A description as it is read.
type Read<'a> = TensorDesc<'a, Extents<'a>>;

/// The parts of a body, cut but not read.
struct Parts<'a> {
    count: usize,
    table: &'a [u8],
    tree: &'a [u8],
    meta: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(src: &'a [u8]) -> Result<Parts<'a>> {
        let size = head::SIZE as usize;
        if src.len() < size || src.len() > limits::BODY {
            return Err(bad(format!("a message body of {} bytes", src.len())));
        }
        let part = |at| u32_at(src, at) as usize;
        let (count, table) = (part(head::TENSORS), part(head::TABLE));
        let (tree, meta) = (part(head::TREE), part(head::META));
        let sum = [table, tree, meta].iter().try_fold(size, |a, n| a.checked_add(*n));
        if sum != Some(src.len()) {
            return Err(bad(format!("a message body of {} bytes has parts of {table}, {tree} and {meta}", src.len())));
        }
        if count > limits::TENSORS || count > table / rec::SIZE as usize {
            return Err(bad(format!("a message body has {count} tensors in a table of {table} bytes")));
        }
        let (table, rest) = src[size..].split_at(table);
        let (tree, meta) = rest.split_at(tree);
        Ok(Parts { count, table, tree, meta })
    }

    /// Reads tensor i, at the front of a table, and gives what stands behind it.
    #[inline(always)]
    fn tensor(table: &'a [u8], i: usize, refs: usize) -> Result<(Read<'a>, &'a [u8])> {
        let (t, used) = Read::parse(table).map_err(|what| bad(format!("tensor {i} of a message {what}")))?;
        if t.storage.is_some_and(|s| usize::from(s) >= refs) {
            return Err(bad(format!("tensor {i} of a message is in a storage that the message does not name")));
        }
        Ok((t, &table[used..]))
    }
}

impl<'a> Body<'a> {
    /// Checks lengths, counts, flags, reserved bytes and padding, so that a body has one form only.
    /// Types, devices, and views against storages are not checked. `refs` is the number of Refs of
    /// the message.
    pub(crate) fn parse(src: &'a [u8], refs: usize) -> Result<Body<'a>> {
        let all = Body::each(src, refs)?;
        let (tree, meta) = (all.tree, all.meta);
        Ok(Body { tensors: all.map(|t| t.map(TensorDesc::copied)).collect::<Result<_>>()?, tree, meta })
    }

    /// Reads tensor after tensor, each when it is asked for.
    pub(crate) fn each(src: &'a [u8], refs: usize) -> Result<Descriptions<'a>> {
        let Parts { count, table, tree, meta } = Parts::of(src)?;
        if count == 0 && !table.is_empty() {
            return Err(bad(format!("a message body has {} bytes and no tensor", table.len())));
        }
        Ok(Descriptions { rest: table, next: 0, count, refs, tree, meta })
    }

    /// The first tensor alone; of the others only the lengths of their table are looked at.
    #[inline]
    pub(crate) fn first(src: &'a [u8], refs: usize) -> Result<Option<Read<'a>>> {
        let parts = Parts::of(src)?;
        match parts.count {
            0 => Ok(None),
            _ => Parts::tensor(parts.table, 0, refs).map(|(t, _)| Some(t)),
        }
    }
}

/// The tensors of a body, one after the other; with an error they end.
pub(crate) struct Descriptions<'a> {
    rest: &'a [u8],
    next: usize,
    count: usize,
    refs: usize,
    pub(crate) tree: &'a [u8],
    pub(crate) meta: &'a [u8],
}

impl<'a> Iterator for Descriptions<'a> {
    type Item = Result<Read<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Result<Read<'a>>> {
        if self.next >= self.count {
            return None;
        }
        let read = Parts::tensor(self.rest, self.next, self.refs).and_then(|(t, behind)| {
            (self.rest, self.next) = (behind, self.next + 1);
            let left = if self.next == self.count { behind.len() } else { 0 };
            if left > 0 { Err(bad(format!("a message body has {left} bytes after its last tensor"))) } else { Ok(t) }
        });
        if read.is_err() {
            self.next = self.count;
        }
        Some(read)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count - self.next, Some(self.count - self.next))
    }
}

impl ExactSizeIterator for Descriptions<'_> {}

impl<'a> Read<'a> {
    /// The same with its numbers copied.
    #[inline(always)]
    pub(crate) fn copied(self) -> TensorDesc<'a> {
        let TensorDesc { storage, dtype, device_type, device_id, offset, readonly, shape, strides, name } = self;
        let (shape, strides) = (shape.dims(), strides.map(Extents::dims));
        TensorDesc { storage, dtype, device_type, device_id, offset, readonly, shape, strides, name }
    }

    /// Reads one description at the front of a table; the bytes that it takes. It becomes part of what
    /// makes a tensor of it: a description that is moved waits, time and again, for its own writing.
    #[inline(always)]
    fn parse(d: &'a [u8]) -> std::result::Result<(Read<'a>, usize), &'static str> {
        let fixed = rec::SIZE as usize;
        if d.len() < fixed {
            return Err("does not fit in the table");
        }
        let u16_at = |at: u64| u16::from_le_bytes([d[at as usize], d[at as usize + 1]]);
        let (size, ndim, name) =
            (usize::from(u16_at(rec::SIZE_AT)), usize::from(u16_at(rec::NDIM)), usize::from(u16_at(rec::NAME)));
        let flags = u32_at(d, rec::FLAGS); // and the zero after them
        if ndim > limits::NDIM {
            return Err("has more than 64 dimensions");
        }
        if flags & !u32::from(DESC_STRIDES | DESC_READ_ONLY) != 0 {
            return Err("has flags that are not of this version");
        }
        let strided = flags & u32::from(DESC_STRIDES) != 0;
        let words = if strided { 2 * ndim } else { ndim };
        let end = fixed + 8 * words + name;
        if size != end.next_multiple_of(8) || size > d.len() {
            return Err("has a size that its dimensions and name do not make");
        }
        let (shape, behind) = d[fixed..fixed + 8 * words].as_chunks().0.split_at(ndim);
        let (shape, strides) = (Extents(shape), strided.then_some(Extents(behind)));
        if shape.iter().any(|n| n < 0) {
            return Err("has a negative dimension");
        }
        let storage = Some(u16_at(rec::REF)).filter(|r| *r != NO_REF);
        if storage.is_none() && shape.iter().all(|n| n != 0) {
            return Err("has elements but no storage");
        }
        let mut named = "";
        if name > 0 {
            let Ok(text) = std::str::from_utf8(&d[end - name..end]) else {
                return Err("has a name that is not UTF-8");
            };
            named = text;
            if d[end..size].iter().any(|c| *c != 0) {
                return Err("has padding that is not zero");
            }
        }
        let t = TensorDesc {
            storage,
            dtype: DType { code: d[rec::CODE as usize], bits: d[rec::BITS as usize], lanes: u16_at(rec::LANES) },
            device_type: u32_at(d, rec::DEVICE_TYPE) as i32,
            device_id: u32_at(d, rec::DEVICE_ID) as i32,
            offset: u64_at(d, rec::OFFSET),
            readonly: flags & u32::from(DESC_READ_ONLY) != 0,
            strides,
            shape,
            name: named,
        };
        Ok((t, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Body<'static> {
        let t = |name: &'static str, shape: &[i64], strides: Option<&[i64]>, storage| TensorDesc {
            storage,
            dtype: DType::FLOAT32,
            device_type: 1,
            device_id: 0,
            offset: 256,
            readonly: strides.is_some(),
            shape: shape.iter().copied().collect(),
            strides: strides.map(|s| s.iter().copied().collect()),
            name,
        };
        Body {
            tensors: vec![
                t("", &[2, 3], None, Some(0)),
                t("a/b", &[4, 5, 6], Some(&[1, 4, 20]), Some(1)),
                t("none", &[0], None, None),
            ],
            tree: b"{\"x\":1}",
            meta: b"[]",
        }
    }

    #[test]
    fn a_body_reads_as_it_was_written() {
        let b = sample();
        assert_eq!(Body::parse(&b.encode().unwrap(), 2).unwrap(), b);
    }

    #[test]
    fn damaged_bodies_are_refused_or_differ_and_never_panic() {
        let b = sample();
        let bytes = b.encode().unwrap();
        for cut in 0..bytes.len() {
            assert!(Body::parse(&bytes[..cut], 2).is_err(), "{cut} bytes");
        }
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut x = bytes.clone();
                x[at] ^= flip;
                assert!(Body::parse(&x, 2).map_or(true, |y| y != b), "byte {at} does not matter");
            }
        }
        assert!(Body::parse(&bytes, 1).is_err(), "a storage that is not named");
    }
}
