//! All that a session has on GPUs.

use std::any::Any;
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Instant;

use super::deferred::DeferredReleases;
use super::gpu::Gpu;
use super::lend::{Keep, Lender};
use super::order::{Done, Orders, Point, Use};
use super::rent::Rented;
use crate::cuda::{Device, Stream};
use crate::dtype::DType;
use crate::error::{Code, Result};
use crate::holding::{Holding, Opening, Shared};
use crate::ledger::PoolStats;
use crate::memory::{Access, Beside, Memory};

/// What a session has on GPUs. It is made when it first meets one.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    gpus: RwLock<Vec<Arc<Gpu>>>,
    orders: Orders,
    deferred: Arc<DeferredReleases>,
    lender: OnceLock<Arc<Lender>>,
    pub(crate) rented: Rented,
}

impl Beside for Devices {
    fn dropped(&self, index: u32) {
        self.gpus.read().unwrap_or_else(|p| p.into_inner()).iter().for_each(|g| g.dropped(index));
        if let Some(l) = self.lender.get()
            && l.dropped(index)
        {
            self.deferred.watch(l);
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
        let g = Arc::new(Gpu::new(memory, device));
        all.push(g.clone());
        g
    }

    /// Every GPU in use.
    fn all(&self) -> Vec<Arc<Gpu>> {
        self.gpus.read().unwrap_or_else(|p| p.into_inner()).clone()
    }

    pub(crate) fn add_stats(&self, access: &Access, to: &mut PoolStats) {
        for g in self.all() {
            to.add(&g.stats(access));
        }
    }

    /// Recycles what is on GPUs; the bytes given back.
    pub(crate) fn reclaim(inner: &Opening, all: bool) -> u64 {
        let Some(d) = Devices::known(&inner.memory) else { return 0 };
        if let Some(l) = d.lender.get() {
            l.sweep_of(inner);
        }
        d.all().iter().map(|g| g.reclaim(inner, all)).sum()
    }

    /// Lends `n` > 0 bytes at an address of a GPU; what holds them, and where in its storage they begin.
    /// `keep` is dropped when they have no holder any more, or with an error.
    pub(crate) fn lend(inner: &Arc<Opening>, gpu: &Gpu, at: u64, n: u64, keep: Keep) -> Result<(Shared, u64)> {
        inner.check_open()?;
        let d = Devices::of(&inner.memory);
        let lender = d.lender.get_or_init(|| Arc::new(Lender::new(inner)));
        let (s, within) = lender.lend(inner, gpu, d.rented.segment(at, n), (at, n), keep)?;
        d.deferred.watch(lender);
        Ok((inner.holding_of(s, DType::UINT8, &[])?, within))
    }

    /// Makes a stream write its next value, and returns where that is seen. Where streams cannot write,
    /// or too many have, it waits for the stream instead.
    pub(crate) fn mark(&self, inner: &Opening, gpu: &Arc<Gpu>, stream: Stream) -> Result<Option<Point>> {
        self.orders.mark(inner, gpu, stream)
    }

    /// Makes a stream wait for a point, also another session's. The deadline is for where the processor waits.
    pub(crate) fn follow(
        &self,
        inner: &Opening,
        gpu: &Gpu,
        stream: Stream,
        p: &Point,
        until: Option<Instant>,
    ) -> Result<()> {
        self.orders.follow(inner, gpu, stream, p, until)
    }

    /// Ends a holding that streams have used: at once if they have passed, else when they have.
    pub(super) fn defer_release(&self, inner: &Opening, held: Holding, mut uses: Vec<Use>) {
        for u in uses.iter_mut().filter(|u| matches!(u.done, Done::Open)) {
            u.done = match self.mark(inner, &u.gpu, u.stream) {
                Ok(point) => point.map_or(Done::Now, Done::At),
                // A graph that has captured the stream may use it at any time.
                Err(e) if e.code() == Code::Conflict => return std::mem::forget(held),
                // The stream may be gone; what it did is over when all the GPU's work is.
                Err(_) if u.gpu.device.synchronize().is_ok() => Done::Now,
                // That cannot be known: it stays counted until this process has ended.
                Err(_) => return std::mem::forget(held),
            };
        }
        if !uses.iter().all(|u| u.done.passed()) {
            self.deferred.wait_for(held, uses);
        }
    }

    /// Drops a tensor that a library has given back, on a thread that may call the driver.
    pub(crate) fn deleted(&self, t: Keep) {
        self.deferred.drop_elsewhere(t);
    }

    /// Waits until nothing of this process uses memory on a GPU any more: the broker gives it to others
    /// when the session is over.
    pub(crate) fn end(&self, inner: &Opening) {
        for g in self.all() {
            // Of a context that is lost nothing runs any more.
            let _ = g.device.synchronize();
        }
        self.deferred.sweep();
        if let Some(l) = self.lender.get() {
            l.end(inner);
        }
        self.orders.end();
    }
}
