//! Queues: each item to one taker.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::base::cuda::stream_of;
use crate::base::place::{Place, place, reopen};
use crate::base::poll::{coroutine, following, poll_fd};
use crate::base::wait::{Seconds, timeout as seconds, wait};
use crate::face::message::value_of;
use crate::face::topic::shown;
use crate::objects::bundle::Bundle;
use crate::value::encode;

/// Gives each item to one taker; put waits while it is full.
///
/// >>> q = baton.queue("doc/jobs")
/// >>> for i in range(3):
/// ...     q.put({"x": np.full(2, i), "i": i})
/// >>> q.get()["x"].tolist(), q.get(timeout=0)["i"], q.qsize(), q.name, q.lost
/// ([0, 0], 1, 1, 'doc/jobs', 0)
/// >>> q.close()
/// >>> [item["i"] for item in q]
/// [2]
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Queue {
    pub(crate) queue: baton::Queue,
    pub(crate) session: baton::Session,
    lost: AtomicU64, // what the items that came have told
}

impl Queue {
    pub(crate) fn new(queue: baton::Queue, session: baton::Session) -> Queue {
        Queue { queue, session, lost: AtomicU64::new(0) }
    }

    /// What a message carries, which tells as well what went by before it.
    fn taken(&self, py: Python<'_>, m: &baton::Message) -> PyResult<Py<PyAny>> {
        self.lost.fetch_add(m.lost(), Ordering::Relaxed);
        value_of(py, m)
    }

    /// The next item, waiting for it; `None` when the queue was closed and is empty.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let got = wait(py, || match self.queue.get(None) {
            Err(e) if e.is_end() => Ok(None),
            m => m.map(Some),
        })?;
        got.map(|m| self.taken(py, &m)).transpose()
    }
}

#[pymethods]
impl Queue {
    /// Its name; "" of a private one.
    #[getter]
    fn name(&self) -> &str {
        self.queue.name()
    }

    /// How many items this object has missed so far: their memory on a GPU had been lent by a process that ended before
    /// they were taken.
    #[getter]
    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Adds an item, whose tensors its taker may write: do not write them afterwards. No tensor of Baton's is copied,
    /// arrays of others are copied once.
    ///
    /// timeout: seconds to wait for room; None: no limit; 0: does not wait. stream: after whose work tensors on a GPU
    /// are written (None: the legacy default one). Raises Full, Closed, TypeError, InvalidArgument, OutOfMemory,
    /// QuotaExceeded.
    ///
    /// >>> q = baton.queue(depth=1)
    /// >>> q.put(np.arange(3))
    /// >>> q.put(np.arange(3), timeout=0)
    /// Traceback (most recent call last):
    /// baton.Full: ...
    #[pyo3(signature = (value, timeout=None, *, stream=None))]
    fn put(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        timeout: Option<Seconds>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let t = seconds(py, timeout.map(|t| t.0))?;
        let mut p = encode(&self.session, value)?;
        if stream.is_some() {
            p = p.stream(stream_of(stream)?);
        }
        wait(py, || self.queue.put(p, t))
    }

    /// Takes an item; threads that take by one object take turns. timeout: seconds to wait for one; None: no limit; 0:
    /// does not wait. Raises Empty; Closed when the queue was closed and is empty.
    ///
    /// >>> baton.queue().get(timeout=0)
    /// Traceback (most recent call last):
    /// baton.Empty: ...
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<Py<PyAny>> {
        let t = seconds(py, timeout.map(|t| t.0))?;
        let got = wait(py, || self.queue.get(t))?;
        self.taken(py, &got)
    }

    /// `put` as a coroutine, which waits without a thread. timeout: seconds, as of `put`.
    #[pyo3(signature = (value, timeout=None))]
    fn put_async<'py>(
        slf: &Bound<'py, Self>,
        value: Bound<'py, PyAny>,
        timeout: Option<Seconds>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = timeout.map(|t| t.0);
        seconds(slf.py(), timeout)?;
        coroutine(slf.py(), "put", (slf, value, timeout))
    }

    /// `get` as a coroutine, which waits without a thread. timeout: seconds, as of `get`.
    ///
    /// >>> async def pipe():
    /// ...     q = baton.queue()
    /// ...     await q.put_async(np.arange(3))
    /// ...     return await q.get_async(timeout=5)
    /// >>> asyncio.run(pipe()).tolist()
    /// [0, 1, 2]
    #[pyo3(signature = (timeout=None))]
    fn get_async<'py>(slf: &Bound<'py, Self>, timeout: Option<Seconds>) -> PyResult<Bound<'py, PyAny>> {
        let timeout = timeout.map(|t| t.0);
        seconds(slf.py(), timeout)?;
        coroutine(slf.py(), "get", (slf, timeout))
    }

    /// As `put`, also waiting while `most` items of this session are not taken yet.
    #[pyo3(signature = (value, most, timeout=None))]
    fn _put_ahead(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        most: u32,
        timeout: Option<Seconds>,
    ) -> PyResult<()> {
        let t = seconds(py, timeout.map(|t| t.0))?;
        let p = encode(&self.session, value)?;
        wait(py, || self.queue.put_ahead(p, most, t))
    }

    /// An item in a tuple if there is one.
    fn _take(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        let m = wait(py, || self.queue.try_get())?;
        m.map(|m| Ok((self.taken(py, &m)?,))).transpose()
    }

    /// A value with its arrays copied, to be offered often.
    fn _pack(&self, value: &Bound<'_, PyAny>) -> PyResult<Bundle> {
        Ok(baton::Bundle::from(encode(&self.session, value)?).into())
    }

    /// Puts what was packed if there is room.
    fn _offer(&self, value: &Bound<'_, Bundle>) -> PyResult<bool> {
        let p = encode(&self.session, value)?;
        wait(value.py(), || self.queue.try_put(p))
    }

    fn _poll_fd(&self, py: Python<'_>) -> PyResult<i32> {
        poll_fd(py, &self.session)
    }

    fn _clear_poll_fd(&self) {
        self.session.clear_poll_fd();
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        following(slf, "get_async").map(Some)
    }

    /// How many items wait to be taken.
    fn qsize(&self, py: Python<'_>) -> PyResult<usize> {
        wait(py, || self.queue.waiting())
    }

    /// Closes the queue for all processes, as the end of a `with` over it does: puts raise Closed, takers get what is
    /// there. To leave the queue and keep it open for others, drop the object. What another puts at that moment may be
    /// taken although the put fails, and not the other way round.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, || self.queue.end())
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.next(py)
    }

    /// Pickles what opens the queue in another process.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String, String, Place))> {
        let (name, token) = (self.queue.name().to_owned(), self.queue.token().to_owned());
        Ok((reopen(py, "reopen_queue")?, (name, token, place(&self.session))))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes the queue for all processes, as `close` does.
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        shown("Queue", self.queue.name(), self.session.is_ended() || self.queue.is_closed())
    }
}
