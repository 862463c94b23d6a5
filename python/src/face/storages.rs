//! Torch's storages: which lie in shared memory, how those get there that do not, and which this process has over
//! bytes that come.
//!
//! A storage moves in place: torch exchanges the memory under it, and all tensors that are views of it follow.

use std::collections::HashMap;
use std::sync::Mutex;

use baton::{DType, Session, Stream};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyWeakrefMethods, PyWeakrefReference};

use crate::arrays::room::{AT_ONCE, alloc};
use crate::arrays::source::Source;
use crate::base::errors::{OrRaise, invalid};
use crate::objects::default::{default, open_default};
use crate::objects::tensor::Tensor;
use crate::views::torch::torch_all;

/// Storages shorter than this move together, into one piece of shared memory.
const SMALL: i64 = 1 << 16;
/// Where storages that lie side by side begin: on cache lines of their own.
const APART: i64 = 64;

/// A storage in the machine's memory, of at least a byte.
pub(crate) struct Whole<'py> {
    storage: Bound<'py, PyAny>,
    bytes: Source,
    at: usize,
    n: i64,
    /// Whether torch's allocator made its memory, and nothing but torch's tensors looks there. NumPy's arrays, and
    /// what torch took by DLPack, make a storage one that keeps its size.
    torchs_alone: bool,
}

impl<'py> Whole<'py> {
    /// `None` of one without a byte.
    pub(crate) fn of(storage: Bound<'py, PyAny>) -> PyResult<Option<Whole<'py>>> {
        let py = storage.py();
        let n: i64 = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
        if n == 0 {
            return Ok(None);
        }
        let at: usize = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let torchs_alone = storage.call_method0(intern!(py, "resizable"))?.extract()?;
        // SAFETY: torch says where the bytes lie, which the storage keeps.
        let bytes = unsafe { Source::of_bytes(&storage, std::ptr::with_exposed_provenance_mut(at), n) };
        Ok(Some(Whole { storage, bytes, at, n, torchs_alone }))
    }

    fn must(storage: Bound<'py, PyAny>) -> PyResult<Whole<'py>> {
        let py = storage.py();
        Whole::of(storage)?.ok_or_else(|| invalid(py, "leave it out", "an empty storage has no address"))
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.n as u64
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> usize {
        self.at
    }

    /// Whether torch has made a file of its own of it, which other processes may have mapped: it stays there.
    fn is_in_a_file_of_torchs(&self) -> PyResult<bool> {
        if self.torchs_alone {
            return Ok(false);
        }
        static STORAGE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = self.storage.py();
        let class = STORAGE.get_or_try_init(py, || -> PyResult<_> {
            Ok(py.import("torch")?.getattr("_C")?.getattr("StorageBase")?.unbind())
        })?;
        class.bind(py).call_method1(intern!(py, "is_shared"), (&self.storage,))?.extract()
    }

    fn is_short(&self) -> bool {
        self.n < SMALL
    }

    /// The tensor of its bytes where they lie in shared memory.
    pub(crate) fn in_place(&self, session: &Session) -> PyResult<Option<baton::Tensor>> {
        if self.torchs_alone { Ok(None) } else { self.bytes.in_place(self.storage.py(), session) }
    }
}

/// The tensor of a storage's bytes where they lie in shared memory that this process holds.
#[pyfunction]
pub(crate) fn storage_in_place(_py: Python<'_>, storage: Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    let whole = Whole::must(storage)?;
    // Without a session nothing of this process lies there, and none is opened for the look.
    let Some(session) = open_default() else { return Ok(None) };
    Ok(whole.in_place(&session)?.map(Tensor::from))
}

/// The storages over tensors of bytes, one over each: those that this process has, else new ones.
#[pyfunction]
pub(crate) fn storages_over<'py>(
    py: Python<'py>,
    tensors: Vec<Bound<'py, Tensor>>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let tensors = tensors.iter().map(|t| t.get().tensor(py)).collect::<PyResult<Vec<_>>>()?;
    let one = |t: &baton::Tensor| match known(py, t)? {
        Some(s) => Ok(s),
        None => {
            let made = over(py, std::slice::from_ref(t))?.pop();
            let made = made.ok_or_else(|| {
                invalid(py, "report this with the broker's log, see docs/support.md", "torch made no tensor")
            })?;
            know(py, &made, t)?;
            Ok(made)
        }
    };
    tensors.iter().map(one).collect()
}

/// New storages over tensors of bytes.
fn over<'py>(py: Python<'py>, tensors: &[baton::Tensor]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let all = tensors_over(py, tensors)?;
    all.iter().map(|t| t.call_method0(intern!(py, "untyped_storage"))).collect()
}

/// Torch's tensors of the same elements, each with a storage of its own.
pub(crate) fn tensors_over<'py>(py: Python<'py>, tensors: &[baton::Tensor]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    torch_all(py, tensors)
}

/// A storage, and one that has what was its memory.
pub(crate) type Former<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Moves storages into shared memory unless they lie there. The tensors of their bytes, in their order; and with
/// each storage that moved, and whose memory others than torch may see, one that has that memory. seen: a set of
/// storages of which others have a view, beside those that torch knows of. anyway: also what lies in a file of torch's.
#[pyfunction]
pub(crate) fn move_storages<'py>(
    py: Python<'py>,
    storages: &Bound<'py, PyList>,
    seen: Option<Bound<'py, PyAny>>,
    anyway: bool,
) -> PyResult<(Vec<Tensor>, Vec<Former<'py>>)> {
    let all = storages.iter().map(Whole::must).collect::<PyResult<Vec<_>>>()?;
    let remedy = "share it as torch does";
    let moved = moved(py, &all, seen.as_ref(), anyway)?
        .ok_or_else(|| invalid(py, remedy, "a storage lies in a file of torch's"))?;
    Ok((moved.0.into_iter().map(Tensor::from).collect(), moved.1))
}

/// The tensors of storages' bytes, and what was their memory.
type Moved<'py> = (Vec<baton::Tensor>, Vec<Former<'py>>);

/// As `move_storages`; `None`, and nothing is moved, where one lies in a file of torch's. Without a storage no session
/// is needed.
pub(crate) fn moved<'py>(
    py: Python<'py>,
    all: &[Whole<'py>],
    seen: Option<&Bound<'py, PyAny>>,
    anyway: bool,
) -> PyResult<Option<Moved<'py>>> {
    if all.is_empty() {
        return Ok(Some((Vec::new(), Vec::new())));
    }
    let session = default(py)?;
    let lying = all.iter().map(|w| w.in_place(&session)).collect::<PyResult<Vec<_>>>()?;
    let absent: Vec<&Whole<'py>> = all.iter().zip(&lying).filter(|(_, t)| t.is_none()).map(|(w, _)| w).collect();
    for w in &absent {
        if !anyway && w.is_in_a_file_of_torchs()? {
            return Ok(None);
        }
    }
    let made = rooms(py, &session, &absent)?;
    for (w, t) in absent.iter().zip(&made) {
        w.bytes.copy_to(py, t, Stream::LEGACY)?;
    }
    let mut former = Vec::new();
    for ((w, t), new) in absent.iter().zip(&made).zip(over(py, &made)?) {
        w.storage.call_method1(intern!(py, "_swap_data_ptr_"), (&new,))?;
        know(py, &w.storage, t)?;
        if !w.torchs_alone || seen.map_or(Ok(false), |s| s.contains(&w.storage))? {
            former.push((w.storage.clone(), new));
        }
    }
    let mut made = made.into_iter();
    Ok(Some((lying.into_iter().filter_map(|t| t.or_else(|| made.next())).collect(), former)))
}

/// Room for each storage.
fn rooms(py: Python<'_>, session: &Session, all: &[&Whole<'_>]) -> PyResult<Vec<baton::Tensor>> {
    let room = |n: i64| alloc(py, session, DType::UINT8, &[n], AT_ONCE);
    let taken = |w: &Whole<'_>| (w.n + APART - 1) / APART * APART;
    let short: i64 = all.iter().filter(|w| w.is_short()).map(|w| taken(w)).sum();
    let shared = if short > 0 { Some(room(short)?) } else { None };
    let mut at = 0;
    let each = all.iter().map(|w| match &shared {
        Some(shared) if w.is_short() => {
            let begin = at;
            at += taken(w);
            shared.as_strided(&[w.n], None, begin as u64).or_raise(py)
        }
        _ => room(w.n),
    });
    each.collect()
}

/// The storages over shared memory, by address and bytes: while one lives, its bytes are no other's.
static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

#[derive(Default)]
struct Known {
    storages: HashMap<(usize, u64), Py<PyWeakrefReference>>,
    /// How many there are when those that have ended are forgotten.
    limit: usize,
}

/// Where a tensor's bytes are, and how many.
fn place_of(py: Python<'_>, t: &baton::Tensor) -> PyResult<(usize, u64)> {
    Ok((t.as_ptr().or_raise(py)?.expose_provenance(), t.num_bytes()))
}

/// The storage that this process has over a tensor's bytes.
pub(crate) fn known<'py>(py: Python<'py>, t: &baton::Tensor) -> PyResult<Option<Bound<'py, PyAny>>> {
    let key = place_of(py, t)?;
    let found = {
        let mut all = KNOWN.lock().unwrap_or_else(|p| p.into_inner());
        all.get_or_insert_default().storages.get(&key).map(|r| r.clone_ref(py))
    };
    let Some(storage) = found.and_then(|r| r.bind(py).upgrade()) else { return Ok(None) };
    // Torch may have given it other memory.
    let lies_there = storage.call_method0(intern!(py, "data_ptr"))?.extract::<usize>()? == key.0;
    Ok(lies_there.then_some(storage))
}

/// Notes which storage is over a tensor's bytes.
pub(crate) fn know(py: Python<'_>, storage: &Bound<'_, PyAny>, t: &baton::Tensor) -> PyResult<()> {
    let place = place_of(py, t)?;
    let made = PyWeakrefReference::new(storage)?.unbind();
    let mut all = KNOWN.lock().unwrap_or_else(|p| p.into_inner());
    let all = all.get_or_insert_default();
    let before = all.storages.insert(place, made);
    let mut ended = Vec::new(); // dropped after the loop: it is no moment for ends of objects
    if all.storages.len() > all.limit.max(128) {
        ended.extend(all.storages.extract_if(|_, r| r.bind(py).upgrade().is_none()));
        all.limit = 2 * all.storages.len();
    }
    drop((before, ended));
    Ok(())
}
