//! The order between streams of this process and those of others.
//!
//! Each stream that a session names has a word in its session file, on a page that processes register
//! with the driver. After the work that writes a tensor the stream writes the next value there; a
//! stream of another process waits for at least that value. The broker adds `STREAM_POISON` to the
//! words of a session that is over, so that nothing waits for the dead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::gpu::Gpu;
use crate::cuda::{Registered, Stream};
use crate::error::{Code, Error, Result, expired, interrupted};
use crate::holding::Opening;
use crate::layout::{PAGE, STREAM_POISON, limits, session_file};
use crate::message::Order;
use crate::shm::Region;

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
                return Err(Error::new(Code::Timeout, "give the call a longer timeout", what));
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

/// A stream of this process. The driver gives the address of a stream that was destroyed to another only when
/// its work is done: a stream that was told to wait has waited then, and the word of the one serves the other.
/// cuStreamGetId, which tells them apart, may not be asked of one that is destroyed, and is not needed.
#[derive(Debug, Clone)]
pub(crate) struct Named(pub(super) Arc<Gpu>, pub(super) Stream, Option<ThreadId>); // each thread has its own default stream

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
    /// After all work that was announced.
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

/// The streams of this process that have words, and the pages that its driver knows.
#[derive(Debug, Default)]
struct Words {
    own: Vec<OwnStream>,
    /// By address of the page; `None`: this driver cannot. They stay to the end: a stream may wait there.
    files: HashMap<usize, Option<Registered>>,
}

/// How streams of this process are ordered among each other and with those of others.
#[derive(Debug, Default)]
pub(super) struct Orders(Mutex<Words>); // held across calls of the driver

#[derive(Debug)]
struct OwnStream {
    gpu: Arc<Gpu>,
    stream: Stream,
    last: u64, // value that it was last told to write
}

impl Words {
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
}

impl Orders {
    fn words(&self) -> MutexGuard<'_, Words> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Gives the pages back to the driver. No stream of this process uses them any more.
    pub(super) fn end(&self) {
        self.words().files.clear();
    }

    /// Makes a stream write its next value, and returns where that is seen. Where streams cannot write,
    /// or too many have, it waits for the stream instead.
    pub(super) fn mark(&self, inner: &Opening, gpu: &Arc<Gpu>, stream: Stream) -> Result<Option<Point>> {
        let file = &inner.memory.files.session;
        let mut orders = self.words();
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
    pub(super) fn follow(
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
        let mut orders = self.words();
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
