//! The order between streams of this process and those of others.
//!
//! Each stream that a session names has a word in its session file, on a page that processes register
//! with the driver. Behind the work that writes a tensor the stream writes the next value there; a
//! stream of another process waits for at least that value. The broker adds `STREAM_POISON` to the
//! words of a session that is over, so that nothing waits for the dead.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::gpu::{Devices, Gpu};
use crate::cuda::{Registered, Slab, Stream};
use crate::error::{Code, Error, Result, expired, interrupted};
use crate::holding::{Holding, Opening, Used, Uses};
use crate::layout::{PAGE, STREAM_POISON, limits, session_file};
use crate::memory::Held;
use crate::message::Order;
use crate::shm::{Region, Segment};

/// How long a process may take to end once its driver has let go of its memory, and the broker to report it.
const NEWS: Duration = Duration::from_secs(2);
/// How long a sender still has to write once the session is lost: no broker reports its death then.
const AFTER_LOSS: Duration = Duration::from_millis(500);

/// How far a session's stream is to come.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    file: Region, // the session's
    number: u32,  // of the word, from 1
    pub(crate) value: u64,
}

impl PartialEq for Point {
    fn eq(&self, o: &Point) -> bool {
        self.is_of_stream_of(o) && self.value == o.value
    }
}

impl Point {
    /// What a message says, checked, of the session that has this file.
    pub(crate) fn of(file: &Region, o: Order) -> Point {
        Point { file: file.clone(), number: o.stream, value: o.ready }
    }

    /// As a message says it.
    pub(crate) fn order(&self) -> Order {
        Order { stream: self.number, ready: self.value }
    }

    /// Whether both are of the same stream.
    pub(crate) fn is_of_stream_of(&self, o: &Point) -> bool {
        self.number == o.number && self.file.address(0, 0) == o.file.address(0, 0)
    }

    /// Whether the stream has come so far; `Expired` when it never will, since its session is over.
    ///
    /// SYNC stream-word: the stream's driver, or the broker after the death of its process, has written
    /// it; work before the value is visible on the device.
    pub(crate) fn passed(&self) -> Result<bool> {
        let w = self.file.load(session_file::STREAMS + 8 * u64::from(self.number - 1));
        if w & !STREAM_POISON >= self.value {
            return Ok(true);
        }
        match w & STREAM_POISON {
            0 => Ok(false),
            _ => Err(expired("its sender ended before its stream had written it")),
        }
    }

    /// Waits on the processor.
    pub(crate) fn wait(&self, inner: &Opening, until: Option<Instant>) -> Result<()> {
        let (mut pause, mut last) = (Duration::from_micros(20), None);
        while !self.passed()? {
            let now = Instant::now();
            if until.is_some_and(|u| now >= u) {
                let what = "time ran out waiting for the sender's stream to write";
                return Err(Error::new(Code::Timeout, "wait longer", what));
            }
            if inner.is_lost() && now >= *last.get_or_insert(now + AFTER_LOSS) {
                return Err(inner.why_closed());
            }
            if inner.interrupted() {
                return Err(interrupted());
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(1));
        }
        Ok(())
    }
}

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

/// A stream of this process. The driver gives the address of a stream that was destroyed to another only when
/// its work is done: a stream that was told to wait has waited then, and the word of the one serves the other.
/// cuStreamGetId, which tells them apart, may not be asked of one that is destroyed, and is not needed.
#[derive(Debug, Clone)]
pub(crate) struct Named(Arc<Gpu>, Stream, Option<ThreadId>); // each thread has its own default stream

impl Named {
    pub(crate) fn new(gpu: &Arc<Gpu>, stream: Stream) -> Named {
        Named(gpu.clone(), stream, (stream == Stream::PER_THREAD).then(|| std::thread::current().id()))
    }
}

impl PartialEq for Named {
    fn eq(&self, o: &Named) -> bool {
        Arc::ptr_eq(&self.0, &o.0) && (self.1, self.2) == (o.1, o.2)
    }
}

/// That a stream of this process uses a holding.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) stream: Stream,
    pub(crate) done: Done,
}

/// How far a stream must come until it is done with a holding.
#[derive(Debug, Clone)]
pub(crate) enum Done {
    /// To what will have been enqueued when the holding is dropped.
    Open,
    /// Behind all work that was announced.
    At(Point),
    /// It is done.
    Now,
}

impl Done {
    /// Whether that is so. A reader of a stream of its own session is told so by the session's end as well:
    /// nothing of the session runs then.
    pub(crate) fn passed(&self) -> bool {
        match self {
            Done::Open => false,
            Done::At(p) => p.passed().unwrap_or(true),
            Done::Now => true,
        }
    }
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

/// The streams of this process that have words, and the pages that its driver knows.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    own: Vec<OwnStream>,
    /// By address of the page; `None`: this driver cannot. They stay to the end: a stream may wait there.
    files: HashMap<usize, Option<Registered>>,
}

#[derive(Debug)]
struct OwnStream {
    gpu: Arc<Gpu>,
    stream: Stream,
    last: u64, // value that it was last told to write
}

impl Orders {
    /// The device address of a session's words. `None`: the processor must wait instead.
    fn words_of(&mut self, gpu: &Gpu, file: &Region, own: bool) -> Option<u64> {
        let key = file.address(session_file::DEVICE_PAGE, PAGE) as usize;
        let page = self.files.entry(key).or_insert_with(|| {
            let page = file.sub(session_file::DEVICE_PAGE, PAGE);
            gpu.device.values().then(|| Registered::new(gpu.device, page, own).ok()).flatten()
        });
        page.as_ref().map(|r| r.at + session_file::STREAMS - session_file::DEVICE_PAGE)
    }

    /// The number of a stream's word; `None` when too many have one.
    fn number(&mut self, gpu: &Arc<Gpu>, stream: Stream) -> Option<usize> {
        let known = self.own.iter().position(|w| Arc::ptr_eq(&w.gpu, gpu) && w.stream == stream);
        known.or_else(|| {
            let room = self.own.len() < limits::STREAMS as usize;
            room.then(|| self.own.push(OwnStream { gpu: gpu.clone(), stream, last: 0 }))?;
            Some(self.own.len() - 1)
        })
    }

    /// Gives the pages back to the driver. No stream of this process uses them any more.
    pub(crate) fn end(&mut self) {
        self.files.clear();
    }
}

impl Devices {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Makes a stream write its next value, and returns where that is seen. Where streams cannot write,
    /// or too many have, it waits for the stream instead.
    pub(crate) fn mark(&self, inner: &Opening, gpu: &Arc<Gpu>, stream: Stream) -> Result<Option<Point>> {
        let file = &inner.memory.files.session;
        let mut orders = self.orders();
        let seen = stream.seen_by_all();
        // What is noted of a thread's default stream is noted of the legacy one.
        let wait = || match stream {
            Stream::LEGACY => gpu.device.synchronize(),
            s => gpu.device.synchronize_stream(s),
        };
        let (Some(words), Some(at)) = (orders.words_of(gpu, file, true), orders.number(gpu, seen)) else {
            drop(orders);
            return wait().map(|()| None);
        };
        let value = orders.own[at].last + 1;
        if let Err(e) = gpu.device.write_value(seen, words + 8 * at as u64, value) {
            drop(orders);
            return if cannot(&e) { wait().map(|()| None) } else { Err(e) };
        }
        orders.own[at].last = value;
        Ok(Some(Point { file: file.clone(), number: at as u32 + 1, value }))
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
        if p.passed()? {
            return Ok(());
        }
        let own = p.file.address(0, 0) == inner.memory.files.session.address(0, 0);
        let mut orders = self.orders();
        if own
            && orders.own.get(p.number as usize - 1).is_some_and(|w| std::ptr::eq(&*w.gpu, gpu) && w.stream == stream)
        {
            return Ok(()); // it comes after its own work
        }
        let told = orders
            .words_of(gpu, &p.file, own)
            .map(|words| gpu.device.wait_value(stream, words + 8 * u64::from(p.number - 1), p.value));
        drop(orders);
        match told {
            Some(Ok(())) => Ok(()),
            Some(Err(e)) if !cannot(&e) => Err(e),
            _ => p.wait(inner, until),
        }
    }
}

/// Whether a driver says that it cannot order streams in this way, whatever its attributes promise: then the
/// processor waits. Statuses differ between drivers.
fn cannot(e: &Error) -> bool {
    matches!(e.code(), Code::Unsupported | Code::InvalidArgument)
}
