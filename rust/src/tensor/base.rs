//! Tensors: views of memory that is shared.

use std::ptr::NonNull;

use crate::dims::Dims;
use crate::dtype::{DType, Element, compact_strides, is_contiguous, is_dense};
use crate::error::{Code, Error, Result, disagree};
use crate::holding::{Origin, Place, Shared, Span, View};
use crate::memory::Held;
use crate::message::{Extents, TensorDesc};

/// A view of shared memory: type, shape, strides in elements. It counts a reference, which clones
/// share and the last drop gives back.
///
/// Other processes may hold the same memory. Published names and topic messages are not
/// written, as far as their senders keep to the protocol; queue items, live names and handles may be
/// written at any time. Rust's slices promise that memory does not change, which cannot be promised
/// here: that is why [`as_slice`](Tensor::as_slice) is `unsafe`, and
/// [`to_vec`](Tensor::to_vec), which copies with atomic loads, is not.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let x = session.from_slice(&[2, 3], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0])?.freeze();
/// let turned = x.transpose(0, 1)?.to_read_only(); // the same memory
/// assert_eq!((turned.shape(), turned.strides()), (&[3, 2][..], Some(&[1, 3][..])));
/// assert!(turned.is_read_only() && turned.is_shared() && !turned.is_contiguous() && !turned.is_empty());
/// assert_eq!(turned.to_vec::<f32>()?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
/// assert_eq!(unsafe { x.as_slice::<f32>()? }[5], 5.0); // here nothing writes it
/// let bits = x.view_as(baton::DType::UINT32, &[6], None, 0)?;
/// assert_eq!(bits.to_vec::<u32>()?[1], 1f32.to_bits());
/// assert_eq!(x.as_mut_ptr()?.cast_const(), x.as_ptr()?);
/// assert!(unsafe { x.file()? }.is_some() && x.session().serial() == session.serial()); // nothing is written to it
/// assert_eq!(x.holders()[0].pid, std::process::id());
/// # Ok(()) }
/// ```
// It is small: what an allocation or a message makes is moved, time and again, right after it was written, and a
// processor that moves what it has just written in parts waits for that. So what it says stands in the holding.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) held: Shared,
    /// None: it is the one that its holding was made for, which says all.
    own: Option<Box<View>>,
}

impl Tensor {
    /// The tensor that a holding has been made for.
    #[inline(always)]
    pub(crate) fn of(held: Shared) -> Tensor {
        Tensor { held, own: None }
    }

    /// Another tensor of a holding.
    #[inline]
    pub(crate) fn of_view(held: Shared, view: View) -> Tensor {
        Tensor { held, own: Some(Box::new(view)) }
    }

    /// How it lies in its place.
    #[inline(always)]
    pub(crate) fn view(&self) -> &View {
        match &self.own {
            None => &self.held.view,
            Some(view) => view,
        }
    }

    /// A tensor of a holding from its description, all of which is unchecked data from another process.
    #[inline(always)]
    pub(crate) fn described(held: Shared, d: TensorDesc<'_, Extents<'_>>, write: bool) -> Result<Tensor> {
        let view = held.view_of(&d, write)?;
        Ok(Tensor::of_view(held, view))
    }

    /// A compact tensor that may be written, for which a storage was just made: there is room for it.
    #[inline]
    pub(crate) fn laid_out(held: Shared, place: Place, offset: u64, dtype: DType, shape: Dims) -> Tensor {
        Tensor::of_view(held, View { offset, ..View::whole(place, dtype, shape) })
    }

    /// A tensor whose view is checked against its storage.
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
        Ok(Tensor::of_view(held, View { place, offset, dtype, shape, strides, readonly }))
    }

    #[inline]
    pub(crate) fn storage(&self) -> Option<&Held> {
        match self.view().place {
            Place::Storage(at) => self.held.storages.get(usize::from(at)),
            _ => None,
        }
    }

    /// Whether it lies in shared memory, so that it can be handed over; else in a mapped file.
    #[inline]
    pub fn is_shared(&self) -> bool {
        !matches!(self.view().place, Place::File(_))
    }

    /// Refuses what is not in shared memory.
    #[inline]
    pub(crate) fn check_shared(&self) -> Result<()> {
        if self.is_shared() { Ok(()) } else { Err(self.of_a_file()) }
    }

    #[cold]
    fn of_a_file(&self) -> Error {
        let what = format!("a {}{:?} of a mapped file is to be handed over", self.view().dtype, self.view().shape);
        Error::new(Code::InvalidArgument, "copy it into a tensor of shared memory first", what)
    }

    /// The bytes that the view may reach, for a mapping of its own; `None` without elements. It is the whole
    /// storage: a view's elements are wherever its strides lead.
    pub(crate) fn span(&self) -> Result<Option<Span>> {
        Ok(match &self.view().place {
            _ if self.is_empty() => None,
            Place::Nowhere => None,
            Place::File(f) => {
                Some(Span { origin: Origin::File(f.clone()), at: 0, bytes: f.len(), first: self.view().offset })
            }
            Place::Storage(_) => {
                let h = self.storage().ok_or_else(|| disagree("a tensor of a storage that is not held"))?;
                let segment = self.held.segment(h, false)?;
                // Without a broker to ask, the bytes are copied at once.
                let _ = self.held.inner().open_file(&segment, false);
                let origin = Origin::Segment(segment);
                Some(Span { origin, at: h.offset, bytes: h.bytes, first: self.view().offset })
            }
        })
    }

    /// What one element is.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.view().dtype
    }

    /// The extents.
    #[inline]
    pub fn shape(&self) -> &[i64] {
        &self.view().shape
    }

    /// The strides in elements; `None`: C-contiguous.
    #[inline]
    pub fn strides(&self) -> Option<&[i64]> {
        self.view().strides.as_deref()
    }

    pub(crate) fn full_strides(&self) -> Dims {
        self.view().strides.clone().unwrap_or_else(|| compact_strides(&self.view().shape))
    }

    /// Whether the tensor must not be written.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.view().readonly
    }

    /// The same tensor, handed on read-only.
    #[must_use]
    pub fn to_read_only(&self) -> Tensor {
        Tensor::of_view(self.held.clone(), View { readonly: true, ..self.view().clone() })
    }

    /// Whether the elements lie without gaps in C order.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(&self.view().shape, self.view().strides.as_deref())
    }

    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.view().shape.iter().product::<i64>() as usize // checked when it was made
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that the elements take C-contiguous.
    #[inline]
    pub fn num_bytes(&self) -> u64 {
        self.view().dtype.num_bytes_known(&self.view().shape)
    }

    /// The view of another shape and strides (in elements, `None` for C-contiguous), `offset`
    /// elements from this one's first. `InvalidArgument` when it reaches past the storage.
    pub fn as_strided(&self, shape: &[i64], strides: Option<&[i64]>, offset: u64) -> Result<Tensor> {
        let bits = u128::from(self.view().dtype.item_bits()) * u128::from(offset);
        let at = u64::try_from(bits / 8).ok().filter(|_| bits % 8 == 0).and_then(|b| self.view().offset.checked_add(b));
        let Some(at) = at else {
            let what = format!("view at element {offset} of {}{:?}", self.view().dtype, self.view().shape);
            return Err(Error::new(Code::InvalidArgument, "use an offset inside the storage", what));
        };
        self.viewed(self.view().dtype, shape, strides, at)
    }

    /// A compact tensor with its dimensions in another order, which leaves no gaps; without strides the tensor itself.
    pub(crate) fn ordered_as(self, strides: Option<&[i64]>) -> Result<Tensor> {
        match strides {
            None => Ok(self),
            Some(strides) => self.as_strided(self.shape(), Some(strides), 0),
        }
    }

    /// The strides that a copy keeps: of elements without gaps whose dimensions are in another order.
    pub(crate) fn order(&self) -> Option<&[i64]> {
        let whole = self.dtype().item_bits().is_multiple_of(8) && !self.is_contiguous();
        self.strides().filter(|strides| whole && is_dense(self.shape(), strides))
    }

    /// The elements in the order in which they lie. `InvalidArgument` where gaps lie between them.
    pub(crate) fn as_they_lie(&self) -> Result<Tensor> {
        self.as_strided(&[self.len() as i64], None, 0)
    }

    /// Another view of the same storage, checked; `at` is its offset in the storage.
    pub(crate) fn viewed(&self, dtype: DType, shape: &[i64], strides: Option<&[i64]>, at: u64) -> Result<Tensor> {
        let strides = strides.map(Dims::from);
        Tensor::checked(
            self.held.clone(),
            self.view().place.clone(),
            at,
            dtype,
            shape.into(),
            strides,
            self.view().readonly,
        )
    }

    /// The address of the first element, mapped for a use; dangling without elements. `ReadOnly` when
    /// this tensor must not be written.
    #[inline]
    pub(crate) fn address(&self, write: bool) -> Result<*mut u8> {
        if write && self.view().readonly {
            return Err(self.refused_to_write());
        }
        self.held.check()?;
        let first = match &self.view().place {
            Place::Storage(_) => self.storage().map(|h| self.held.address(h, write)).transpose()?,
            Place::File(f) => Some(f.address()),
            Place::Nowhere => None,
        };
        let Some(first) = first else { return Ok(NonNull::<u64>::dangling().as_ptr().cast()) };
        // SAFETY: the offset was checked to lie inside the place, or just behind it.
        Ok(unsafe { first.add(self.view().offset as usize) })
    }

    #[cold]
    fn refused_to_write(&self) -> Error {
        Error::new(Code::ReadOnly, "copy it", format!("{}{:?} is read-only", self.view().dtype, self.view().shape))
    }

    #[inline]
    pub(crate) fn typed<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.view().dtype { Ok(()) } else { Err(self.read_as(T::DTYPE)) }
    }

    #[cold]
    fn read_as(&self, dtype: DType) -> Error {
        let what = format!("a tensor of {} is read as {dtype}", self.view().dtype);
        Error::new(Code::InvalidArgument, "use the tensor's type", what)
    }

    #[inline]
    fn contiguous(&self) -> Result<()> {
        if self.view().strides.is_none() || self.is_contiguous() { Ok(()) } else { Err(self.scattered()) }
    }

    #[cold]
    fn scattered(&self) -> Error {
        let what =
            format!("elements of {:?} with strides {:?} are not contiguous", self.view().shape, self.view().strides);
        Error::new(Code::InvalidArgument, "copy them with to_vec", what)
    }

    /// The elements in place. `InvalidArgument` for another type, or for elements that are not contiguous;
    /// `Unsupported` on a GPU.
    ///
    /// # Safety
    /// No code, in this or another process, writes the memory as long as the slice lives. Senders
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
    /// No code, in this or another process, reads or writes the memory as long as the slice lives.
    #[inline]
    pub unsafe fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.typed::<T>()?;
        self.contiguous()?;
        let at = self.address(true)?.cast::<T>();
        // SAFETY: as in as_slice; the mapping is writable.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, self.len()) })
    }
}
