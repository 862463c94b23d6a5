//! How a tensor lies in what holds its bytes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Holding;
use crate::dims::Dims;
use crate::dlpack::types::device;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::message::{Extents, TensorDesc};
use crate::shm::Segment;
use crate::sys::Mapping;

/// A whole file, mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    pub(crate) fd: OwnedFd,
    pub(crate) map: Mapping,
}

impl MappedFile {
    /// The bytes of the file when it was mapped.
    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        self.map.base().as_ptr()
    }

    /// A mapping of the whole file that may be written, and what is written stays in it.
    pub(crate) fn private(&self) -> Result<Mapping> {
        Mapping::private(&self.fd, 0, self.map.len())
    }
}

/// Where the bytes of a tensor are.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// It has no elements.
    Nowhere,
    /// A storage of its holding.
    Storage(u16),
    /// A file, for this process alone.
    File(Arc<MappedFile>),
}

/// What a tensor's bytes are mapped from.
#[derive(Clone)]
pub(crate) enum Origin {
    Segment(Arc<Segment>),
    File(Arc<MappedFile>),
}

impl PartialEq for Origin {
    fn eq(&self, other: &Origin) -> bool {
        match (self, other) {
            (Origin::Segment(a), Origin::Segment(b)) => Arc::ptr_eq(a, b),
            (Origin::File(a), Origin::File(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// The bytes of a tensor's place in what they are mapped from.
pub(crate) struct Span {
    pub(crate) origin: Origin,
    /// The place's first byte.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// The tensor's first element, from the place's first byte.
    pub(crate) first: u64,
}

impl Span {
    /// Behind the place's last byte.
    pub(crate) fn end(&self) -> u64 {
        self.at.saturating_add(self.bytes)
    }
}

/// How a tensor lies in its place, checked.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) place: Place,
    /// Bytes from the place's first to the first element.
    pub(crate) offset: u64,
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    /// In elements; `None`: C-contiguous.
    pub(crate) strides: Option<Dims>,
    pub(crate) readonly: bool,
}

impl View {
    /// Of a compact tensor at the start of its place.
    #[inline(always)]
    pub(crate) fn whole(place: Place, dtype: DType, shape: Dims) -> View {
        View { place, offset: 0, dtype, shape, strides: None, readonly: false }
    }

    /// Writes, part by part, that of a compact tensor which is all of its holding's first storage.
    ///
    /// # Safety
    /// There is room for a view, and nothing in it.
    #[inline(always)]
    pub(crate) unsafe fn write(at: *mut View, dtype: DType, shape: Dims, readonly: bool) {
        // SAFETY: as the caller says.
        unsafe {
            (&raw mut (*at).place).write(Place::Storage(0));
            (&raw mut (*at).offset).write(0);
            (&raw mut (*at).dtype).write(dtype);
            (&raw mut (*at).shape).write(shape);
            (&raw mut (*at).strides).write(None);
            (&raw mut (*at).readonly).write(readonly);
        }
    }

    /// Of what has no tensor.
    #[inline(always)]
    pub(crate) fn none() -> View {
        View::whole(Place::Nowhere, DType::UINT8, Dims::SCALAR)
    }
}

impl Holding {
    /// The view that a description makes, refused where it is wrong about the device of its storage or does not
    /// lie in it. Its extents go from where they were received to where they stay, by registers: a processor
    /// that moves what it has just written in parts waits for that.
    #[inline(always)]
    pub(crate) fn view_of(&self, d: &TensorDesc<'_, Extents<'_>>, write: bool) -> Result<View> {
        let bytes = self.check_device(d)?;
        match d.strides {
            None => d.dtype.check_span(d.dtype.num_bytes_of(d.shape.iter())?, d.offset, bytes)?,
            Some(strides) => d.dtype.check_view(&d.shape.dims(), Some(&strides.dims()), d.offset, bytes)?,
        }
        Ok(View {
            place: d.storage.map_or(Place::Nowhere, Place::Storage),
            offset: d.offset,
            dtype: d.dtype,
            shape: d.shape.dims(),
            strides: d.strides.map(Extents::dims),
            readonly: !write || d.readonly,
        })
    }

    /// Refuses what a brief message says of its tensor where that does not lie in its storage, in the machine's memory.
    #[inline]
    pub(crate) fn check_brief(&self) -> Result<()> {
        let (v, h) = (&self.view, self.storages.first());
        let h = h.filter(|h| h.at.segment.device().is_none()).ok_or_else(|| on_device("", device::CPU))?;
        v.dtype.check_span(v.dtype.num_bytes(&v.shape)?, 0, h.bytes)
    }

    /// Refuses a description that is wrong about the device of its storage. The storage's bytes; none
    /// without one.
    #[inline(always)]
    fn check_device<D>(&self, d: &TensorDesc<'_, D>) -> Result<u64> {
        let storage = d.storage.and_then(|at| self.storages.get(usize::from(at)));
        let there = match storage.and_then(|h| h.at.segment.device()) {
            None => d.device_type == device::CPU,
            Some(on) => (d.device_type, d.device_id) == (device::CUDA, on.id),
        };
        if !there {
            return Err(on_device(d.name, d.device_type));
        }
        Ok(storage.map_or(0, |h| h.bytes))
    }
}

#[cold]
fn on_device(name: &str, device_type: i32) -> Error {
    let what = format!("tensor {name:?} is said to be on device type {device_type} and is not");
    Error::new(Code::InvalidHandle, "update or restart its sender", what)
}
