//! The GPUs of a session: memory that it makes there, and the pool that hands it out.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use super::arriving::Arriving;
use super::inner::Inner;
use super::lend::Lender;
use super::order::Orders;
use super::rent::Rented;
use super::retired::Retired;
use crate::cuda::{Device, Slab, driver};
use crate::error::{Error, Result};
use crate::ledger::{FreeTest, Grant, Pool, PoolStats, Row, Rows, Source, Storage};
use crate::shm::Segment;
use crate::turns::{Turn, Turnstile};
use crate::wire::ops::{GrantReply, GrantRequest, Ignored, OfferRequest, ReturnRequest, SegmentReply};

/// What precedes a GPU's UUID in the name by which brokers know it.
const CUDA: &str = "cuda:";

/// What a session has on GPUs. It is made when it first meets one.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    gpus: RwLock<Vec<Arc<Gpu>>>,
    pub(super) orders: Mutex<Orders>, // held across calls of the driver
    pub(super) retired: Arc<Retired>,
    pub(super) lender: OnceLock<Arc<Lender>>,
    pub(super) rented: Rented,
}

/// A GPU that this session uses.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: &'static Device,
    pub(super) name: String, // to the broker
    pool: Pool,
}

impl Devices {
    /// Every GPU in use.
    pub(super) fn all(&self) -> Vec<Arc<Gpu>> {
        self.gpus.read().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Tells the pools that the own count of an index fell to zero; each looks whether it is its own.
    pub(super) fn dropped(&self, index: u32) {
        self.gpus.read().unwrap_or_else(|p| p.into_inner()).iter().for_each(|g| g.pool.dropped(index));
        if let Some(l) = self.lender.get() {
            l.dropped(index, &self.retired);
        }
    }

    pub(super) fn add_stats(&self, to: &mut PoolStats) {
        for g in self.all() {
            to.add(&g.pool.stats());
        }
    }
}

impl Inner {
    /// What this session has on GPUs.
    pub(crate) fn devices(&self) -> &Devices {
        self.devices.get_or_init(Devices::default)
    }

    /// What this session has on one GPU.
    pub(crate) fn gpu(&self, device: &'static Device) -> Arc<Gpu> {
        let known = |all: &[Arc<Gpu>]| all.iter().find(|g| std::ptr::eq(g.device, device)).cloned();
        if let Some(g) = known(&self.devices().gpus.read().unwrap_or_else(|p| p.into_inner())) {
            return g;
        }
        let mut all = self.devices().gpus.write().unwrap_or_else(|p| p.into_inner());
        if let Some(g) = known(&all) {
            return g;
        }
        let p = &self.pages;
        let test = FreeTest::new(p.chunks.clone(), p.entries.clone());
        let pool = Pool::new(p.row.clone(), p.entries.clone(), test, [0, 0]);
        let g = Arc::new(Gpu { device, name: format!("{CUDA}{}", device.uuid), pool });
        all.push(g.clone());
        g
    }

    /// The segment of another session on a device, from the broker's answer. An error says that this
    /// process cannot reach it; others may.
    pub(super) fn device_segment(&self, index: u32, serial: u64, ok: &SegmentReply, fd: OwnedFd) -> Result<Segment> {
        let uuid = ok.device.strip_prefix(CUDA).unwrap_or_default();
        let device = driver().and_then(|d| d.by_uuid(uuid)).map_err(|e| {
            Error::new(e.code(), e.remedy(), format!("memory on {}: {}", ok.device, e.message()))
                .with("device", &*ok.device)
        })?;
        self.devices(); // a send looks for an order where there are any
        let slab = if ok.borrowed { Slab::to_borrow } else { Slab::to_import };
        Ok(Segment::on_device(index, serial, fd, slab(device, ok.device_id, ok.bytes)))
    }

    /// Recycles what is on GPUs; the bytes given back.
    pub(super) fn collect_devices(&self, all: bool) -> u64 {
        let Some(d) = self.devices.get() else { return 0 };
        if let Some(l) = d.lender.get() {
            l.sweep_of(self);
        }
        d.all().iter().map(|g| g.pool.collect(&DeviceSource(self, g), all)).sum()
    }

    /// A storage of `bytes` > 0 on a GPU, as [`Pool::alloc`](crate::ledger::Pool::alloc) does.
    pub(super) fn cut(&self, g: &Gpu, bytes: u64, fallback: bool) -> Result<Storage> {
        g.pool.alloc(&DeviceSource(self, g), bytes, fallback)
    }
}

/// A device pool's way to the broker and the driver.
struct DeviceSource<'a>(&'a Inner, &'a Gpu);

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
        let (_granting, before) = (self.0.granting(), self.0.arriving());
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
