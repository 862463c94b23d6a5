//! Memory in huge pages, of those that the machine has reserved: a pool for each of their sizes.

use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use super::{Access, Memory};
use crate::error::{Code, Error, Result};
use crate::ledger::{FreeTest, Grant, Holders, Pool, PoolStats, Refcounts, Source, Storage};
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
    fn of(&self, memory: &Memory, pages: HugePages) -> &Pool {
        self.pools[pages as usize].get_or_init(|| {
            let p = &memory.files;
            let test = FreeTest::new(p.chunks.clone(), p.entries.clone());
            Pool::new(p.refcounts.clone(), p.entries.clone(), test, [0, 0])
        })
    }

    fn made(&self) -> impl Iterator<Item = (HugePages, &Pool)> {
        let of = |n| [HugePages::MiB2, HugePages::GiB1][n];
        self.pools.iter().enumerate().filter_map(move |(n, p)| Some((of(n), p.get()?)))
    }

    /// Tells the pools that the session's own count of an index fell to zero; each looks whether it is its own.
    pub(crate) fn dropped(&self, index: u32) {
        self.made().for_each(|(_, p)| p.dropped(index));
    }

    /// Does something with each pool.
    pub(crate) fn each(&self, f: impl Fn(&Pool)) {
        self.made().for_each(|(_, p)| f(p));
    }

    pub(crate) fn reclaim(&self, inner: &Access, all: bool) -> u64 {
        self.made().map(|(pages, p)| p.reclaim(&HugeSource(inner, pages), all)).sum()
    }

    pub(crate) fn add_stats(&self, to: &mut PoolStats) {
        self.made().for_each(|(_, p)| to.add(&p.stats()));
    }
}

/// A pool's way to the broker for memory in huge pages.
struct HugeSource<'a>(&'a Access, HugePages);

impl Holders for HugeSource<'_> {
    fn refcounts(&self, slot: u32) -> Option<Refcounts> {
        self.0.refcounts(slot)
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

impl Access {
    /// A storage of `bytes` > 0 in huge pages, as [`Pool::alloc`] does.
    pub(crate) fn cut_huge(&self, pages: HugePages, bytes: u64, fallback: bool) -> Result<Storage> {
        let pools = self.memory.huge.get_or_init(HugePools::default);
        pools.of(&self.memory, pages).alloc(&HugeSource(self, pages), bytes, fallback)
    }

    /// Looks for storages that are no longer held and gives empty memory back to the broker: all, or what
    /// this process has not just allocated in.
    pub(crate) fn reclaim_pools(&self, all: bool) -> u64 {
        self.memory.pool.reclaim(self, all) + self.memory.huge.get().map_or(0, |h| h.reclaim(self, all))
    }
}
