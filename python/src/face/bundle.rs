//! The methods of bundles: several tensors under their paths.

use baton::{Code, Lease};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::base::cuda;
use crate::base::errors::error;
use crate::base::meta::meta_to_py;
use crate::base::place::{Place, place, reopen};
use crate::base::wait::wait;
use crate::objects::bundle::Bundle;
use crate::objects::tensor::Tensor;
use crate::value::{Take, encode_as, of_bundle};
use crate::views::torch::torch_all;

/// How many of a bundle's tensors its `repr` names.
const SHOWN: usize = 8;

/// What a pickle has of a bundle: handles, paths, tree, meta, revision, whether it is live, and where.
type Parts<'py> = (Vec<String>, Vec<String>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, u64, bool, Place);

impl Bundle {
    /// Each path with what is made of its tensor.
    fn mapped<'py>(
        &self,
        py: Python<'py>,
        each: impl Fn(&Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let d = PyDict::new(py);
        for (n, t) in self.held(py)?.bundle.iter() {
            d.set_item(n, each(&Tensor::object(py, t.clone())?)?)?;
        }
        Ok(d)
    }
}

#[pymethods]
impl Bundle {
    /// The tensors with the structure that was set or shared.
    #[getter]
    pub(crate) fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        of_bundle(py, self)
    }

    /// What was set along as meta; None when nothing was.
    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        meta_to_py(py, "a bundle", self.held(py)?.bundle.meta())
    }

    /// The number of the name's revision; 0 of a bundle that is not of a name.
    #[getter]
    fn revision(&self) -> u64 {
        self.revision
    }

    /// How many seconds ago the revision was set, also on another host; 0.0 of a bundle that is not of a name, or came
    /// from a pickle.
    #[getter]
    fn age(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.held(py)?.bundle.age().as_secs_f64())
    }

    /// Of a name of several hosts: whether the broker could not say, when it was taken, that it is the newest revision.
    #[getter]
    fn stale(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.held(py)?.bundle.is_stale())
    }

    /// Whether all sessions may write it in place, so that reads may tear.
    #[getter]
    fn live(&self) -> bool {
        self.live
    }

    /// The paths.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.held(py)?.bundle.iter().map(|(n, _)| n.to_owned()).collect())
    }

    /// The tensors.
    fn values(&self, py: Python<'_>) -> PyResult<Vec<Tensor>> {
        Ok(self.held(py)?.bundle.iter().map(|(_, t)| t.clone().into()).collect())
    }

    /// Paths and tensors.
    fn items(&self, py: Python<'_>) -> PyResult<Vec<(String, Tensor)>> {
        Ok(self.held(py)?.bundle.iter().map(|(n, t)| (n.to_owned(), t.clone().into())).collect())
    }

    /// The tensor of a path, else the default.
    #[pyo3(signature = (path, default=None))]
    fn get(&self, py: Python<'_>, path: &Bound<'_, PyString>, default: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        match self.held(py)?.at(path) {
            Some(t) => Ok(Tensor::object(py, t.clone())?.into_any().unbind()),
            None => Ok(default.unwrap_or_else(|| py.None())),
        }
    }

    /// NumPy arrays of the same memory, by path.
    ///
    /// >>> baton.share({"b": np.zeros(3)}).numpy()
    /// {'b': array([0., 0., 0.])}
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.mapped(py, Tensor::numpy)
    }

    /// torch tensors of the same memory, by path: fit for `load_state_dict`. What is written to those of a
    /// read-only bundle stays in this process; tied ones stay tied.
    ///
    /// >>> baton.share({"b": np.zeros(3)}).torch()
    /// {'b': tensor([0., 0., 0.], dtype=torch.float64)}
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let held = self.held(py)?;
        if held.bundle.iter().all(|(_, t)| !cuda::on_gpu(t))
            && let Ok(all) = torch_all(py, &held.bundle)
        {
            let d = PyDict::new(py);
            for ((path, _), t) in held.bundle.iter().zip(all) {
                d.set_item(path, t)?;
            }
            return Ok(d);
        }
        // One by one, which names a way out where torch has no such type.
        self.mapped(py, Tensor::torch)
    }

    /// JAX arrays of the same memory, by path.
    ///
    /// >>> baton.share({"b": np.zeros(3, "float32")}).jax()
    /// {'b': Array([0., 0., 0.], dtype=float32)}
    fn jax<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.mapped(py, Tensor::jax)
    }

    /// Releases this bundle. Tensors and arrays taken from it keep their memory.
    ///
    /// >>> with baton.share({"b": np.zeros(3)}) as b:  # released at its end
    /// ...     a = b["b"].numpy()
    /// >>> b.release()
    /// >>> a.tolist()
    /// [0.0, 0.0, 0.0]
    fn release(&self) {
        self.let_go();
    }

    /// Pickles the bytes; where the pickle carries arguments to a process of this machine, as
    /// multiprocessing's and loky's do, or within `baton.pickle_handles()`, handles.
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: i32) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._pickle")?.call_method1("reduce_bundle", (slf, protocol))
    }

    /// Paths, tree and meta, which with the tensors are all of a bundle that is no name's.
    fn _parts<'py>(&self, py: Python<'py>) -> PyResult<(Vec<String>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let b = &self.held(py)?.bundle;
        Ok((self.keys(py)?, PyBytes::new(py, b.tree()), PyBytes::new(py, b.meta())))
    }

    /// What a pickle has of handles. The tensors are kept until they are unpickled once, or until 30 s after
    /// this session ended.
    fn _hand_over<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Parts<'py>)> {
        let py = slf.py();
        let this = slf.get();
        let held = this.held(py)?;
        let bundle = match this.shared(py)? {
            Some(b) => b,
            None => {
                let Some((_, t)) = held.bundle.iter().next().map(|(n, t)| (n.to_owned(), t.clone())) else {
                    return Err(error(
                        py,
                        Code::Internal,
                        "report this with the broker's log, see docs/support.md",
                        "an empty bundle that is not shared",
                    ));
                };
                baton::Bundle::from(encode_as(&t.session(), slf.as_any(), Take::Reference)?)
            }
        };
        let handles = wait(py, || bundle.handles(Lease::Once))?.iter().map(baton::Handle::to_json).collect();
        let names = bundle.iter().map(|(n, _)| n.to_owned()).collect();
        let at = match bundle.first() {
            Some(t) => place(&t.session()),
            None => Place::default(),
        };
        let (tree, meta) = (PyBytes::new(py, bundle.tree()), PyBytes::new(py, held.bundle.meta()));
        Ok((reopen(py, "reopen_bundle")?, (handles, names, tree, meta, this.revision, this.live, at)))
    }

    /// A copy in memory of its own, as `copy.deepcopy` is to make.
    fn __deepcopy__<'py>(slf: &Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let Some(session) = slf.get().held(slf.py())?.bundle.first().map(baton::Tensor::session) else {
            return Ok(slf.clone());
        };
        Bound::new(slf.py(), Bundle::from(baton::Bundle::from(encode_as(&session, slf.as_any(), Take::Copy)?)))
    }

    /// The same memory, as `copy.copy` is to give it.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __getitem__(&self, py: Python<'_>, path: &Bound<'_, PyString>) -> PyResult<Tensor> {
        match self.held(py)?.at(path) {
            Some(t) => Ok(t.clone().into()),
            None => Err(PyKeyError::new_err(path.clone().unbind())),
        }
    }

    fn __contains__(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        let held = self.held(py)?;
        Ok(path.cast::<PyString>().is_ok_and(|p| held.at(p).is_some()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held(py)?.bundle.len())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyTuple::new(py, self.keys(py)?)?.try_iter()?.into_any())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.release();
    }

    /// The paths with types and shapes, as many as a line has room for, and the bytes of all.
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let Some(h) = self.now() else { return Ok("baton.Bundle(released)".to_owned()) };
        let some = h.bundle.iter().take(SHOWN).map(|(path, t)| {
            let (path, shape) = (PyString::new(py, path).repr()?, PyTuple::new(py, t.shape())?.repr()?);
            Ok(format!("{path}: {} {shape}", t.dtype()))
        });
        let mut shown = some.collect::<PyResult<Vec<_>>>()?;
        if h.bundle.len() > SHOWN {
            shown.push(format!("and {} more", h.bundle.len() - SHOWN));
        }
        let bytes: u64 = h.bundle.iter().map(|(_, t)| t.num_bytes()).sum();
        let revision = if self.revision > 0 { format!(", revision={}", self.revision) } else { String::new() };
        let live = if self.live { ", live" } else { "" };
        Ok(format!("baton.Bundle({{{}}}, {bytes} bytes{revision}{live})", shown.join(", ")))
    }
}
