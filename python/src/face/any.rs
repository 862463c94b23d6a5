//! One wait for several readers, watches and queues.

use std::sync::Arc;

use baton::bindings::Closable;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::base::wait::{timeout as seconds, wait};
use crate::face::name::Watch;
use crate::face::queue::Queue;
use crate::face::topic::Reader;

/// What one of the objects has of the client.
enum Object {
    Reader(Arc<Closable<baton::Reader>>),
    Watch(Arc<Closable<baton::Watch>>),
    Queue(baton::Queue),
}

impl Object {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Object> {
        if let Ok(r) = object.cast::<Reader>() {
            return Ok(Object::Reader(r.get().reader.clone()));
        }
        if let Ok(w) = object.cast::<Watch>() {
            return Ok(Object::Watch(w.get().watch.clone()));
        }
        if let Ok(q) = object.cast::<Queue>() {
            return Ok(Object::Queue(q.get().queue.clone()));
        }
        let what = object.get_type().qualname()?;
        Err(PyTypeError::new_err(format!("wait_any waits for readers, watches and queues, not for {what}")))
    }
}

/// Waits until at least one of several readers, watches and queues is ready, and gives all that are, in their order: a
/// call with a timeout of 0 would give something, or raise that it was closed. An empty list: the time is over.
/// timeout: seconds to wait; None: no limit; 0: looks once. Raises InvalidArgument without objects.
///
/// It takes nothing: what is not taken is ready the next time too, and another taker may be faster.
///
/// >>> jobs, stop = baton.queue(), baton.topic().reader()
/// >>> baton.wait_any([stop, jobs], timeout=0)
/// []
/// >>> jobs.put({"x": np.arange(3)})
/// >>> [r.get(timeout=0)["x"].tolist() for r in baton.wait_any([stop, jobs])]
/// [[0, 1, 2]]
#[pyfunction]
#[pyo3(signature = (objects, timeout=None))]
pub(crate) fn wait_any<'py>(
    py: Python<'py>,
    objects: &Bound<'py, PyAny>,
    timeout: Option<f64>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let t = seconds(py, timeout)?;
    let given = objects.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    let objects = given.iter().map(Object::of).collect::<PyResult<Vec<_>>>()?;
    let ready = wait(py, move || {
        let mut each: Vec<Box<dyn baton::Waitable + '_>> = Vec::with_capacity(objects.len());
        for o in &objects {
            each.push(match o {
                Object::Reader(r) => Box::new(&**r),
                Object::Watch(w) => Box::new(&**w),
                Object::Queue(q) => Box::new(q),
            });
        }
        let mut all: Vec<&mut dyn baton::Waitable> = Vec::with_capacity(each.len());
        for o in &mut each {
            all.push(&mut **o);
        }
        baton::wait_any(&mut all, t)
    })?;
    Ok(ready.into_iter().map(|i| given[i].clone()).collect())
}
