//! Many tensors of other libraries at once: one storage for all that must be copied.

use std::ops::Deref;
use std::time::Duration;

use super::DLTensor;
use super::stream::{copy_around, copy_bytes, end_around, is_much};
use super::view::View;
use crate::dims::Dims;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::holding::{Place, Shared};
use crate::memory::HugePages;
use crate::session::Session;
use crate::shm::prefetch;
use crate::tensor::Tensor;

/// Where tensors begin in a storage that they share.
const ALIGN: u64 = 256;

/// So many views before its turn the fetch of a view's first line begins: others may lie anywhere.
const AHEAD: usize = 3;

/// What becomes of views of other libraries' tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gather {
    /// Those in memory of the session are referenced, the others copied.
    Reference,
    /// All are copied.
    Copy,
}

/// What is done about one view.
enum Plan {
    There(Tensor),
    /// It gets room in the common storage.
    Make(View, Space),
}

/// Where a view's elements come in the common storage.
enum Space {
    /// From an offset on, side by side.
    At(u64),
    /// As they lay, in a region, by its number.
    In(usize),
}

/// Memory of others that is copied as it lies, since several views share it, or the only one has its dimensions in
/// another order. All of it are elements.
struct Region {
    first: *const u8,
    bytes: u64,
    /// Where it begins in the common storage.
    at: u64,
    copied: bool,
}

/// Finds places in a storage that is still to be made.
#[derive(Default)]
struct Places {
    total: u64,
}

impl Places {
    /// Where so many bytes lie.
    fn take(&mut self, bytes: u64) -> Result<u64> {
        let (at, n) = (self.total, bytes.next_multiple_of(ALIGN)); // at most 2^63
        self.total = at.checked_add(n).filter(|n| *n <= i64::MAX as u64).ok_or_else(|| {
            let what = "the tensors together have more bytes than 63 bits count";
            Error::new(Code::InvalidArgument, "give fewer at once", what)
        })?;
        Ok(at)
    }
}

impl Region {
    /// Finds the regions of views that are to be made. A region consists of elements alone: views without gaps cover
    /// it, of which each overlaps another one or the only one is not in row-major order. Views with gaps, such as a
    /// column, that lie in it whole are of it as well.
    fn find(plans: &mut [Plan]) -> Vec<Region> {
        // Where each begins and ends, the ones without gaps and the others.
        let (mut dense, mut others) = (Vec::with_capacity(plans.len()), Vec::new());
        for (i, plan) in plans.iter().enumerate() {
            if let Plan::Make(v, _) = plan
                && v.may_lie()
            {
                let first = v.first.addr();
                if v.is_dense() { &mut dense } else { &mut others }.push((first, first + v.span as usize, i));
            }
        }
        if !dense.is_sorted() {
            dense.sort_unstable();
        }
        others.sort_unstable();
        let (mut regions, mut rest, mut others) = (Vec::new(), &dense[..], &others[..]);
        while let Some(&(first, mut end, i)) = rest.first() {
            let mut n = 1;
            while let Some(next) = rest.get(n).filter(|s| s.0 < end) {
                (end, n) = (end.max(next.1), n + 1);
            }
            let (covering, behind) = rest.split_at(n);
            rest = behind;
            others = &others[others.partition_point(|s| s.0 < first)..];
            let near = &others[..others.partition_point(|s| s.0 < end)];
            let within = || near.iter().filter(|s| s.1 <= end);
            let Plan::Make(lowest, _) = &plans[i] else { continue };
            if n == 1 && lowest.strides.is_none() && within().next().is_none() {
                continue; // it is alone, and compact
            }
            regions.push(Region { first: lowest.first, bytes: (end - first) as u64, at: 0, copied: false });
            for (_, _, i) in covering.iter().chain(within()) {
                if let Plan::Make(_, space) = &mut plans[*i] {
                    *space = Space::In(regions.len() - 1);
                }
            }
        }
        regions
    }

    /// Gives it a place where its elements are aligned as they were.
    fn place(&mut self, places: &mut Places) -> Result<()> {
        let odd = self.first.addr() as u64 % ALIGN;
        self.at = places.take(self.bytes + odd)? + odd;
        Ok(())
    }
}

/// The compact tensor at a place of a storage.
#[inline(always)]
fn at_place(held: Shared, at: u64, bytes: u64, dtype: DType, shape: Dims) -> Tensor {
    let (place, at) = if bytes > 0 { (Place::Storage(0), at) } else { (Place::Nowhere, 0) };
    Tensor::laid_out(held, place, at, dtype, shape)
}

impl Session {
    /// The tensors of views that are lent, in their order, as by [`share`](Session::share) for each; but
    /// what is made new lies in one storage together, and views without gaps that overlap do so there as well, with
    /// those with gaps that lie in them. A view without gaps keeps the order of its dimensions. Nothing is read but
    /// elements. `Unsupported` for memory of a GPU.
    ///
    /// # Safety
    /// As for [`share`](Session::share), for each.
    pub unsafe fn gather<'a>(
        &self,
        views: impl Iterator<Item = (&'a DLTensor, u64)>,
        how: Gather,
    ) -> Result<Vec<Tensor>> {
        let segments = match how {
            Gather::Reference => self.inner()?.memory.all_segments(),
            Gather::Copy => Vec::new(),
        };
        let (mut plans, mut places) = (Vec::with_capacity(views.size_hint().1.unwrap_or(0)), Places::default());
        for (view, flags) in views {
            // SAFETY: as the caller says.
            let v = unsafe { View::of(view, flags)? };
            let near = segments.iter().any(|s| s.offset_of(v.first, v.span).is_some());
            if let Some(t) = near.then(|| self.find(&v)).flatten() {
                plans.push(Plan::There(t));
                continue;
            }
            plans.push(Plan::Make(v, Space::At(0)));
        }
        let mut regions = Region::find(&mut plans);
        regions.iter_mut().try_for_each(|r| r.place(&mut places))?;
        for plan in &mut plans {
            if let Plan::Make(v, Space::At(at)) = plan {
                *at = places.take(v.bytes)?;
            }
        }
        let room = self.alloc_dtype(DType::UINT8, &[places.total as i64])?;
        let base = room.address(true)?;
        let around = plans.len() > 1 && is_much(places.total);
        let mut owners = room.held.owners(plans.len());
        let (mut made, mut plans) = (Vec::with_capacity(plans.len()), plans.into_iter());
        while let Some(plan) = plans.next() {
            if let Some(Plan::Make(v, _)) = plans.as_slice().get(AHEAD) {
                prefetch(v.first);
            }
            made.push(match plan {
                Plan::There(t) => t,
                Plan::Make(v, Space::At(at)) => {
                    // SAFETY: as the caller says; the storage was just made and has room for it there.
                    unsafe {
                        let to = base.wrapping_add(at as usize);
                        if around { v.copy_around_to(to) } else { v.copy_to(to, None) }
                    }
                    at_place(owners.next(), at, v.bytes, v.dtype, v.shape)
                }
                Plan::Make(v, Space::In(region)) => {
                    let r = &mut regions[region];
                    if !std::mem::replace(&mut r.copied, true) {
                        let to = base.wrapping_add(r.at as usize);
                        // SAFETY: it consists of elements of views whose memory may be read; the storage was just
                        // made and has room for it there.
                        unsafe {
                            if around {
                                copy_around(r.first, to, r.bytes as usize)
                            } else {
                                copy_bytes(r.first, to, r.bytes as usize)
                            }
                        }
                    }
                    let at = r.at + (v.first.addr() - r.first.addr()) as u64;
                    Tensor::checked(owners.next(), Place::Storage(0), at, v.dtype, v.shape, v.strides, false)?
                }
            });
        }
        if around {
            end_around();
        }
        Ok(made)
    }

    /// Compact tensors of types and shapes in one storage, whose content is whatever was there before: in
    /// huge pages if their size is given. timeout: as of
    /// [`Allocation::timeout`](crate::Allocation::timeout). Errors as of [`alloc`](Session::alloc).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::DType;
    ///
    /// let like = [(DType::FLOAT32, &[2, 3][..]), (DType::INT64, &[0])];
    /// let made = session.room_for(like.into_iter(), None, None)?;
    /// assert_eq!((made[0].shape(), made[1].dtype()), (&[2, 3][..], DType::INT64));
    /// # Ok(()) }
    /// ```
    pub fn room_for<D: Deref<Target = [i64]>>(
        &self,
        all: impl Iterator<Item = (DType, D)>,
        pages: Option<HugePages>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Vec<Tensor>> {
        let mut places = Places::default();
        let place = |(dtype, shape): (DType, D)| {
            // A caller's type may give another shape each time it is asked: what is checked here is what is made.
            let shape = Dims::from(&*shape);
            let bytes = dtype.num_bytes(&shape)?;
            Ok((places.take(bytes)?, bytes, dtype, shape))
        };
        let all = all.map(place).collect::<Result<Vec<_>>>()?;
        let total = [places.total as i64];
        let room = match pages {
            None => self.allocation(&total).timeout(timeout).raw(DType::UINT8)?,
            Some(p) => self.allocation(&total).timeout(timeout).pages(p).raw(DType::UINT8)?,
        }
        .freeze();
        let mut owners = room.held.owners(all.len());
        let made = |(at, bytes, dtype, shape)| at_place(owners.next(), at, bytes, dtype, shape);
        Ok(all.into_iter().map(made).collect())
    }
}
