//! The methods of sessions.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton::bindings::Closable;
use baton::{DType, Deadline, NameOptions, QueueOptions, TopicOptions};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::arrays::copies::{fill, natural};
use crate::arrays::room::{Room, alloc_room};
use crate::arrays::source::Source;
use crate::base::cuda;
use crate::base::dtype;
use crate::base::errors::{OrRaise, invalid, say_lost};
use crate::base::place::{Place, place, reopen};
use crate::base::shape::shape_of;
use crate::base::text::Text;
use crate::base::wait::{caller, interrupted, time, timeout as seconds, wait};
use crate::face::function;
use crate::face::name::Watch;
use crate::face::queue::Queue;
use crate::face::taking::{no_pages_there, taken};
use crate::face::topic::Topic;
use crate::objects::bundle::Bundle;
use crate::objects::default::open_default;
use crate::objects::handle::Handle;
use crate::objects::session::Session;
use crate::objects::tensor::Tensor;
use crate::value::{Take, encode_as, with_meta};

/// `Session.empty` of the default session. It is called for each batch, and costs as much again where
/// Python finds the session and names the arguments.
#[pyfunction]
pub(crate) fn empty(
    py: Python<'_>,
    shape: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    timeout: Option<f64>,
    pages: Option<Text<'_>>,
    device: Option<Text<'_>>,
) -> PyResult<Tensor> {
    let (session, timeout) = match open_default() {
        Some(s) => (s, timeout),
        None => {
            let within = py.import("baton._default")?.getattr("within")?.call1((timeout,))?;
            let (s, left) = within.extract::<(Bound<'_, Session>, Option<f64>)>()?;
            (s.get().session.clone(), left)
        }
    };
    Session { session }.empty(py, shape, dtype, timeout, pages, device)
}

fn linger(py: Python<'_>, s: Option<f64>) -> PyResult<Option<Duration>> {
    match s.map(|s| (s, time(s))) {
        None => Ok(None),
        Some((_, Some(Some(t)))) => Ok(Some(t)),
        Some((s, _)) => Err(invalid(py, "use seconds, at most 1e9", format!("linger of {s} seconds"))),
    }
}

/// The name as the client takes it, where an empty one is that of a private topic: here that is None.
fn or_private<'a>(py: Python<'_>, name: Option<&'a str>) -> PyResult<&'a str> {
    match name {
        Some("") => Err(invalid(py, "leave it out for a private one", "an empty name")),
        name => Ok(name.unwrap_or_default()),
    }
}

/// A number of an option, which has 32 bits.
fn count(py: Python<'_>, option: &str, n: Option<i64>) -> PyResult<Option<u32>> {
    match n.map(|n| (n, u32::try_from(n))) {
        None => Ok(None),
        Some((_, Ok(n))) => Ok(Some(n)),
        Some((n, Err(_))) => Err(invalid(py, "leave it out for the default", format!("{option} {n} is out of range"))),
    }
}

#[pymethods]
impl Session {
    /// Opens a session. address: the broker's socket; default $BATON_ADDRESS (then a broker is awaited,
    /// never started), else the user's broker, which is started unless start=False. namespace: where names live.
    /// timeout: seconds to wait for the broker; None: no limit. name: how listings show it. Raises NoBroker, Timeout of
    /// a broker that does not answer, VersionError, PermissionDenied, TooMany.
    #[new]
    #[pyo3(
        signature = (address=None, namespace=None, start=true, timeout=Some(30.0), name=None),
        text_signature = "(address=None, namespace=None, start=True, timeout=30.0, name=None)"
    )]
    fn new(
        py: Python<'_>,
        address: Option<Text<'_>>,
        namespace: Option<Text<'_>>,
        start: bool,
        timeout: Option<f64>,
        name: Option<Text<'_>>,
    ) -> PyResult<Session> {
        const YEAR: Duration = Duration::from_secs(365 * 86_400);
        let mut b = baton::Session::builder().language("python").interrupted(interrupted).place(caller).start(start);
        b = b.timeout(seconds(py, timeout)?.unwrap_or(YEAR));
        let named = address.is_some() || std::env::var_os("BATON_ADDRESS").is_some_and(|a| !a.is_empty());
        if let Some(a) = address {
            b = b.address(&*a);
        }
        // The look for the program takes longer than to connect: it is for a broker that may have to be started.
        if start
            && !named
            && let Some(p) = py.import("baton._find_baton")?.call_method0("find_baton")?.extract::<Option<PathBuf>>()?
        {
            b = b.binary(p);
        }
        if let Some(n) = namespace {
            b = b.namespace(&*n);
        }
        if let Some(n) = name {
            b = b.name(&*n);
        } else if std::env::var_os("BATON_NAME").is_none_or(|n| n.is_empty()) {
            b = b.name(py.import("baton._default")?.call_method0("program")?.extract::<String>()?);
        }
        Ok(Session { session: wait(py, || b.connect())? })
    }

    /// The broker's socket.
    #[getter]
    fn address(&self) -> &str {
        self.session.address()
    }

    /// The number by which listings name this session.
    #[getter]
    fn serial(&self) -> u64 {
        self.session.serial()
    }

    /// Where its names live.
    #[getter]
    fn namespace(&self) -> &str {
        self.session.namespace()
    }

    /// Whether it was closed, is lost, or came into this process by a fork that the C library did not make.
    #[getter]
    fn closed(&self) -> bool {
        self.session.is_ended()
    }

    /// Opens another session with the settings of this one, which stays as it is, for a program that goes on
    /// after SessionLost. Tensors of the old one can be read and copied. Errors as of `baton.connect`.
    /// >>> s = baton.connect()
    /// >>> s.reopen().serial == s.serial
    /// False
    fn reopen(&self, py: Python<'_>) -> PyResult<Session> {
        Ok(Session { session: wait(py, || self.session.reopen())? })
    }

    /// Raises SessionLost, unless a call has done so or the session is not lost.
    fn _say_lost(&self, py: Python<'_>) -> PyResult<()> {
        say_lost(py, &self.session)
    }

    /// Raises SessionLost if the session is lost, which the broker is asked.
    fn _check_lost(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, || self.session.check_lost())
    }

    /// A tensor to fill, aligned to 256 bytes; its content is whatever was there before. timeout: how
    /// many seconds to wait for memory if it is full, None for no limit. pages: "2M" or "1G", to lie in huge
    /// pages that the machine has reserved. Raises OutOfMemory, QuotaExceeded, InvalidArgument. device:
    /// "cuda:0" as this process counts, or "cuda:GPU-…"; raises Unsupported without a driver, NotFound for
    /// a GPU that is not there.
    #[pyo3(
        signature = (shape, dtype=None, *, timeout=Some(0.0), pages=None, device=None),
        text_signature = "($self, shape, dtype=None, *, timeout=0.0, pages=None, device=None)"
    )]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        pages: Option<Text<'_>>,
        device: Option<Text<'_>>,
    ) -> PyResult<Tensor> {
        let d = dtype.map_or(Ok(DType::FLOAT32), dtype::parse)?;
        let shape = shape_of(shape)?;
        Ok(match device.as_deref() {
            None => alloc_room(py, &self.session, d, &shape, Room::of(py, timeout, pages.as_deref())?)?,
            Some(on) => {
                no_pages_there(py, on, pages.as_deref())?;
                cuda::alloc_on(py, &self.session, on, d, &shape, seconds(py, timeout)?)?
            }
        }
        .into())
    }

    /// A tensor of zeros. Errors and timeout as of `empty`; on a GPU they are written by a stream, and not
    /// waited for.
    #[pyo3(
        signature = (shape, dtype=None, *, timeout=Some(0.0), pages=None, device=None, stream=None),
        text_signature = "($self, shape, dtype=None, *, timeout=0.0, pages=None, device=None, stream=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn zeros(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        pages: Option<Text<'_>>,
        device: Option<Text<'_>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Tensor> {
        let d = dtype.map_or(Ok(DType::FLOAT32), dtype::parse)?;
        let (shape, stream) = (shape_of(shape)?, cuda::stream_of(stream)?);
        if let Some(on) = device.as_deref() {
            no_pages_there(py, on, pages.as_deref())?;
            let timeout = seconds(py, timeout)?;
            return Ok(wait(py, || self.session.allocation(&shape).timeout(timeout).zeros_on(on, d, stream))?.into());
        }
        let room = Room::of(py, timeout, pages.as_deref())?;
        let t = alloc_room(py, &self.session, d, &shape, room)?;
        fill(py, &t, &[0])?;
        Ok(t.into())
    }

    /// A tensor of one value; without a dtype that of the value: bool, int64, float64, complex128.
    /// Errors, timeout, pages and device as of `zeros`.
    #[pyo3(
        signature = (shape, value, dtype=None, *, timeout=Some(0.0), pages=None, device=None, stream=None),
        text_signature = "($self, shape, value, dtype=None, *, timeout=0.0, pages=None, device=None, stream=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn full(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        pages: Option<Text<'_>>,
        device: Option<Text<'_>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Tensor> {
        let d = dtype.map_or_else(|| natural(value), dtype::parse)?;
        let element = dtype::pack(value, d)?;
        if let Some(on) = device.as_deref() {
            no_pages_there(py, on, pages.as_deref())?;
        }
        let room = Room::of(py, timeout, pages.as_deref())?;
        let until = Deadline::after(room.timeout);
        let t = alloc_room(py, &self.session, d, &shape_of(shape)?, room)?;
        fill(py, &t, &element)?;
        let stream = cuda::stream_of(stream)?;
        Ok(match device.as_deref() {
            Some(on) => wait(py, || t.to_device_within(on, stream, until.left()))?,
            None => t,
        }
        .into())
    }

    /// Copies an array (anything with __dlpack__ or a buffer) once into shared memory: a Tensor. Of a
    /// nested structure all arrays, into one storage: a Bundle. What lies in this session's
    /// already is referenced, a tensor of another session is copied; copy=True copies all, copy=False refuses what must
    /// be copied (InvalidArgument). Raises TypeError for what is no
    /// array, OutOfMemory. device: copies one array to that device, by a stream. An array on a GPU stays
    /// on it.
    #[pyo3(signature = (a, copy=None, *, device=None, stream=None))]
    fn share<'py>(
        &self,
        py: Python<'py>,
        a: &Bound<'py, PyAny>,
        copy: Option<bool>,
        device: Option<Text<'_>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(on) = device.as_deref() {
            let Some(s) = Source::of(a)? else {
                return Err(PyTypeError::new_err("share(device=…) takes one array"));
            };
            if copy == Some(false) {
                return Err(invalid(py, "leave copy=False or device out", "an array is to go to a device uncopied"));
            }
            let t = s.copied_on(py, &self.session, on, cuda::stream_of(stream)?)?;
            return Ok(Tensor::object(py, t)?.into_any());
        }
        let take = match copy {
            None => Take::Ours,
            Some(false) => Take::Shared,
            Some(true) => Take::Copy,
        };
        taken(&self.session, py, a, take)
    }

    /// Room for C-contiguous tensors like those of an array (a Tensor) or of a nested structure (a Bundle, in one
    /// storage), with whatever was there before. timeout, pages and errors as of `empty`.
    #[pyo3(signature = (a, *, timeout=Some(0.0), pages=None), text_signature = "($self, a, *, timeout=0.0, pages=None)")]
    fn empty_like<'py>(
        &self,
        py: Python<'py>,
        a: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        pages: Option<Text<'_>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        taken(&self.session, py, a, Take::Room(Room::of(py, timeout, pages.as_deref())?))
    }

    /// A bundle of tensors as they are; arrays in the value are copied into shared memory.
    fn bundle(&self, value: &Bound<'_, PyAny>) -> PyResult<Bundle> {
        Ok(baton::Bundle::from(encode_as(&self.session, value, Take::AsIs)?).into())
    }

    /// The tensor of a .npy, the bundle of a .npz or .safetensors: the file mapped, read-only.
    fn load<'py>(slf: &Bound<'py, Self>, path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._load")?.call_method1("load", (slf, path))
    }

    /// The bytes of a file as a read-only tensor of uint8: mapped and not read. Sending it copies it.
    /// A file that is cut short meanwhile ends its readers by SIGBUS: replace files by renaming.
    ///
    /// >>> baton.connect().map_file(os.__file__).dtype
    /// 'uint8'
    fn map_file(&self, py: Python<'_>, path: PathBuf) -> PyResult<Tensor> {
        Ok(self.session.map_file(path).or_raise(py)?.into())
    }

    /// Opens or makes a topic. Each reader sees every message; the last `depth` of each sender are
    /// kept. overwrite=False: lossless. Options left out take what exists. Options and errors are those of `baton.topic`.
    #[pyo3(signature = (name=None, *, depth=None, overwrite=None, description=None, linger=None, create=true))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn topic(
        &self,
        py: Python<'_>,
        name: Option<Text<'_>>,
        depth: Option<i64>,
        overwrite: Option<bool>,
        description: Option<i64>,
        linger: Option<f64>,
        create: bool,
    ) -> PyResult<Topic> {
        let name = or_private(py, name.as_deref())?;
        let mut o = TopicOptions::default();
        o = count(py, "depth", depth)?.into_iter().fold(o, TopicOptions::depth);
        o = overwrite.into_iter().fold(o, TopicOptions::overwrite);
        o = count(py, "description", description)?.into_iter().fold(o, TopicOptions::description);
        o = self::linger(py, linger)?.into_iter().fold(o, TopicOptions::linger);
        o = if create { o } else { o.must_exist() };
        let topic = wait(py, || self.session.topic_with(name, &o))?;
        Ok(Topic { topic, session: self.session.clone() })
    }

    /// Opens or makes a queue. At most `depth` items of each sender wait in it. redeliver=True: an item
    /// whose taker dies before releasing it goes to another. Options and errors are those of `baton.queue`.
    #[pyo3(signature = (name=None, *, depth=None, redeliver=None, description=None, linger=None, create=true))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn queue(
        &self,
        py: Python<'_>,
        name: Option<Text<'_>>,
        depth: Option<i64>,
        redeliver: Option<bool>,
        description: Option<i64>,
        linger: Option<f64>,
        create: bool,
    ) -> PyResult<Queue> {
        let name = or_private(py, name.as_deref())?;
        let mut o = QueueOptions::default();
        o = count(py, "depth", depth)?.into_iter().fold(o, QueueOptions::depth);
        o = redeliver.into_iter().fold(o, QueueOptions::redeliver);
        o = count(py, "description", description)?.into_iter().fold(o, QueueOptions::description);
        o = self::linger(py, linger)?.into_iter().fold(o, QueueOptions::linger);
        o = if create { o } else { o.must_exist() };
        let queue = wait(py, || self.session.queue_with(name, &o))?;
        Ok(Queue::new(queue, self.session.clone()))
    }

    /// Another process's private topic, by its token.
    fn _private_topic(&self, py: Python<'_>, token: Text<'_>) -> PyResult<Topic> {
        Ok(Topic { topic: wait(py, || self.session.private_topic(&token))?, session: self.session.clone() })
    }

    /// Another process's private queue, by its token.
    fn _private_queue(&self, py: Python<'_>, token: Text<'_>) -> PyResult<Queue> {
        Ok(Queue::new(wait(py, || self.session.private_queue(&token))?, self.session.clone()))
    }

    /// Publishes a revision of a name and returns its number. live=True: one bundle that every holder may
    /// write in place. ephemeral=True: deleted at the end of this session. meta: what JSON can hold, for
    /// the bundle's readers.
    #[pyo3(signature = (name, value, *, live=false, ephemeral=false, meta=None))]
    fn set(
        &self,
        py: Python<'_>,
        name: Text<'_>,
        value: &Bound<'_, PyAny>,
        live: bool,
        ephemeral: bool,
        meta: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let p = with_meta(&self.session, value, meta)?;
        let o = NameOptions::default().live(live).ephemeral(ephemeral);
        wait(py, || self.session.set_with(&name, p, &o))
    }

    /// The newest revision of a name. timeout: seconds to wait for one; None: no limit. Raises NotFound, InvalidArgument.
    #[pyo3(signature = (name, timeout=Some(0.0)), text_signature = "($self, name, timeout=0.0)")]
    fn get(&self, py: Python<'_>, name: Text<'_>, timeout: Option<f64>) -> PyResult<Bundle> {
        let t = seconds(py, timeout)?;
        Ok(wait(py, || self.session.get(&name, t))?.into())
    }

    /// Follows a name: the current revision at once, then always the newest.
    fn watch(&self, py: Python<'_>, name: Text<'_>) -> PyResult<Watch> {
        let w = wait(py, || self.session.watch(&name))?;
        let watch = Arc::new(Closable::new(w).or_raise(py)?);
        Ok(Watch { watch, session: self.session.clone(), name: name.to_owned() })
    }

    /// The names that are set; in a pattern * stands for any run of characters.
    #[pyo3(signature = (pattern=Text("")), text_signature = "($self, pattern='')")]
    fn names(&self, py: Python<'_>, pattern: Text<'_>) -> PyResult<Vec<String>> {
        wait(py, || self.session.names(&pattern))
    }

    /// Removes a name; what was got of it stays. Raises NotFound.
    fn delete(&self, py: Python<'_>, name: Text<'_>) -> PyResult<()> {
        wait(py, || self.session.delete(&name))
    }

    /// The tensor of a handle (or of its JSON), writable if the handle is. timeout: how many seconds the bytes of a
    /// handle of another host may take to be here; None: no limit. Raises Expired, InvalidHandle; for handles of
    /// other hosts also Unreachable, HostLost, Unsupported, OutOfMemory.
    #[pyo3(
        signature = (handle, readonly=false, timeout=Some(30.0)),
        text_signature = "($self, handle, readonly=False, timeout=30.0)"
    )]
    fn open(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        readonly: bool,
        timeout: Option<f64>,
    ) -> PyResult<Tensor> {
        let time = seconds(py, timeout)?.unwrap_or(Duration::MAX);
        let t = match handle.cast::<Handle>() {
            Ok(h) => {
                let h = &h.get().0;
                wait(py, || self.session.open_within(h, time))?
            }
            Err(_) => {
                let h = baton::Handle::from_json(&handle.cast::<PyString>()?.to_string_lossy()).or_raise(py)?;
                wait(py, || self.session.open_within(&h, time))?
            }
        };
        Ok(if readonly { t.to_read_only() } else { t }.into())
    }

    /// Calls a function and waits for what it returns. All keywords are the function's. Errors as of `baton.call`.
    #[pyo3(signature = (function_name, /, *args, **named))]
    fn call<'py>(
        &self,
        function_name: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let name: Text<'_> =
            function_name.extract().map_err(|e: PyErr| match function_name.is_instance_of::<PyString>() {
                true => e,
                false => {
                    PyTypeError::new_err(format!("function_name is a str, and {} is given", function_name.get_type()))
                }
            })?;
        function::call(&self.session, &name, args, named)
    }

    /// A function that processes provide, to be called. wait: how many seconds to wait for it, and for a provider.
    /// Raises NotFound, NoProvider.
    #[pyo3(signature = (name, *, version=None, wait=None))]
    fn get_function<'py>(
        slf: &Bound<'py, Self>,
        name: Text<'py>,
        version: Option<Text<'py>>,
        wait: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        function::by_python(slf.py(), "get", (slf, &*name, version.as_deref(), wait))
    }

    /// The functions that are registered; in the pattern * stands for any run of characters.
    #[pyo3(signature = (pattern=Text("")), text_signature = "($self, pattern='')")]
    fn functions<'py>(slf: &Bound<'py, Self>, pattern: Text<'py>) -> PyResult<Bound<'py, PyAny>> {
        function::by_python(slf.py(), "listed", (slf, &*pattern))
    }

    /// The functions under a name as attributes.
    fn bind<'py>(slf: &Bound<'py, Self>, prefix: Text<'py>) -> PyResult<Bound<'py, PyAny>> {
        function::by_python(slf.py(), "Namespace", (&*prefix, slf))
    }

    /// Provides functions in this session, in threads, until what it returns is closed. functions: names or functions,
    /// default all that `baton.function` has named and this session does not provide yet. Raises Conflict, PermissionDenied.
    #[pyo3(signature = (*functions))]
    fn start_functions<'py>(slf: &Bound<'py, Self>, functions: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        function::by_python(slf.py(), "start", (slf, functions))
    }

    /// As `start_functions`, until the process is interrupted, or none is provided any more. Raises SessionLost.
    #[pyo3(signature = (*functions))]
    fn serve_functions<'py>(slf: &Bound<'py, Self>, functions: &Bound<'py, PyTuple>) -> PyResult<()> {
        function::by_python(slf.py(), "serve", (slf, functions)).map(drop)
    }

    /// Has this session provide a function no more; everywhere=True: all sessions. How many providers ended. Raises
    /// NotFound, PermissionDenied.
    #[pyo3(signature = (name, *, version=None, everywhere=false))]
    fn remove_function<'py>(
        slf: &Bound<'py, Self>,
        name: Text<'py>,
        version: Option<Text<'py>>,
        everywhere: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        function::by_python(slf.py(), "remove", (slf, &*name, version.as_deref(), everywhere))
    }

    /// What this session has and did, in numbers: granted, live, warm, recycled, handovers; and, if the broker answers
    /// within a second, of pickles of all its sessions: pickles_unread, pickles_oldest, pickles_may_go,
    /// pickles_given_up. `baton.stats` says what each is.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let s = self.session.stats();
        let d = PyDict::new(py);
        d.set_item("granted", s.pool.granted)?;
        d.set_item("live", s.pool.live)?;
        d.set_item("warm", s.pool.warm)?;
        d.set_item("recycled", s.pool.recycled)?;
        d.set_item("handovers", s.handovers)?;
        if let Some(u) = py.detach(|| self.session.unread_pickles()) {
            d.set_item("pickles_unread", u.waiting)?;
            d.set_item("pickles_oldest", u.oldest.as_secs())?;
            d.set_item("pickles_may_go", u.may_go)?;
            d.set_item("pickles_given_up", u.given_up)?;
        }
        Ok(d)
    }

    /// Gives empty memory back to the broker; the bytes given back.
    ///
    /// >>> s = baton.connect()
    /// >>> s.empty(1000).release()
    /// >>> s.collect(), s.stats()["granted"]
    /// (4194304, 0)
    fn collect(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.session.collect())
    }

    /// Pickles what opens a session with the same broker and namespace in another process.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Place)> {
        Ok((reopen(py, "session_at")?, place(&self.session)))
    }

    /// Ends the session; tensors keep their bytes until they are dropped. Threads that wait in it raise Closed. It takes
    /// two seconds at most while no broker answers.
    ///
    /// >>> s = baton.connect()
    /// >>> s.close()
    /// >>> s.topic("t")
    /// Traceback (most recent call last):
    /// baton.Closed: ...
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.session.end());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.session.is_ended() { ", closed" } else { "" };
        format!("baton.Session(serial={}, namespace={:?}{closed})", self.session.serial(), self.session.namespace())
    }
}
