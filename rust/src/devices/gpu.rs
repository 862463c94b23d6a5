//! One GPU of a session: the memory that the session makes there, and the pool that hands it out.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::cuda::{Device, Slab};
use crate::error::{Result, disagree};
use crate::ledger::{FreeTest, Grant, Holders, Pool, PoolStats, Refcounts, Source, Storage};
use crate::memory::{Access, Arriving, CUDA, Memory};
use crate::shm::Segment;
use crate::turns::{Turn, Turnstile};
use crate::wire::ops::{GrantReply, GrantRequest, Ignored, OfferRequest, ReturnRequest};

/// A GPU that this session uses.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: &'static Device,
    pub(crate) name: String, // to the broker
    pool: Pool,
}

impl Gpu {
    pub(super) fn new(memory: &Memory, device: &'static Device) -> Gpu {
        let p = &memory.files;
        let test = FreeTest::new(p.chunks.clone(), p.entries.clone());
        let pool = Pool::new(p.refcounts.clone(), p.entries.clone(), test, [0, 0]);
        Gpu { device, name: format!("{CUDA}{}", device.uuid), pool }
    }

    pub(super) fn stats(&self, access: &Access) -> PoolStats {
        self.pool.find_free(access);
        self.pool.stats()
    }

    /// This session's count of an index fell to zero. The pool looks whether the storage is its own.
    pub(super) fn dropped(&self, index: u32) {
        self.pool.dropped(index);
    }

    /// Recycles what is on it; the bytes given back.
    pub(super) fn reclaim(&self, access: &Access, all: bool) -> u64 {
        self.pool.reclaim(&DeviceSource(access, self), all)
    }

    /// A storage of `bytes` > 0 on it, as [`Pool::alloc`](crate::ledger::Pool::alloc) does.
    pub(crate) fn alloc(&self, access: &Access, bytes: u64, fallback: bool) -> Result<Storage> {
        self.pool.alloc(&DeviceSource(access, self), bytes, fallback)
    }
}

/// A device pool's way to the broker and the driver.
struct DeviceSource<'a>(&'a Access, &'a Gpu);

impl DeviceSource<'_> {
    /// Makes the memory of a grant, which only now is taken, and offers it, so that it outlives this
    /// process.
    fn make(&self, ok: &GrantReply, before: Arriving) -> Result<Grant> {
        let (inner, gpu) = (self.0, self.1);
        let slab = Slab::create(gpu.device, ok.device_id, ok.bytes)?;
        let fd = slab.export()?;
        slab.address(fd.as_fd(), true)?;
        let offer = OfferRequest { segment: ok.segment, serial: ok.segment_serial };
        inner.call_with::<_, Ignored>("offer", &offer, &[fd.as_fd()])?;
        let segment = Arc::new(Segment::on_device(ok.segment, ok.segment_serial, fd, slab));
        let chunks = inner.prepare(&segment, &ok.chunks)?;
        inner.know_new(&segment, before);
        Ok(Grant { segment, chunks })
    }
}

impl Holders for DeviceSource<'_> {
    fn refcounts(&self, slot: u32) -> Option<Refcounts> {
        self.0.refcounts(slot)
    }
}

impl Source for DeviceSource<'_> {
    fn turn<'a>(&self, of: &'a Turnstile<()>) -> Result<Turn<'a, ()>> {
        self.0.turn(of)
    }

    /// Asks the broker first, so that what a quota refuses was never taken.
    fn grant(&self, bytes: u64, chunks: u32, fallback: bool) -> Result<Grant> {
        let (_granting, before) = (self.0.memory.granting(), self.0.arriving());
        let bytes = bytes.next_multiple_of(self.1.device.granularity()?.max(1));
        let device = Some(self.1.name.as_str());
        let request = GrantRequest { bytes, chunks, free: None, device, borrowed: false, page_bytes: None, fallback };
        let (ok, _) = self.0.call_fds::<_, GrantReply>("grant", &request)?;
        if ok.bytes < bytes {
            return Err(disagree(format!("{} bytes were granted, not {bytes}", ok.bytes)));
        }
        self.make(&ok, before).inspect_err(|_| {
            let _ =
                self.0.call::<_, Ignored>("return", &ReturnRequest { segment: ok.segment, serial: ok.segment_serial });
        })
    }

    fn more_chunks(&self, segment: &Arc<Segment>, count: u32) -> Result<Vec<(u32, u64)>> {
        self.0.more_chunks(segment, count)
    }

    fn give_back(&self, segment: &Arc<Segment>) -> bool {
        self.0.give_back(segment)
    }
}
