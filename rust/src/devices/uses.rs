//! What streams of this process have to do with a holding: which of them write it, which use it, and what it has open.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::all::Devices;
use super::gpu::Gpu;
use super::order::{Done, Named, Point, Use};
use crate::cuda::{Slab, Stream};
use crate::error::{Code, Error, Result, expired};
use crate::holding::{Holding, Used, Uses};
use crate::layout::limits;
use crate::memory::Held;
use crate::shm::Segment;

/// How long a process may take to end once its driver has let go of its memory, and the broker to report it.
const NEWS: Duration = Duration::from_secs(2);

/// What streams have to do with a holding.
#[derive(Debug, Default)]
pub(crate) struct DeviceUse {
    written: Mutex<Written>,
    uses: Mutex<Vec<Use>>,      // by streams of this process
    opened: Mutex<Vec<Opened>>, // of memory that other processes lend
}

/// When a holding is written, and which streams of this process wait for that already. A stream that is named
/// for a tensor lives as long as the tensor, so that its number is no other stream's meanwhile.
#[derive(Debug, Default)]
struct Written {
    at: Option<Point>,
    told: Vec<Named>,
    /// What has written it since, which no stream can wait for yet.
    by: Option<Named>,
}

impl DeviceUse {
    fn note(&self, gpu: &Arc<Gpu>, stream: Stream, done: Done) {
        let mut all = self.uses.lock().unwrap_or_else(|p| p.into_inner());
        match all.iter_mut().find(|u| Arc::ptr_eq(&u.gpu, gpu) && u.stream == stream) {
            Some(u) => u.done = done,
            None => all.push(Use { gpu: gpu.clone(), stream, done }),
        }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Opens borrowed memory unless the holding has it open.
    fn open(&self, segment: &Arc<Segment>) -> Result<()> {
        let mut all = self.opened.lock().unwrap_or_else(|p| p.into_inner());
        if !all.iter().any(|o| Arc::ptr_eq(&o.0, segment)) {
            all.push(Opened::new(segment)?);
        }
        Ok(())
    }
}

impl Used for DeviceUse {
    fn take(&self) -> Option<Box<dyn Uses>> {
        let uses = std::mem::take(&mut *self.uses.lock().unwrap_or_else(|p| p.into_inner()));
        if uses.is_empty() { None } else { Some(Box::new(Noted(uses))) }
    }

    /// Closes what was borrowed.
    fn close(&self) {
        self.opened.lock().unwrap_or_else(|p| p.into_inner()).clear();
    }
}

/// Uses that were noted.
struct Noted(Vec<Use>);

impl Uses for Noted {
    fn defer_release(self: Box<Self>, held: Holding) {
        let inner = held.inner().clone();
        Devices::of(&inner.memory).defer_release(&inner, held, self.0);
    }
}

/// A holding, as streams use it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnGpu<'a>(pub(crate) &'a Holding);

fn noted(used: &dyn Used) -> &DeviceUse {
    let any: &dyn Any = used;
    any.downcast_ref().expect("what a holding has noted of streams is made here")
}

impl OnGpu<'_> {
    /// The notes of a holding, made at the first call.
    fn used(&self) -> &DeviceUse {
        noted(&**self.0.device.get_or_init(|| Box::new(DeviceUse::default())))
    }

    /// Notes a use.
    pub(crate) fn note(&self, gpu: &Arc<Gpu>, stream: Stream, done: Done) {
        self.used().note(gpu, stream, done);
    }

    /// Notes when a holding is written.
    pub(crate) fn written_at(&self, at: Point) {
        *self.used().written() = Written { at: Some(at), ..Written::default() };
    }

    /// Notes that a stream of this process writes it, which was told to wait for what was written before.
    pub(crate) fn writes(&self, gpu: &Arc<Gpu>, stream: Stream) {
        self.used().written().by = Some(Named::new(gpu, stream));
    }

    /// When it is written, for all but the stream that writes it.
    pub(crate) fn written(&self, reader: Option<&Named>) -> Result<Option<Point>> {
        let Some(used) = self.0.device.get().map(|used| noted(&**used)) else { return Ok(None) };
        let by = used.written().by.clone();
        if let Some(by) = by.filter(|by| reader != Some(by)) {
            let point = Devices::of(&self.0.inner().memory).mark(self.0.inner(), &by.0, by.1.seen_by_all())?;
            let mut written = used.written();
            if written.by.as_ref() == Some(&by) {
                *written = Written { at: point, ..Written::default() };
            }
        }
        Ok(used.written().at.clone())
    }

    /// Makes a stream wait until the holding is written, once for all tensors of a message.
    pub(crate) fn follow(&self, gpu: &Arc<Gpu>, stream: Stream) -> Result<()> {
        let reader = Named::new(gpu, stream);
        let Some(p) = self.written(Some(&reader))? else { return Ok(()) };
        if p.passed()? || self.used().written().told.contains(&reader) {
            return Ok(());
        }
        Devices::of(&self.0.inner().memory).follow(self.0.inner(), gpu, stream, &p, None)?;
        let mut written = self.used().written();
        // Unless another thread has had it written anew meanwhile, or has told the stream as well.
        if written.at.as_ref() == Some(&p) && !written.told.contains(&reader) {
            written.told.push(reader);
        }
        Ok(())
    }

    /// Opens borrowed memory, for as long as this holding lives. `Expired`: its owner has ended.
    pub(crate) fn open(&self, h: &Held) -> Result<()> {
        if h.at.segment.device().is_none_or(|d| !d.is_borrowed()) {
            return Ok(());
        }
        self.check_lender(h)?;
        self.used().open(&h.at.segment).map_err(|e| self.why_not_open(h, e))
    }

    /// Why memory is not opened: its owner's death, of which the broker tells a moment after the driver, or
    /// the error.
    fn why_not_open(&self, h: &Held, e: Error) -> Error {
        if !matches!(e.code(), Code::InvalidHandle | Code::InvalidArgument) {
            return e; // which no owner's death brings about
        }
        let inner = self.0.inner();
        // An unresponsive broker sends no events: that it answers comes first.
        inner.ask_for(&h.at.segment);
        // The broker rings the sessions that have the memory after it has taken the serial away. Where the program's
        // hook interrupts the wait, what is known says why.
        let _ = inner.wait(None, None, Some(Instant::now() + NEWS), || self.check_lender(h).is_err());
        self.check_lender(h).err().unwrap_or(e)
    }

    /// Refuses memory whose lender has ended.
    fn check_lender(&self, h: &Held) -> Result<()> {
        let borrowed = h.at.segment.device().is_some_and(Slab::is_borrowed);
        // SYNC lender: the broker takes the serial away when the owner's process or session is over.
        if borrowed
            && self.0.inner().memory.files.chunks.serial(h.reference.index / limits::CHUNK_INDICES)
                != h.reference.serial
        {
            return Err(expired("the process that lent this memory has ended"));
        }
        Ok(())
    }

    /// As `check_lender`, of all storages.
    pub(crate) fn check_lenders(&self) -> Result<()> {
        self.0.storages.iter().try_for_each(|h| self.check_lender(h))
    }
}

/// That borrowed memory is open.
#[derive(Debug)]
struct Opened(Arc<Segment>);

impl Opened {
    fn new(segment: &Arc<Segment>) -> Result<Opened> {
        segment.open_borrowed().map(|()| Opened(segment.clone()))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(d) = self.0.device() {
            d.close();
        }
    }
}
