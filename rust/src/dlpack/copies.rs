//! Copy-on-write mappings of read-only tensors: what a consumer writes stays in them.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use crate::error::Result;
use crate::holding::{Origin, Span};
use crate::sys::Mapping;
use crate::tensor::Tensor;

/// What keeps a tensor's bytes, and the address of its first element; nothing and null without elements.
pub(super) type Copied = (Option<Arc<Mapping>>, *mut c_void);

/// What is mapped at once: what tensors reach of one file, so that one call serves all of them.
struct Part {
    origin: Origin,
    at: u64,
    end: u64,
    /// Of huge pages it is a copy, of no more than one tensor's place.
    in_huge_pages: bool,
}

impl Part {
    fn of(s: &Span) -> Part {
        let in_huge_pages = match &s.origin {
            Origin::Segment(segment) => segment.in_huge_pages(),
            Origin::File(_) => false,
        };
        Part { origin: s.origin.clone(), at: s.at, end: s.end(), in_huge_pages }
    }

    /// Takes a place in, if it is of the same file.
    fn takes(&mut self, s: &Span) -> bool {
        let fits = self.origin == s.origin && (!self.in_huge_pages || (self.at, self.end) == (s.at, s.end()));
        if fits {
            (self.at, self.end) = (self.at.min(s.at), self.end.max(s.end()));
        }
        fits
    }

    fn map(&self) -> Result<(Arc<Mapping>, *mut u8)> {
        let (map, first) = match &self.origin {
            Origin::Segment(s) => s.private(self.at, self.end - self.at)?,
            Origin::File(f) => {
                let map = f.private()?;
                let first = map.base().as_ptr();
                (map, first)
            }
        };
        Ok((Arc::new(map), first))
    }
}

/// Maps the places of tensors copy-on-write, once for each file that they lie in. They may share pages, and
/// tensors of one storage share its bytes.
pub(super) fn of(tensors: &[&Tensor]) -> Result<Vec<Copied>> {
    let mut parts: Vec<Part> = Vec::new();
    let mut spans = Vec::with_capacity(tensors.len());
    for t in tensors {
        let span = t.span()?;
        spans.push(span.map(|s| {
            let known = parts.iter_mut().position(|p| p.takes(&s));
            let part = known.unwrap_or_else(|| {
                parts.push(Part::of(&s));
                parts.len() - 1
            });
            (part, s)
        }));
    }
    let maps = parts.iter().map(Part::map).collect::<Result<Vec<_>>>()?;
    let copied = |(part, s): (usize, Span)| {
        let (map, first) = &maps[part];
        // SAFETY: the part reaches over the span, and the view was checked to lie inside its place.
        let data = unsafe { first.add((s.at - parts[part].at + s.first) as usize) };
        (Some(map.clone()), data.cast())
    };
    Ok(spans.into_iter().map(|s| s.map_or((None, null_mut()), copied)).collect())
}
