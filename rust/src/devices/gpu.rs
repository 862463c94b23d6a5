//! The GPUs of a session: memory that it makes there, and the pool that hands it out.

use std::any::Any;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use super::deferred::DeferredReleases;
use super::lend::Lender;
use super::order::Orders;
use super::rent::Rented;
use crate::cuda::{Device, Slab};
use crate::error::Result;
use crate::holding::Opening;
use crate::ledger::{FreeTest, Grant, Pool, PoolStats, Row, Rows, Source, Storage};
use crate::memory::{Access, Arriving, Beside, CUDA, Memory};
use crate::shm::Segment;
use crate::turns::{Turn, Turnstile};
use crate::wire::ops::{GrantReply, GrantRequest, Ignored, OfferRequest, ReturnRequest};

/// What a session has on GPUs. It is made when it first meets one.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    gpus: RwLock<Vec<Arc<Gpu>>>,
    pub(crate) orders: Mutex<Orders>, // held across calls of the driver
    pub(crate) deferred: Arc<DeferredReleases>,
    pub(crate) lender: OnceLock<Arc<Lender>>,
    pub(crate) rented: Rented,
}

/// A GPU that this session uses.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: &'static Device,
    pub(crate) name: String, // to the broker
    pool: Pool,
}

impl Devices {
    /// Every GPU in use.
    pub(crate) fn all(&self) -> Vec<Arc<Gpu>> {
        self.gpus.read().unwrap_or_else(|p| p.into_inner()).clone()
    }

    pub(crate) fn add_stats(&self, to: &mut PoolStats) {
        for g in self.all() {
            to.add(&g.pool.stats());
        }
    }
}

impl Beside for Devices {
    /// Each pool looks whether the storage is its own.
    fn dropped(&self, index: u32) {
        self.gpus.read().unwrap_or_else(|p| p.into_inner()).iter().for_each(|g| g.pool.dropped(index));
        if let Some(l) = self.lender.get() {
            l.dropped(index, &self.deferred);
        }
    }

    fn is_rented(&self, at: u64, n: u64) -> bool {
        self.rented.segment(at, n).is_some()
    }
}

fn known(beside: &dyn Beside) -> &Devices {
    let any: &dyn Any = beside;
    any.downcast_ref().expect("devices are all that a session keeps beside the machine's memory")
}

impl Devices {
    /// What is made when a session first meets a GPU.
    pub(crate) fn make() -> Box<dyn Beside> {
        Box::new(Devices::default())
    }

    /// What a session has on GPUs, where it has met one.
    pub(crate) fn known(memory: &Memory) -> Option<&Devices> {
        memory.beside().map(known)
    }

    /// What a session has on GPUs.
    pub(crate) fn of(memory: &Memory) -> &Devices {
        known(memory.beside_or_new())
    }

    /// What the session has on one GPU.
    pub(crate) fn gpu(memory: &Memory, device: &'static Device) -> Arc<Gpu> {
        let known = |all: &[Arc<Gpu>]| all.iter().find(|g| std::ptr::eq(g.device, device)).cloned();
        let devices = Devices::of(memory);
        if let Some(g) = known(&devices.gpus.read().unwrap_or_else(|p| p.into_inner())) {
            return g;
        }
        let mut all = devices.gpus.write().unwrap_or_else(|p| p.into_inner());
        if let Some(g) = known(&all) {
            return g;
        }
        let p = &memory.files;
        let test = FreeTest::new(p.chunks.clone(), p.entries.clone());
        let pool = Pool::new(p.row.clone(), p.entries.clone(), test, [0, 0]);
        let g = Arc::new(Gpu { device, name: format!("{CUDA}{}", device.uuid), pool });
        all.push(g.clone());
        g
    }

    /// Recycles what is on GPUs; the bytes given back.
    pub(crate) fn reclaim(inner: &Opening, all: bool) -> u64 {
        let Some(d) = Devices::known(&inner.memory) else { return 0 };
        if let Some(l) = d.lender.get() {
            l.sweep_of(inner);
        }
        d.all().iter().map(|g| g.pool.reclaim(&DeviceSource(inner, g), all)).sum()
    }

    /// A storage of `bytes` > 0 on a GPU, as [`Pool::alloc`](crate::ledger::Pool::alloc) does.
    pub(crate) fn cut(access: &Access, g: &Gpu, bytes: u64, fallback: bool) -> Result<Storage> {
        g.pool.alloc(&DeviceSource(access, g), bytes, fallback)
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

impl Rows for DeviceSource<'_> {
    fn row(&self, slot: u32) -> Option<Row> {
        self.0.row(slot)
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
            return Err(crate::error::disagree(format!("{} bytes were granted, not {bytes}", ok.bytes)));
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
