//! Tensors: memory that is being filled, and memory that is shared.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::Session;
use super::file::MappedFile;
use super::holding::{Held, Holding, Storages};
use super::inner::Inner;
use super::shared::Shared;
use crate::dims::Dims;
use crate::dlpack::device;
use crate::dtype::{DType, Element, compact_strides, is_contiguous};
use crate::error::{Code, Error, Result, disagree};
use crate::layout::limits;
use crate::ledger::Storage;
use crate::message::{Extents, TensorDesc};
use crate::shm::Segment;

impl Holding {
    /// The view that a description makes, refused where it is wrong about the device of its storage or does not
    /// lie in it. Its extents go from where they were received to where they stay, by registers: a processor
    /// that moves what it has just written in parts waits for that.
    #[inline(always)]
    pub(crate) fn view(&self, d: &TensorDesc<'_, Extents<'_>>, write: bool) -> Result<View> {
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
            let what = format!("tensor {:?} is said to be on device type {} and is not", d.name, d.device_type);
            return Err(Error::new(Code::InvalidHandle, "its sender is at fault", what));
        }
        Ok(storage.map_or(0, |h| h.bytes))
    }
}

impl Inner {
    /// What a tensor without elements holds.
    pub(super) fn nothing(self: &Arc<Inner>) -> Shared {
        Shared::new(|| Holding::new(self, Storages::default()))
    }

    /// Allocates a storage of `bytes` > 0, counted once.
    pub(crate) fn fill(self: &Arc<Inner>, bytes: u64) -> Result<Shared> {
        self.fill_by(|| self.pool.alloc(&**self, bytes))
    }

    /// As `fill`, from whichever pool `cut` allocates.
    #[inline]
    pub(super) fn fill_by(self: &Arc<Inner>, cut: impl Fn() -> Result<Storage>) -> Result<Shared> {
        self.check_open()?;
        let mut got = cut();
        if got.as_ref().is_err_and(Error::is_full) {
            self.settle(); // withdraw what queues still name, then try once more
            got = cut();
        }
        self.holding_of(got.map_err(|e| self.refused(e))?)
    }

    /// What holds a storage that was just handed out, and counted.
    #[inline]
    pub(super) fn holding_of(self: &Arc<Inner>, s: Storage) -> Result<Shared> {
        let chunk = s.reference.index / limits::CHUNK_INDICES;
        let at = self.attached.find(chunk, s.reference.serial);
        let at = at.ok_or_else(|| disagree("an own chunk is not attached"))?;
        Ok(Shared::new(|| {
            let held = Held { reference: s.reference, at, offset: s.offset, bytes: s.bytes };
            Holding::new(self, held.into())
        }))
    }
}

impl Session {
    /// A tensor to fill, C-contiguous, aligned to 256 bytes. Its content is whatever was there
    /// before. Errors: `InvalidArgument` (the shape), `OutOfMemory`, `QuotaExceeded`, `BrokerLost`.
    #[inline]
    pub fn alloc<T: Element>(&self, shape: &[i64]) -> Result<TensorMut<T>> {
        self.alloc_as(T::DTYPE, shape)
    }

    /// As [`alloc`](Session::alloc), all zero.
    pub fn zeros<T: Element>(&self, shape: &[i64]) -> Result<TensorMut<T>> {
        let mut t = self.alloc::<T>(shape)?;
        t.fill(T::default());
        Ok(t)
    }

    /// A tensor to fill with the values of a slice.
    pub fn from_slice<T: Element>(&self, shape: &[i64], values: &[T]) -> Result<TensorMut<T>> {
        let mut t = self.alloc::<T>(shape)?;
        if t.len() != values.len() {
            let what = format!("{} values for shape {shape:?}", values.len());
            return Err(Error::new(Code::InvalidArgument, "give as many values as the shape has", what));
        }
        t.copy_from_slice(values);
        Ok(t)
    }

    /// Bytes to fill of a type that Rust has no type for (`bfloat16`, `float8_e4m3fn`…); the frozen
    /// tensor has the type.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::DType;
    ///
    /// let mut x = session.alloc_raw(DType::UINT4, &[4])?;
    /// x.copy_from_slice(&[0x21, 0x43]); // two to a byte
    /// assert_eq!((x.freeze().num_bytes(), DType::UINT4.item_bits()), (2, 4));
    /// let y = session.alloc_raw_within(DType::BFLOAT16, &[8], std::time::Duration::from_secs(1))?.freeze();
    /// drop(y);
    /// if let Some(warm) = session.alloc_at_hand(DType::BFLOAT16, &[8])? {
    ///     assert_eq!(warm.shape(), [8]);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn alloc_raw(&self, dtype: DType, shape: &[i64]) -> Result<TensorMut<u8>> {
        self.alloc_as(dtype, shape)
    }

    #[inline]
    fn alloc_as<T: Element>(&self, dtype: DType, shape: &[i64]) -> Result<TensorMut<T>> {
        let (held, place) = self.hold_new(dtype, shape)?;
        TensorMut::of(held, place, dtype, shape)
    }

    #[inline]
    pub(crate) fn alloc_dtype(&self, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        let (held, place) = self.hold_new(dtype, shape)?;
        Ok(Tensor::fresh(held, place, dtype, shape))
    }

    /// As [`alloc_raw`](Session::alloc_raw), for one who must not wait: `None` where memory of the size is
    /// not free and warm, or a thread is allocating.
    pub fn alloc_at_hand(&self, dtype: DType, shape: &[i64]) -> Result<Option<Tensor>> {
        let n = dtype.num_bytes(shape)?;
        let inner = self.inner()?;
        inner.check_open()?;
        let Some(storage) = inner.pool.alloc_at_hand(n).transpose().map_err(|e| inner.refused(e))? else {
            return Ok(None);
        };
        let held = inner.holding_of(storage)?;
        Ok(Some(Tensor::fresh(held, Place::Storage(0), dtype, shape)))
    }

    /// A new storage for the elements of a shape.
    #[inline]
    fn hold_new(&self, dtype: DType, shape: &[i64]) -> Result<(Shared, Place)> {
        Ok(match dtype.num_bytes(shape)? {
            0 => (self.inner()?.nothing(), Place::Nowhere),
            n => (self.inner()?.fill(n)?, Place::Storage(0)),
        })
    }
}

/// A tensor that this process alone has, to be filled as a slice. [`freeze`](TensorMut::freeze) makes
/// it one that can be handed over.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let mut x = session.alloc::<u16>(&[2, 2])?;
/// x.copy_from_slice(&[1, 2, 3, 4]);
/// x[3] = 9;
/// let x = x.freeze();
/// assert_eq!((x.shape(), x.dtype(), x.num_bytes()), (&[2, 2][..], baton::DType::UINT16, 8));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TensorMut<T: Element> {
    tensor: Tensor,
    data: NonNull<T>,
    len: usize,
    marker: PhantomData<T>,
}

// SAFETY: it owns its memory as a Vec<T> does, and T is Send.
unsafe impl<T: Element> Send for TensorMut<T> {}
// SAFETY: shared access only reads, and T is Sync.
unsafe impl<T: Element> Sync for TensorMut<T> {}

impl<T: Element> TensorMut<T> {
    /// Takes a freshly allocated tensor, which no place names and nobody else holds.
    pub(super) fn new(tensor: Tensor) -> Result<TensorMut<T>> {
        let (data, len) = TensorMut::memory(tensor.storage())?;
        Ok(TensorMut { tensor, data, len, marker: PhantomData })
    }

    /// As `new`, of a fresh holding. The tensor is made where it will stay, and not moved there.
    #[inline]
    fn of(held: Shared, place: Place, dtype: DType, shape: &[i64]) -> Result<TensorMut<T>> {
        let (data, len) = TensorMut::memory(held.storages.first())?;
        Ok(TensorMut { tensor: Tensor::fresh(held, place, dtype, shape), data, len, marker: PhantomData })
    }

    #[inline]
    fn memory(held: Option<&Held>) -> Result<(NonNull<T>, usize)> {
        let Some(h) = held else { return Ok((NonNull::dangling(), 0)) };
        let at = NonNull::new(h.address(true)?.cast::<T>()).ok_or_else(|| disagree("memory at address 0"))?;
        Ok((at, h.bytes as usize / size_of::<T>()))
    }

    /// The extents.
    pub fn shape(&self) -> &[i64] {
        &self.tensor.shape
    }

    /// What it will be when it is frozen.
    #[cfg(feature = "ndarray")]
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Ends the writing: a tensor that can be sent, cloned and read.
    #[inline]
    pub fn freeze(self) -> Tensor {
        self.tensor
    }
}

impl<T: Element> Deref for TensorMut<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements lie in a storage that the holding counts, so it stays mapped and is
        // not recycled. Storages are aligned to 256 bytes, every bit pattern is a T. No place has
        // named the storage yet, so the protocol gives it to no other process, and this value is the
        // only one of this process.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for TensorMut<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref; the borrow of self is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
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

/// What a description says of a tensor, checked.
pub(crate) struct View {
    place: Place,
    offset: u64,
    dtype: DType,
    shape: Dims,
    strides: Option<Dims>,
    readonly: bool,
}

/// A view of shared memory: type, shape, strides in elements. It counts a reference, which clones
/// share and the last drop gives back.
///
/// Other processes may hold the same memory. Published names and topic messages are written by
/// nobody, as far as their senders keep to the protocol; queue items, live names and handles may be
/// written at any time. Rust's slices promise that memory does not change, which nobody can promise
/// here: that is why [`as_slice`](Tensor::as_slice) is `unsafe`, and
/// [`to_vec`](Tensor::to_vec), which copies with atomic loads, is not.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let x = session.from_slice(&[2, 3], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0])?.freeze();
/// let turned = x.transpose(0, 1)?.as_read_only(); // the same memory
/// assert_eq!((turned.shape(), turned.strides()), (&[3, 2][..], Some(&[1, 3][..])));
/// assert!(turned.is_read_only() && turned.is_shared() && !turned.is_contiguous() && !turned.is_empty());
/// assert_eq!(turned.to_vec::<f32>()?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
/// assert_eq!(unsafe { x.as_slice::<f32>()? }[5], 5.0); // here nobody writes it
/// let bits = x.view_as(baton::DType::UINT32, &[6], None, 0)?;
/// assert_eq!(bits.to_vec::<u32>()?[1], 1f32.to_bits());
/// assert_eq!(x.as_mut_ptr()?.cast_const(), x.as_ptr()?);
/// assert!(unsafe { x.file()? }.is_some() && x.session().serial() == session.serial()); // nothing is written to it
/// assert_eq!(x.holders()[0].pid, std::process::id());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Tensor {
    pub(crate) held: Shared,
    pub(super) place: Place,
    pub(crate) offset: u64,
    dtype: DType,
    pub(crate) shape: Dims,
    pub(crate) strides: Option<Dims>,
    readonly: bool,
}

impl Tensor {
    /// All of a storage that was allocated for it.
    #[inline]
    fn fresh(held: Shared, place: Place, dtype: DType, shape: &[i64]) -> Tensor {
        Tensor { held, place, offset: 0, dtype, shape: shape.into(), strides: None, readonly: false }
    }

    /// A tensor of a holding from its description, all of which is another process's word.
    #[inline(always)]
    pub(crate) fn described(held: Shared, d: TensorDesc<'_, Extents<'_>>, write: bool) -> Result<Tensor> {
        let view = held.view(&d, write)?;
        Ok(Tensor::of_view(held, view))
    }

    /// As `described`, of what the holding itself says.
    #[inline(always)]
    pub(crate) fn of_view(held: Shared, v: View) -> Tensor {
        let View { place, offset, dtype, shape, strides, readonly } = v;
        Tensor { held, place, offset, dtype, shape, strides, readonly }
    }

    /// A compact tensor that may be written, for which a storage was just made: there is room for it.
    #[inline]
    pub(crate) fn laid_out(held: Shared, place: Place, offset: u64, dtype: DType, shape: Dims) -> Tensor {
        Tensor { held, place, offset, dtype, shape, strides: None, readonly: false }
    }

    /// A tensor whose view is checked against its storage.
    #[inline(always)]
    pub(crate) fn checked(
        held: Shared,
        place: Place,
        offset: u64,
        dtype: DType,
        shape: Dims,
        strides: Option<Dims>,
        readonly: bool,
    ) -> Result<Tensor> {
        let bytes = match &place {
            Place::Storage(at) => {
                let held = held.storages.get(usize::from(*at));
                held.ok_or_else(|| disagree("a tensor of a storage that is not held"))?.bytes
            }
            Place::File(f) => f.len(),
            Place::Nowhere => 0,
        };
        dtype.check_view(&shape, strides.as_deref(), offset, bytes)?;
        Ok(Tensor { held, place, offset, dtype, shape, strides, readonly })
    }

    #[inline]
    pub(crate) fn storage(&self) -> Option<&Held> {
        match self.place {
            Place::Storage(at) => self.held.storages.get(usize::from(at)),
            _ => None,
        }
    }

    /// Whether it lies in shared memory, so that it can be handed over; else in a mapped file.
    #[inline]
    pub fn is_shared(&self) -> bool {
        !matches!(self.place, Place::File(_))
    }

    /// Refuses what is not in shared memory.
    #[inline]
    pub(crate) fn check_shared(&self) -> Result<()> {
        if self.is_shared() { Ok(()) } else { Err(self.of_a_file()) }
    }

    #[cold]
    fn of_a_file(&self) -> Error {
        let what = format!("a {}{:?} of a mapped file is to be handed over", self.dtype, self.shape);
        Error::new(Code::InvalidArgument, "copy it into a tensor of shared memory first", what)
    }

    /// The bytes that the view may reach, for a mapping of its own; `None` without elements. It is the whole
    /// storage: a view's elements are wherever its strides lead.
    pub(crate) fn span(&self) -> Result<Option<Span>> {
        Ok(match &self.place {
            _ if self.is_empty() => None,
            Place::Nowhere => None,
            Place::File(f) => Some(Span { origin: Origin::File(f.clone()), at: 0, bytes: f.len(), first: self.offset }),
            Place::Storage(_) => {
                let h = self.storage().ok_or_else(|| disagree("a tensor of a storage that is not held"))?;
                let segment = self.held.segment(h, false)?;
                // Without a broker to ask, the bytes are copied at once.
                let _ = self.held.inner().open_file(&segment, false);
                let origin = Origin::Segment(segment);
                Some(Span { origin, at: h.offset, bytes: h.bytes, first: self.offset })
            }
        })
    }

    /// What one element is.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents.
    #[inline]
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The strides in elements; `None`: C-contiguous.
    #[inline]
    pub fn strides(&self) -> Option<&[i64]> {
        self.strides.as_deref()
    }

    pub(crate) fn full_strides(&self) -> Dims {
        self.strides.clone().unwrap_or_else(|| compact_strides(&self.shape))
    }

    /// Whether the tensor must not be written.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.readonly
    }

    /// The same tensor, handed on read-only.
    pub fn as_read_only(&self) -> Tensor {
        Tensor { readonly: true, ..self.clone() }
    }

    /// Whether the elements lie without gaps in C order.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(&self.shape, self.strides.as_deref())
    }

    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.shape.iter().product::<i64>() as usize // checked when it was made
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that the elements take C-contiguous.
    #[inline]
    pub fn num_bytes(&self) -> u64 {
        self.dtype.num_bytes(&self.shape).unwrap_or(0)
    }

    /// The view of another shape and strides (in elements, `None` for C-contiguous), `offset`
    /// elements from this one's first. `InvalidArgument` when it reaches past the storage.
    pub fn as_strided(&self, shape: &[i64], strides: Option<&[i64]>, offset: u64) -> Result<Tensor> {
        let bits = u128::from(self.dtype.item_bits()) * u128::from(offset);
        let at = u64::try_from(bits / 8).ok().filter(|_| bits % 8 == 0).and_then(|b| self.offset.checked_add(b));
        let Some(at) = at else {
            let what = format!("view at element {offset} of {}{:?}", self.dtype, self.shape);
            return Err(Error::new(Code::InvalidArgument, "use an offset inside the storage", what));
        };
        self.viewed(self.dtype, shape, strides, at)
    }

    /// Another view of the same storage, checked; `at` is its offset in the storage.
    pub(crate) fn viewed(&self, dtype: DType, shape: &[i64], strides: Option<&[i64]>, at: u64) -> Result<Tensor> {
        let strides = strides.map(Dims::from);
        Tensor::checked(self.held.clone(), self.place.clone(), at, dtype, shape.into(), strides, self.readonly)
    }

    /// The address of the first element, mapped for a use; dangling without elements. `ReadOnly` when
    /// this tensor must not be written.
    #[inline]
    pub(crate) fn address(&self, write: bool) -> Result<*mut u8> {
        if write && self.readonly {
            return Err(self.refused_to_write());
        }
        self.held.check()?;
        let first = match &self.place {
            Place::Storage(_) => self.storage().map(|h| self.held.address(h, write)).transpose()?,
            Place::File(f) => Some(f.address()),
            Place::Nowhere => None,
        };
        let Some(first) = first else { return Ok(NonNull::<u64>::dangling().as_ptr().cast()) };
        // SAFETY: the offset was checked to lie inside the place, or just behind it.
        Ok(unsafe { first.add(self.offset as usize) })
    }

    #[cold]
    fn refused_to_write(&self) -> Error {
        Error::new(Code::ReadOnly, "copy it", format!("{}{:?} is read-only", self.dtype, self.shape))
    }

    #[inline]
    pub(crate) fn typed<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype { Ok(()) } else { Err(self.read_as(T::DTYPE)) }
    }

    #[cold]
    fn read_as(&self, dtype: DType) -> Error {
        let what = format!("a tensor of {} is read as {dtype}", self.dtype);
        Error::new(Code::InvalidArgument, "use the tensor's type", what)
    }

    #[inline]
    fn contiguous(&self) -> Result<()> {
        if self.strides.is_none() || self.is_contiguous() { Ok(()) } else { Err(self.scattered()) }
    }

    #[cold]
    fn scattered(&self) -> Error {
        let what = format!("elements of {:?} with strides {:?} are not contiguous", self.shape, self.strides);
        Error::new(Code::InvalidArgument, "copy them with to_vec", what)
    }

    /// The elements in place.
    ///
    /// # Safety
    /// Nobody, in this or another process, writes the memory as long as the slice lives. Senders
    /// that keep to the protocol do not write topic messages and published names.
    #[inline]
    pub unsafe fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.typed::<T>()?;
        self.contiguous()?;
        let at = self.address(false)?.cast::<T>();
        // SAFETY: the elements lie inside the storage, which the holding keeps mapped and counted;
        // the view's offset is a multiple of T's size; the caller answers for aliasing.
        Ok(unsafe { std::slice::from_raw_parts(at, self.len()) })
    }

    /// The elements in place, to be written. `ReadOnly` when they must not be.
    ///
    /// # Safety
    /// Nobody, in this or another process, reads or writes the memory as long as the slice lives.
    #[inline]
    pub unsafe fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.typed::<T>()?;
        self.contiguous()?;
        let at = self.address(true)?.cast::<T>();
        // SAFETY: as in as_slice; the mapping is writable.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, self.len()) })
    }
}
