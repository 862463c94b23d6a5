//! Topics and their readers.

use std::sync::Arc;

use baton::bindings::Closable;
use baton::{Deadline, Start};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::base::cuda::stream_of;
use crate::base::errors::{OrRaise, invalid};
use crate::base::place::{Place, place, reopen};
use crate::base::poll::{coroutine, following, poll_fd};
use crate::base::text::Text;
use crate::base::wait::{interrupted, timeout as seconds, wait};
use crate::face::message::Message;
use crate::objects::bundle::Bundle;
use crate::value::{encode, with_meta};

/// A channel of messages with many senders and many readers.
///
/// >>> t = baton.topic("doc/frames", depth=4)
/// >>> r = t.reader()
/// >>> t.send(np.arange(3))
/// >>> r.receive(timeout=5).value.tolist(), t.name
/// ([0, 1, 2], 'doc/frames')
/// >>> t.close()
/// >>> list(r)
/// []
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Topic {
    pub(crate) topic: baton::Topic,
    pub(crate) session: baton::Session,
}

#[pymethods]
impl Topic {
    /// Its name; "" of a private one.
    #[getter]
    fn name(&self) -> &str {
        self.topic.name()
    }

    /// Hands a value to every reader; no tensor of Baton's is copied, arrays of others are copied once. Do not write the
    /// tensors afterwards: receivers read the same memory.
    ///
    /// meta: what JSON can hold, which goes along with the message. timeout: seconds to wait for room in a lossless
    /// topic, whose slowest reader is waited for; None: no limit; 0: does not wait. stream: after whose work tensors on
    /// a GPU are written (None: the legacy default one); their readers' streams wait for it. Raises Full, Closed,
    /// TypeError, InvalidArgument, OutOfMemory, QuotaExceeded.
    #[pyo3(signature = (value, meta=None, timeout=None, *, stream=None))]
    fn send(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let until = seconds(py, timeout)?;
        let mut p = with_meta(&self.session, value, meta)?;
        if stream.is_some() {
            p = p.stream(stream_of(stream)?);
        }
        wait(py, || match until {
            None => self.topic.send(p),
            Some(t) => self.topic.send_timeout(p, t),
        })
    }

    /// `send` as a coroutine, which waits without a thread. timeout: seconds, as of `send`.
    ///
    /// >>> t = baton.topic()
    /// >>> r = t.reader()
    /// >>> asyncio.run(t.send_async(7))
    /// >>> r.receive().value
    /// 7
    #[pyo3(signature = (value, meta=None, timeout=None))]
    fn send_async<'py>(
        slf: &Bound<'py, Self>,
        value: Bound<'py, PyAny>,
        meta: Option<Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        seconds(slf.py(), timeout)?;
        coroutine(slf.py(), "send", (slf, value, meta, timeout))
    }

    /// A value with its arrays copied, to be offered often.
    fn _pack(&self, value: &Bound<'_, PyAny>) -> PyResult<Bundle> {
        Ok(baton::Bundle::from(encode(&self.session, value)?).into())
    }

    /// Sends what was packed if there is room.
    #[pyo3(signature = (value, meta=None))]
    fn _offer(&self, value: &Bound<'_, Bundle>, meta: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let p = with_meta(&self.session, value, meta)?;
        wait(value.py(), || self.topic.try_send(p))
    }

    fn _poll_fd(&self, py: Python<'_>) -> PyResult<i32> {
        poll_fd(py, &self.session)
    }

    fn _clear_poll_fd(&self) {
        self.session.clear_poll_fd();
    }

    /// Joins as a reader. start: "new" (what is sent from now on), "last" (the newest kept, then what
    /// follows) or "all" (what is kept). A reader of a lossless topic has what is sent after it, or its
    /// group, was made, whatever start says. group: of a lossless topic, shares the messages with the
    /// readers of that name. Raises Closed, InvalidArgument, TooMany.
    ///
    /// >>> t = baton.topic(depth=4)
    /// >>> for i in range(6):
    /// ...     t.send(i)
    /// >>> [m.value for _, m in zip(range(4), t.reader(start="all"))], t.reader(start="last").receive().value
    /// ([2, 3, 4, 5], 5)
    #[pyo3(signature = (start=Text("new"), group=None), text_signature = "($self, start='new', group=None)")]
    fn reader(&self, py: Python<'_>, start: Text<'_>, group: Option<Text<'_>>) -> PyResult<Reader> {
        let start = match &*start {
            "new" => Start::New,
            "last" => Start::Last,
            "all" => Start::All,
            other => {
                return Err(invalid(py, "use \"new\", \"last\" or \"all\"", format!("start {other:?} is unknown")));
            }
        };
        let r = wait(py, || match group.as_deref() {
            None => self.topic.reader(start),
            Some(g) => self.topic.group_reader(g),
        })?;
        let reader = Arc::new(Closable::new(r).or_raise(py)?);
        Ok(Reader { reader, session: self.session.clone(), topic: self.topic.name().to_owned() })
    }

    /// Closes the topic for all processes, as the end of a `with` over it does: sends raise Closed, readers receive what
    /// is there. To leave the topic and keep it open for others, drop the object. What another sends at that moment may
    /// be received although the send fails, and not the other way round.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, || self.topic.end())
    }

    /// Pickles what opens the topic in another process.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String, String, Place))> {
        let (name, token) = (self.topic.name().to_owned(), self.topic.token().to_owned());
        Ok((reopen(py, "reopen_topic")?, (name, token, place(&self.session))))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes the topic for all processes, as `close` does.
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        shown("Topic", self.topic.name(), self.session.is_ended() || self.topic.is_closed())
    }
}

/// What is shown of a topic or queue, or of what reads it; a private one has no name.
pub(crate) fn shown(class: &str, name: &str, closed: bool) -> String {
    let closed = if closed { ", closed" } else { "" };
    match name {
        "" => format!("baton.{class}(private{closed})"),
        name => format!("baton.{class}({name:?}{closed})"),
    }
}

/// Receives a topic's messages. Threads that share it take turns, each for as long as its own timeout.
///
/// >>> t = baton.topic()
/// >>> with t.reader() as r:  # closed at its end
/// ...     t.send("a")
/// ...     r.receive(timeout=5).value
/// 'a'
/// >>> r.close()
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Reader {
    pub(super) reader: Arc<Closable<baton::Reader>>,
    session: baton::Session,
    topic: String,
}

impl Reader {
    /// The next message, or the error that the topic was closed and everything was received.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<baton::Result<Message>> {
        let t = Deadline::after(seconds(py, timeout)?);
        let reader = self.reader.clone();
        let got = wait(py, move || {
            reader.with(t, interrupted, |r| match r.recv(t.left()) {
                Err(e) if e.is_end() => Ok(Err(e)),
                m => m.map(Ok),
            })
        })?;
        Ok(got.map(Message::from))
    }
}

#[pymethods]
impl Reader {
    /// The next message. timeout: seconds to wait for one; None: no limit; 0: does not wait. Raises Timeout; Closed when
    /// the topic was closed and everything was received, or the reader was closed, also by another thread meanwhile.
    ///
    /// >>> baton.topic().reader().receive(timeout=0)
    /// Traceback (most recent call last):
    /// baton.Timeout: ...
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        self.next(py, timeout)?.or_raise(py)
    }

    /// `receive` as a coroutine, which waits without a thread. timeout: seconds, as of `receive`.
    ///
    /// >>> async def first(r):
    /// ...     async for m in r:  # or await r.receive_async(timeout=5)
    /// ...         return m.value
    /// >>> t = baton.topic()
    /// >>> r = t.reader()
    /// >>> t.send("a")
    /// >>> asyncio.run(first(r))
    /// 'a'
    #[pyo3(signature = (timeout=None))]
    fn receive_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        seconds(slf.py(), timeout)?;
        coroutine(slf.py(), "receive", (slf, timeout))
    }

    /// The next message if there is one; None while another thread receives.
    fn _poll(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let m = wait(py, || self.reader.try_with(baton::Reader::try_recv))?;
        Ok(m.map(Message::from))
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
        following(slf, "receive_async").map(Some)
    }

    /// Leaves the topic, which stays open for others: threads and tasks that receive by the reader raise Closed.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.reader.close());
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        Ok(self.next(py, None)?.ok())
    }

    fn __repr__(&self) -> String {
        shown("Reader", &self.topic, self.session.is_ended() || self.reader.is_closed())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a reader belongs to its process: pickle the topic and open a reader of it there"))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}
