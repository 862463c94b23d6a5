//! Memory in huge pages, of those that the machine has reserved: a pool for each of their sizes.

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Session;
use super::alloc::TensorMut;
use super::inner::Inner;
use super::shared::Shared;
use super::tensor::Tensor;
use crate::dtype::{DType, Element};
use crate::error::{Code, Error, Result};
use crate::ledger::{FreeTest, Grant, Pool, PoolStats, Row, Rows, Source};
use crate::shm::Segment;
use crate::turns::{Turn, Turnstile};

/// Sizes of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePages {
    /// 2 MiB each, `2M`.
    MiB2,
    /// 1 GiB each, `1G`.
    GiB1,
}

impl HugePages {
    const fn bytes(self) -> u64 {
        match self {
            HugePages::MiB2 => 2 << 20,
            HugePages::GiB1 => 1 << 30,
        }
    }
}

/// From `2M` or `1G`; else `InvalidArgument`.
impl FromStr for HugePages {
    type Err = Error;

    fn from_str(s: &str) -> Result<HugePages> {
        match s {
            "2M" => Ok(HugePages::MiB2),
            "1G" => Ok(HugePages::GiB1),
            _ => Err(Error::new(Code::InvalidArgument, "use 2M or 1G", format!("no huge pages have the size {s:?}"))),
        }
    }
}

/// The pools of huge pages, made when they are first asked for.
#[derive(Debug, Default)]
pub(crate) struct HugePools {
    pools: [OnceLock<Pool>; 2],
}

impl HugePools {
    fn of(&self, inner: &Inner, pages: HugePages) -> &Pool {
        self.pools[pages as usize].get_or_init(|| {
            let p = &inner.pages;
            let test = FreeTest::new(p.chunks.clone(), p.entries.clone());
            Pool::new(p.row.clone(), p.entries.clone(), test, [0, 0])
        })
    }

    fn made(&self) -> impl Iterator<Item = (HugePages, &Pool)> {
        let of = |n| [HugePages::MiB2, HugePages::GiB1][n];
        self.pools.iter().enumerate().filter_map(move |(n, p)| Some((of(n), p.get()?)))
    }

    /// Tells the pools that the own count of an index fell to zero; each looks whether it is its own.
    pub(crate) fn dropped(&self, index: u32) {
        self.made().for_each(|(_, p)| p.dropped(index));
    }

    /// Does something with each pool.
    pub(crate) fn each(&self, f: impl Fn(&Pool)) {
        self.made().for_each(|(_, p)| f(p));
    }

    pub(crate) fn collect(&self, inner: &Inner, all: bool) -> u64 {
        self.made().map(|(pages, p)| p.collect(&HugeSource(inner, pages), all)).sum()
    }

    pub(crate) fn add_stats(&self, to: &mut PoolStats) {
        self.made().for_each(|(_, p)| to.add(&p.stats()));
    }
}

/// A pool's way to the broker for memory in huge pages.
struct HugeSource<'a>(&'a Inner, HugePages);

impl Rows for HugeSource<'_> {
    fn row(&self, slot: u32) -> Option<Row> {
        self.0.row(slot)
    }
}

impl Source for HugeSource<'_> {
    fn turn<'a>(&self, of: &'a Turnstile<()>) -> Result<Turn<'a, ()>> {
        self.0.turn(of)
    }

    fn grant(&self, bytes: u64, chunks: u32, fallback: bool) -> Result<Grant> {
        self.0.grant_in(bytes, chunks, Some(self.1.bytes()), fallback)
    }

    fn more_chunks(&self, segment: &Arc<Segment>, count: u32) -> Result<Vec<(u32, u64)>> {
        self.0.more_chunks(segment, count)
    }

    fn give_back(&self, segment: &Arc<Segment>) -> bool {
        self.0.give_back(segment)
    }
}

impl Inner {
    fn fill_huge(self: &Arc<Inner>, pages: HugePages, bytes: u64, dtype: DType, shape: &[i64]) -> Result<Shared> {
        let pools = self.huge.get_or_init(HugePools::default);
        self.fill_by(|fallback| pools.of(self, pages).alloc(&HugeSource(self, pages), bytes, fallback), dtype, shape)
    }
}

impl Session {
    /// A tensor to fill in huge pages, of those that the machine has reserved; where too few are free
    /// it waits as [`alloc_within`](Session::alloc_within) does. Whole pages are taken from the machine
    /// at a time, and shared by small tensors. Errors: those of [`alloc`](Session::alloc);
    /// `Unsupported` where the kernel has none of the size, or memory lies in files.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::{Code, HugePages};
    ///
    /// match session.alloc_huge::<f32>(HugePages::MiB2, &[1024, 1024], std::time::Duration::ZERO) {
    ///     Ok(mut x) => x.fill(1.0),
    ///     Err(e) if e.code() == Code::OutOfMemory => println!("{e}"), // it says how to reserve them
    ///     Err(e) => return Err(e),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn alloc_huge<T: Element>(
        &self,
        pages: HugePages,
        shape: &[i64],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<TensorMut<T>> {
        TensorMut::new(self.alloc_huge_dtype(pages, T::DTYPE, shape, timeout.into())?)
    }

    /// As [`alloc_huge`](Session::alloc_huge), for types that Rust has no type for.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::{Code, DType, HugePages};
    ///
    /// match session.alloc_huge_raw(HugePages::MiB2, DType::BFLOAT16, &[1024], std::time::Duration::ZERO) {
    ///     Ok(x) => assert_eq!(x.freeze().dtype(), DType::BFLOAT16),
    ///     Err(e) => assert!(matches!(e.code(), Code::OutOfMemory | Code::Unsupported), "{e}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn alloc_huge_raw(
        &self,
        pages: HugePages,
        dtype: DType,
        shape: &[i64],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<TensorMut<u8>> {
        TensorMut::new(self.alloc_huge_dtype(pages, dtype, shape, timeout.into())?)
    }

    fn alloc_huge_dtype(
        &self,
        pages: HugePages,
        dtype: DType,
        shape: &[i64],
        timeout: Option<Duration>,
    ) -> Result<Tensor> {
        let n = dtype.num_bytes(shape)?;
        if n == 0 {
            return self.alloc_dtype(dtype, shape);
        }
        let inner = self.inner()?;
        inner.wait_for_room(timeout, || inner.fill_huge(pages, n, dtype, shape)).map(Tensor::of)
    }
}
