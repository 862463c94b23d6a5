//! The class of bundles. Its methods stand in `face`.

use std::sync::{Arc, Mutex};

use baton::Code;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::base::errors::error;

/// Tensors under their paths, in their order: a mapping. `value` is the same with its structure.
///
/// >>> b = baton.share({"w": np.ones((2, 3)), "b": [np.zeros(3)]})
/// >>> b.keys(), len(b), "b/0" in b, b.get("v")
/// (['w', 'b/0'], 2, True, None)
/// >>> {path: x.shape for path, x in b.items()}, [x.size for x in b.values()]
/// ({'w': (2, 3), 'b/0': (3,)}, [6, 3])
/// >>> b.value["b"][0] is b["b/0"], b.revision, b.age, b.stale, b.live, b.meta
/// (False, 0, 0.0, False, False, None)
#[pyclass(frozen, mapping, module = "baton", weakref)]
pub(crate) struct Bundle {
    held: Mutex<Option<Arc<Held>>>,
    pub(crate) revision: u64,
    pub(crate) live: bool,
}

/// What a bundle holds until it is released.
pub(crate) struct Held {
    pub(crate) bundle: baton::Bundle,
    pub(crate) value: PyOnceLock<Py<PyAny>>,
}

impl From<baton::Bundle> for Bundle {
    fn from(bundle: baton::Bundle) -> Bundle {
        let (revision, live) = (bundle.revision(), bundle.is_live());
        Bundle { held: Mutex::new(Some(Arc::new(Held { bundle, value: PyOnceLock::new() }))), revision, live }
    }
}

impl Held {
    /// The tensor of a path. No path has half a surrogate pair.
    pub(crate) fn at(&self, path: &Bound<'_, PyString>) -> Option<&baton::Tensor> {
        self.bundle.get(path.to_str().ok()?)
    }
}

impl Bundle {
    pub(crate) fn held(&self, py: Python<'_>) -> PyResult<Arc<Held>> {
        let held = self.held.lock().unwrap_or_else(|p| p.into_inner()).clone();
        held.ok_or_else(|| error(py, Code::Closed, "take its tensors before", "the bundle was released"))
    }

    /// The client's bundle, all of whose tensors are kept as they are.
    pub(crate) fn taken(
        &self,
        keeps: impl Fn(&baton::Tensor) -> PyResult<bool>,
        py: Python<'_>,
    ) -> PyResult<Option<baton::Bundle>> {
        let b = self.held(py)?.bundle.clone();
        for (_, t) in b.iter() {
            if !keeps(t)? {
                return Ok(None);
            }
        }
        Ok(Some(b))
    }

    /// As `taken`, of one all of whose tensors can be handed over as they are.
    pub(crate) fn shared(&self, py: Python<'_>) -> PyResult<Option<baton::Bundle>> {
        self.taken(|t| Ok(t.is_shared()), py)
    }

    /// What it holds; None after release.
    pub(crate) fn now(&self) -> Option<Arc<Held>> {
        self.held.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Ends the object.
    pub(crate) fn let_go(&self) {
        let held = self.held.lock().unwrap_or_else(|p| p.into_inner()).take();
        drop(held); // outside of the lock
    }
}
