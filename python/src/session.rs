//! Sessions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton::{DType, QueueOptions, TopicOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::errors::{OrRaise, invalid};
use crate::handle::Handle;
use crate::name::{Bundle, Watch};
use crate::queue::Queue;
use crate::tensor::{Tensor, fill, natural, shape_of};
use crate::topic::Topic;
use crate::value::encode;
use crate::wait::{interrupted, timeout as seconds, wait};
use crate::{dtype, source};

/// A connection to the user's broker.
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Session {
    session: baton::Session,
}

/// Memory for a compact tensor, without the interpreter where the broker may have to grant it.
pub(crate) fn alloc(py: Python<'_>, s: &baton::Session, d: DType, shape: &[i64]) -> PyResult<baton::Tensor> {
    wait(py, || s.alloc_raw(d, shape).map(baton::TensorMut::freeze))
}

fn linger(py: Python<'_>, s: Option<f64>) -> PyResult<Option<Duration>> {
    match s {
        None => Ok(None),
        Some(s) => match seconds(py, Some(s))? {
            None => Err(invalid(py, "use seconds", format!("linger {s} is too long"))),
            t => Ok(t),
        },
    }
}

#[pymethods]
impl Session {
    /// Opens a session. address: the broker's socket; default $BATON_ADDRESS (then a broker is awaited,
    /// never started), else the user's broker, which is started unless start=False. Raises NoBroker.
    #[new]
    #[pyo3(signature = (address=None, namespace=None, start=true, timeout=Some(30.0), name=None))]
    fn new(
        py: Python<'_>,
        address: Option<String>,
        namespace: Option<String>,
        start: bool,
        timeout: Option<f64>,
        name: Option<String>,
    ) -> PyResult<Session> {
        const YEAR: Duration = Duration::from_secs(365 * 86_400);
        let mut b = baton::Session::builder().language("python").interrupted(interrupted).start(start);
        b = b.timeout(seconds(py, timeout)?.unwrap_or(YEAR));
        if let Some(a) = address {
            b = b.address(a);
        }
        if let Some(n) = namespace {
            b = b.namespace(n);
        }
        if let Some(n) = name {
            b = b.name(n);
        }
        Ok(Session { session: wait(py, || b.connect())? })
    }

    /// Where its names live.
    #[getter]
    fn namespace(&self) -> &str {
        self.session.namespace()
    }

    /// Whether it was closed, or belongs to the parent of a fork.
    #[getter]
    fn closed(&self) -> bool {
        self.session.is_ended()
    }

    /// A tensor to fill, aligned to 256 bytes; its content is whatever was there before.
    #[pyo3(signature = (shape, dtype=None))]
    fn empty(&self, py: Python<'_>, shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Tensor> {
        let d = dtype.map_or(Ok(DType::FLOAT32), dtype::parse)?;
        Ok(alloc(py, &self.session, d, &shape_of(shape)?)?.into())
    }

    /// A tensor of zeros.
    #[pyo3(signature = (shape, dtype=None))]
    fn zeros(&self, py: Python<'_>, shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Tensor> {
        let d = dtype.map_or(Ok(DType::FLOAT32), dtype::parse)?;
        let t = alloc(py, &self.session, d, &shape_of(shape)?)?;
        fill(py, &t, &[0])?;
        Ok(t.into())
    }

    /// A tensor of one value; without a dtype that of the value: bool, int64, float64, complex128.
    #[pyo3(signature = (shape, value, dtype=None))]
    fn full(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Tensor> {
        let d = dtype.map_or_else(|| Ok(natural(value)), dtype::parse)?;
        let element = dtype::pack(value, d)?;
        let t = alloc(py, &self.session, d, &shape_of(shape)?)?;
        fill(py, &t, &element)?;
        Ok(t.into())
    }

    /// Copies an array (anything with __dlpack__ or a buffer) once into shared memory. A tensor of
    /// Baton's is given back as it is; copy=True copies it, copy=False refuses what must be copied.
    #[pyo3(signature = (a, copy=None))]
    fn share(&self, py: Python<'_>, a: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Tensor> {
        if let Ok(t) = a.cast::<Tensor>() {
            let t = t.get().tensor(py)?;
            return Ok(if copy == Some(true) { crate::tensor::copied(py, &t)? } else { t }.into());
        }
        if copy == Some(false) {
            return Err(invalid(py, "leave copy out", "the array does not lie in shared memory"));
        }
        Ok(source::share(&self.session, a)?.into())
    }

    /// Opens or makes a topic. Each reader sees every message; the last `depth` of each sender are
    /// kept. overwrite=False: lossless. Options left out take what exists. Raises Conflict.
    #[pyo3(signature = (name=None, *, depth=None, overwrite=None, description=None, linger=None, create=true))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn topic(
        &self,
        py: Python<'_>,
        name: Option<&str>,
        depth: Option<u32>,
        overwrite: Option<bool>,
        description: Option<u32>,
        linger: Option<f64>,
        create: bool,
    ) -> PyResult<Topic> {
        let mut o = TopicOptions::default();
        o = depth.into_iter().fold(o, TopicOptions::depth);
        o = overwrite.into_iter().fold(o, TopicOptions::overwrite);
        o = description.into_iter().fold(o, TopicOptions::description);
        o = self::linger(py, linger)?.into_iter().fold(o, TopicOptions::linger);
        o = if create { o } else { o.must_exist() };
        let topic = wait(py, || self.session.topic_with(name.unwrap_or_default(), &o))?;
        Ok(Topic { topic, session: self.session.clone() })
    }

    /// Opens or makes a queue. At most `depth` items of each sender wait in it. redeliver=True: an item
    /// whose taker dies before releasing it goes to another. Raises Conflict.
    #[pyo3(signature = (name=None, *, depth=None, redeliver=None, description=None, linger=None, create=true))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn queue(
        &self,
        py: Python<'_>,
        name: Option<&str>,
        depth: Option<u32>,
        redeliver: Option<bool>,
        description: Option<u32>,
        linger: Option<f64>,
        create: bool,
    ) -> PyResult<Queue> {
        let mut o = QueueOptions::default();
        o = depth.into_iter().fold(o, QueueOptions::depth);
        o = redeliver.into_iter().fold(o, QueueOptions::redeliver);
        o = description.into_iter().fold(o, QueueOptions::description);
        o = self::linger(py, linger)?.into_iter().fold(o, QueueOptions::linger);
        o = if create { o } else { o.must_exist() };
        let queue = wait(py, || self.session.queue_with(name.unwrap_or_default(), &o))?;
        Ok(Queue { queue, session: self.session.clone() })
    }

    /// Another process's private topic, by its token.
    fn private_topic(&self, py: Python<'_>, token: &str) -> PyResult<Topic> {
        Ok(Topic { topic: wait(py, || self.session.private_topic(token))?, session: self.session.clone() })
    }

    /// Another process's private queue, by its token.
    fn private_queue(&self, py: Python<'_>, token: &str) -> PyResult<Queue> {
        Ok(Queue { queue: wait(py, || self.session.private_queue(token))?, session: self.session.clone() })
    }

    /// Publishes a revision of a name and returns its number. live=True: one bundle that everybody may
    /// write in place. ephemeral=True: deleted at the end of this session.
    #[pyo3(signature = (name, value, *, live=false, ephemeral=false))]
    fn set(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>, live: bool, ephemeral: bool) -> PyResult<u64> {
        if live && ephemeral {
            return Err(invalid(py, "leave one out", "a live name that is ephemeral"));
        }
        let p = encode(&self.session, value)?;
        wait(py, || match (live, ephemeral) {
            (true, _) => self.session.set_live(name, p),
            (_, true) => self.session.set_ephemeral(name, p),
            _ => self.session.set(name, p),
        })
    }

    /// The newest revision of a name. timeout: how long to wait for one, None for ever. Raises NotFound.
    #[pyo3(signature = (name, timeout=Some(0.0)))]
    fn get(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<Bundle> {
        let t = seconds(py, timeout)?;
        Ok(wait(py, || self.session.get(name, t))?.into())
    }

    /// Follows a name: the current revision at once, then always the newest.
    fn watch(&self, py: Python<'_>, name: &str) -> PyResult<Watch> {
        let w = wait(py, || self.session.watch(name))?;
        Ok(Watch { watch: Arc::new(Mutex::new(Some(w))) })
    }

    /// The names that are set; in a pattern * stands for any run of characters.
    #[pyo3(signature = (pattern=""))]
    fn names(&self, py: Python<'_>, pattern: &str) -> PyResult<Vec<String>> {
        wait(py, || self.session.names(pattern))
    }

    /// Removes a name; what was got of it stays. Raises NotFound.
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        wait(py, || self.session.delete(name))
    }

    /// The tensor of a handle (or of its JSON), writable where the handle is. Raises Expired,
    /// InvalidHandle.
    #[pyo3(signature = (handle, *, readonly=false))]
    fn open(&self, py: Python<'_>, handle: &Bound<'_, PyAny>, readonly: bool) -> PyResult<Tensor> {
        let t = match handle.cast::<Handle>() {
            Ok(h) => {
                let h = &h.get().0;
                wait(py, || self.session.open(h))?
            }
            Err(_) => {
                let h = baton::Handle::from_json(handle.cast::<PyString>()?.to_str()?).or_raise(py)?;
                wait(py, || self.session.open(&h))?
            }
        };
        Ok(if readonly { t.as_read_only() } else { t }.into())
    }

    /// What this session has: bytes granted, storages in use and ready for reuse, messages sent.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let s = self.session.stats();
        let d = PyDict::new(py);
        d.set_item("granted", s.pool.granted)?;
        d.set_item("live", s.pool.live)?;
        d.set_item("warm", s.pool.warm)?;
        d.set_item("recycled", s.pool.recycled)?;
        d.set_item("handovers", s.handovers)?;
        Ok(d)
    }

    /// Gives empty memory back to the broker; the bytes given back.
    fn collect(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.session.collect())
    }

    /// Ends the session. What was sent is still received; tensors of it mean nothing any more.
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
        format!("baton.Session(serial={}, namespace={:?})", self.session.serial(), self.session.namespace())
    }
}
