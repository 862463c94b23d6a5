//! Streams, as others made them: named as DLPack does.

use super::Device;
use super::api::{Address, RawStream};
use crate::error::{Code, Error, Result};

/// A stream of a GPU, by the number that DLPack gives it: the driver's pointer, or one of the constants.
/// It is the caller's, and lives as long as what was used on it or sent after it is held here, for it is asked
/// to write a value when that is let go. One that is being captured into a graph is refused with `Conflict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(i64);

const WAIT_AT_LEAST: u32 = 0; // CU_STREAM_WAIT_VALUE_GEQ

impl Stream {
    /// None: the caller has synchronised, or does so itself.
    pub const NONE: Stream = Stream(-1);
    /// The legacy default stream.
    pub const LEGACY: Stream = Stream(1);
    /// The default stream of each thread.
    pub const PER_THREAD: Stream = Stream(2);

    /// The stream of a number: a pointer of the driver's, 1, 2 or −1. 0 is refused, as DLPack says: it
    /// does not tell which default stream is meant (`InvalidArgument`).
    ///
    /// # Safety
    /// Another number than 1, 2 and −1 is the `CUstream` or `cudaStream_t` of a stream that lives as long as
    /// what was used on it or sent after it is held here: the driver reads what it points to.
    ///
    /// ```compile_fail,E0133
    /// # #![forbid(unsafe_code)]
    /// let _ = baton::Stream::from_raw(0x1000);
    /// ```
    pub unsafe fn from_raw(number: i64) -> Result<Stream> {
        if number == -1 || number > 0 {
            return Ok(Stream(number));
        }
        let remedy = "use 1 (the legacy default stream), 2 (the thread's), the stream's pointer, or -1 for none";
        Err(Error::new(Code::InvalidArgument, remedy, format!("stream {number} cannot be used")))
    }

    /// Its number.
    pub fn as_raw(self) -> i64 {
        self.0
    }

    fn raw(self) -> RawStream {
        self.0 as RawStream
    }

    /// The stream on which any thread can tell that this one has come so far: the legacy one comes after
    /// the default streams of all threads.
    pub(crate) fn seen_by_all(self) -> Stream {
        if self == Stream::PER_THREAD { Stream::LEGACY } else { self }
    }
}

impl Default for Stream {
    fn default() -> Stream {
        Stream::LEGACY
    }
}

impl Device {
    /// Refuses a stream whose work goes into a graph: a value would be written with each run of the graph,
    /// not now, and words would go back. The legacy stream is never captured. The context is current.
    fn check_not_capturing(&self, s: Stream) -> Result<()> {
        let mut status = 0;
        if s != Stream::LEGACY {
            // SAFETY: a place for the result; the caller's stream, or one with a fixed name.
            unsafe { self.api.is_capturing(s.raw(), &mut status)? };
        }
        if status == 0 {
            return Ok(());
        }
        let what = "the stream is being captured into a graph, which cannot order what is handed over";
        let remedy = "do it before the capture begins or after it has ended, or by another stream";
        Err(Error::new(Code::Conflict, remedy, what))
    }

    /// Makes a stream store a value at a device address, after all that was enqueued and visible after it.
    pub(crate) fn write_value(&self, s: Stream, at: Address, value: u64) -> Result<()> {
        let _current = self.enter()?;
        self.check_not_capturing(s)?;
        // SAFETY: the address is that of a registered page's word.
        unsafe { self.api.write_value(s.raw(), at, value, 0) }
    }

    /// Makes a stream wait until the word at a device address is at least a value.
    pub(crate) fn wait_value(&self, s: Stream, at: Address, value: u64) -> Result<()> {
        let _current = self.enter()?;
        self.check_not_capturing(s)?;
        // SAFETY: as above.
        unsafe { self.api.wait_value(s.raw(), at, value, WAIT_AT_LEAST) }
    }

    /// Waits until a stream has done all that was enqueued.
    pub(crate) fn synchronize_stream(&self, s: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's stream, or one with a fixed name.
        unsafe { self.api.stream_synchronize(s.raw()) }
    }
}
