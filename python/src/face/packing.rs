//! Values of torch's tensors in plain containers, taken apart for a message and put together again.
//!
//! What is taken apart is lists, tuples, dicts, also ordered ones, and torch's plain tensors in them; scalars stay as they are. A
//! tensor's place in what is left is an `Ellipsis`. Containers that stand in a value several times do so in the
//! result.
//!
//! The records begin with where the storages lie: u64 how many there are, and for each u64 piece, u64 offset, u64
//! bytes. A tensor's record, of little-endian numbers: u32 storage, u8 code, u8 bits, u16 lanes, u64 offset in bytes,
//! u64 dimensions, i64 for each extent, i64 for each stride in elements. One that stands in the value again has
//! `AGAIN` for its storage, and its first number among the tensors for its offset.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::Mutex;

use baton::dlpack::{DLTensor, device};
use baton::{DType, Dims};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyEllipsis, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::arrays::source::may_be_lazy;
use crate::arrays::tables::{borrow_to, table_for};
use crate::base::errors::{OrRaise, invalid};
use crate::face::storages::{Former, Whole, know, known, moved, tensors_over};
use crate::objects::tensor::Tensor;
use crate::value::{attributes, metadata, ordered_class};
use crate::views::view::strides_of;

/// In the place of a storage's number: the tensor stood in the value before.
const AGAIN: u32 = u32::MAX;

/// How deep containers are taken apart; pickle has its own bound.
const DEPTH: u32 = 64;

/// What a value consists of.
struct Parts<'py> {
    class: Bound<'py, PyType>,                     // torch.Tensor
    ordered: Bound<'py, PyType>,                   // OrderedDict, as state dicts are
    tensors: Vec<Bound<'py, PyAny>>,               // in their order, one that stands there again too
    containers: HashMap<usize, Bound<'py, PyAny>>, // by the address of the one that is copied
}

/// Copies what a state dict says beside its tensors, which has none; false where there is something else.
fn copy_metadata(from: &Bound<'_, PyAny>, to: &Bound<'_, PyAny>) -> PyResult<bool> {
    let own = attributes(from)?;
    let Some(about) = metadata(from)? else { return Ok(own.is_empty()) };
    to.setattr(intern!(from.py(), "_metadata"), about)?;
    Ok(own.len() == 1)
}

fn tensor_class(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(CLASS.import(py, "torch", "Tensor")?.clone())
}

impl<'py> Parts<'py> {
    /// What is left of a value; `None` where something else is in it.
    fn rest(&mut self, v: &Bound<'py, PyAny>, depth: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = v.py();
        if v.get_type().is(&self.class) {
            self.tensors.push(v.clone());
            return Ok(Some(PyEllipsis::get(py).to_owned().into_any()));
        }
        let scalar = v.is_none()
            || v.is_exact_instance_of::<PyString>()
            || v.is_exact_instance_of::<PyInt>()
            || v.is_exact_instance_of::<PyFloat>()
            || v.is_exact_instance_of::<PyBool>()
            || v.is_exact_instance_of::<PyBytes>();
        if scalar {
            return Ok(Some(v.clone()));
        }
        if depth == DEPTH {
            return Ok(None);
        }
        if let Some(done) = self.containers.get(&(v.as_ptr() as usize)) {
            return Ok(Some(done.clone()));
        }
        let ordered = v.get_type().is(&self.ordered);
        if ordered || v.is_exact_instance_of::<PyDict>() {
            let made = if ordered { self.ordered.call0()? } else { PyDict::new(py).into_any() };
            if ordered && !copy_metadata(v, &made)? {
                return Ok(None);
            }
            self.containers.insert(v.as_ptr() as usize, made.clone());
            for pair in v.cast::<PyDict>()?.items() {
                let (k, v): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair.extract()?;
                if !(k.is_exact_instance_of::<PyString>() || k.is_exact_instance_of::<PyInt>()) {
                    return Ok(None);
                }
                let Some(rest) = self.rest(&v, depth + 1)? else { return Ok(None) };
                made.set_item(k, rest)?;
            }
            return Ok(Some(made));
        }
        if let Ok(all) = v.cast_exact::<PyList>() {
            let made = PyList::empty(py);
            self.containers.insert(v.as_ptr() as usize, made.clone().into_any());
            for v in all {
                let Some(rest) = self.rest(&v, depth + 1)? else { return Ok(None) };
                made.append(rest)?;
            }
            return Ok(Some(made.into_any()));
        }
        if let Ok(all) = v.cast_exact::<PyTuple>() {
            let mut made = Vec::with_capacity(all.len());
            for v in all {
                let Some(rest) = self.rest(&v, depth + 1)? else { return Ok(None) };
                made.push(rest);
            }
            let made = PyTuple::new(py, made)?.into_any();
            self.containers.insert(v.as_ptr() as usize, made.clone());
            return Ok(Some(made));
        }
        Ok(None)
    }
}

/// What a value of plain containers leaves without its tensors; the pieces of shared memory in which they lie; where
/// in them, and the records of the tensors; and what `move_storages` says of former memory, and is told. None of another value,
/// which pickle takes whole.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "the parts of a message")]
pub(crate) fn take_apart<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    seen: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<(Bound<'py, PyAny>, Vec<Tensor>, Vec<u8>, Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>)>> {
    let mut parts = Parts {
        class: tensor_class(py)?,
        ordered: ordered_class(py)?,
        tensors: Vec::new(),
        containers: HashMap::new(),
    };
    let Some(rest) = parts.rest(value, 0)? else { return Ok(None) };
    let (mut storages, mut numbers, mut met) = (Vec::new(), HashMap::new(), HashMap::new());
    let mut records = Vec::with_capacity(48 * parts.tensors.len());
    for (k, t) in parts.tensors.iter().enumerate() {
        if let Some(first) = met.get(&(t.as_ptr() as usize)) {
            write_again(&mut records, *first);
            continue;
        }
        met.insert(t.as_ptr() as usize, k);
        let Some(view) = plain(t)? else { return Ok(None) };
        let storage = t.call_method0(intern!(py, "untyped_storage"))?;
        let key = storage.as_ptr() as usize; // as long as it lives, a storage has one object
        let number = match numbers.get(&key) {
            Some(n) => *n,
            None => {
                let Some(w) = Whole::of(storage)? else { return Ok(None) };
                storages.push(w);
                numbers.insert(key, storages.len() - 1);
                storages.len() - 1
            }
        };
        let Some(offset) = view.data.addr().checked_sub(storages[number].address()) else { return Ok(None) };
        Record::of(number, &view, offset as u64 + view.byte_offset).write(&mut records);
    }
    let Some((tensors, former)) = moved(py, &storages, seen.as_ref(), false)? else { return Ok(None) };
    let (all, mut places) = places_of(&tensors);
    places.extend(records);
    Ok(Some((rest, all.into_iter().map(Tensor::from).collect(), places, former)))
}

/// The tensor of torch's plain tensor that is all of its storage, in C's order, and what `move_storages` says of former
/// memory, and is told. None of another value.
#[pyfunction]
pub(crate) fn take_whole<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    seen: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<(Tensor, Vec<Former<'py>>)>> {
    let Some(view) = plain(value)? else { return Ok(None) };
    let Some(w) = Whole::of(value.call_method0(intern!(py, "untyped_storage"))?)? else { return Ok(None) };
    let r = Record::of(0, &view, view.byte_offset);
    if view.data.addr() != w.address() || !r.is_all_of(w.bytes()) {
        return Ok(None);
    }
    let Some((tensors, former)) = moved(py, &[w], seen.as_ref(), false)? else { return Ok(None) };
    let Some(t) = tensors.first() else { return Ok(None) };
    Ok(Some((r.view(t).or_raise(py)?.into(), former)))
}

/// Torch's tensor over all of one of Baton's, in the storage that this process has there, else in a new one.
#[pyfunction]
pub(crate) fn put_whole<'py>(py: Python<'py>, tensor: Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let t = tensor.get().tensor(py)?;
    if let Some(storage) = known(py, &t)? {
        let strides = strides_of(&t);
        let r = Record {
            storage: Some(0),
            dtype: t.dtype(),
            offset: 0,
            shape: t.shape().into(),
            strides: strides.into_iter().collect(),
        };
        return r.laid_over(py, &storage);
    }
    let made = tensors_over(py, std::slice::from_ref(&t))?.pop().ok_or_else(|| wrong(py))?;
    know(py, &made.call_method0(intern!(py, "untyped_storage"))?, &t)?;
    Ok(made)
}

/// The pieces of shared memory in which tensors of bytes lie, and where in them: how many tensors there are; of each
/// the number of its piece, where it begins, and how many bytes it has.
fn places_of(tensors: &[baton::Tensor]) -> (Vec<baton::Tensor>, Vec<u8>) {
    let (mut pieces, mut numbers) = (Vec::new(), HashMap::new());
    let mut places = Vec::with_capacity(8 + 24 * tensors.len());
    places.extend((tensors.len() as u64).to_le_bytes());
    for t in tensors {
        let Some((name, whole, offset)) = t.whole() else { continue }; // each has a byte
        let number = *numbers.entry(name).or_insert_with(|| {
            pieces.push(whole);
            pieces.len() as u64 - 1
        });
        [number, offset, t.num_bytes()].iter().for_each(|n| places.extend(n.to_le_bytes()));
    }
    (pieces, places)
}

/// The tensors of bytes that lie in pieces, and the records after that.
fn read_places<'a>(
    py: Python<'_>,
    pieces: &[baton::Tensor],
    from: &'a [u8],
) -> PyResult<(Vec<baton::Tensor>, &'a [u8])> {
    let (n, rest) = from.split_first_chunk().ok_or_else(|| wrong(py))?;
    let n = usize::try_from(u64::from_le_bytes(*n)).ok().and_then(|n| n.checked_mul(24)).ok_or_else(|| wrong(py))?;
    let (places, rest) = rest.split_at_checked(n).ok_or_else(|| wrong(py))?;
    let word = |b: &[u8; 24], at: usize| u64::from_le_bytes(std::array::from_fn(|i| b[8 * at + i]));
    let tensors = places.as_chunks::<24>().0.iter().map(|b| {
        let piece = usize::try_from(word(b, 0)).ok().and_then(|i| pieces.get(i)).ok_or_else(|| wrong(py))?;
        let n = i64::try_from(word(b, 2)).ok().filter(|n| *n > 0).ok_or_else(|| wrong(py))?;
        piece.as_strided(&[n], None, word(b, 1)).or_raise(py)
    });
    Ok((tensors.collect::<PyResult<Vec<_>>>()?, rest))
}

/// The view of a tensor of the machine's memory that is all of it: without a gradient, and as it is read.
fn plain(t: &Bound<'_, PyAny>) -> PyResult<Option<DLTensor>> {
    let py = t.py();
    if t.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
        return Ok(None);
    }
    let Some(table) = table_for(t)? else { return Ok(None) };
    let mut view = MaybeUninit::uninit();
    if !borrow_to(t, table, &mut view) {
        return Ok(None); // sparse, nested, quantized, or of an unknown device
    }
    // SAFETY: it was lent.
    let view: DLTensor = unsafe { view.assume_init() };
    if !is_told(py, t, view.dtype)? {
        return Ok(None);
    }
    let known = view.device.device_type == device::CPU && view.ndim >= 0 && !view.strides.is_null() | (view.ndim == 0);
    let lazy = |what| t.call_method0(what)?.is_truthy();
    if !known || may_be_lazy(&view) && (lazy(intern!(py, "is_conj"))? || lazy(intern!(py, "is_neg"))?) {
        return Ok(None);
    }
    Ok(Some(view))
}

/// Whether DLPack's type tells torch's. Torch's table gives the types of less than a byte as bytes, and some as several
/// elements in one, for which a record has no name.
fn is_told(py: Python<'_>, t: &Bound<'_, PyAny>, dtype: DType) -> PyResult<bool> {
    static INT8: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static UINT8: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let bytes = match dtype {
        DType::INT8 => INT8.import(py, "torch", "int8")?,
        DType::UINT8 => UINT8.import(py, "torch", "uint8")?,
        _ => return Ok(dtype.lanes == 1),
    };
    Ok(t.getattr(intern!(py, "dtype"))?.is(bytes))
}

fn write_again(out: &mut Vec<u8>, first: usize) {
    out.extend(AGAIN.to_le_bytes());
    out.extend([0; 4]);
    out.extend((first as u64).to_le_bytes());
    out.extend(0u64.to_le_bytes());
}

/// A tensor's record.
struct Record {
    /// Its number; of a tensor that stood in the value before, `None`, and the offset is that one's number.
    storage: Option<usize>,
    dtype: DType,
    offset: u64,
    shape: Dims,
    strides: Dims,
}

/// Reads the records of a message, all of which is unchecked data from another process.
fn read_records(py: Python<'_>, mut from: &[u8], storages: usize) -> PyResult<Vec<Record>> {
    let wrong = || wrong(py);
    let mut all = Vec::new();
    while !from.is_empty() {
        let (head, rest) = from.split_first_chunk::<24>().ok_or_else(wrong)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let n = usize::try_from(word(16)).ok().filter(|n| *n <= 64).ok_or_else(wrong)?;
        let (numbers, rest) = rest.split_at_checked(16 * n).ok_or_else(wrong)?;
        let mut numbers = numbers.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
        let shape = numbers.by_ref().take(n).collect();
        let r = Record {
            storage: Some(word(0) as u32).filter(|n| *n != AGAIN).map(|n| n as usize),
            dtype: DType { code: head[4], bits: head[5], lanes: u16::from_le_bytes([head[6], head[7]]) },
            offset: word(8),
            shape,
            strides: numbers.collect(),
        };
        if r.storage.is_some_and(|i| i >= storages) {
            return Err(wrong());
        }
        all.push(r);
        from = rest;
    }
    Ok(all)
}

/// Puts a value together: what `take_apart` has left of it, which is changed, the pieces, and the records.
#[pyfunction]
pub(crate) fn put_together<'py>(
    py: Python<'py>,
    rest: Bound<'py, PyAny>,
    pieces: Vec<Bound<'py, Tensor>>,
    records: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let pieces = pieces.iter().map(|t| t.get().tensor(py)).collect::<PyResult<Vec<_>>>()?;
    let (storages, records) = read_places(py, &pieces, records)?;
    let records = read_records(py, records, storages.len())?;
    let tensors = made(py, &storages, &records)?.into_iter();
    let (containers, kept) = (HashMap::new(), Vec::new());
    let mut whole = Assembly { tensors, containers, kept, ordered: ordered_class(py)? };
    let value = whole.value(rest, 0)?;
    match whole.tensors.next() {
        None => Ok(value),
        Some(_) => Err(wrong(py)),
    }
}

fn wrong(py: Python<'_>) -> PyErr {
    invalid(py, "update or restart its sender", "a message whose tensors are described wrongly")
}

/// What is put together.
struct Assembly<'py> {
    tensors: std::vec::IntoIter<Bound<'py, PyAny>>,
    containers: HashMap<usize, Bound<'py, PyAny>>, // what became of each, by its address
    kept: Vec<Bound<'py, PyAny>>,
    ordered: Bound<'py, PyType>,
}

impl<'py> Assembly<'py> {
    /// What becomes of a part; containers that can be changed are.
    fn value(&mut self, v: Bound<'py, PyAny>, depth: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = v.py();
        if v.is(PyEllipsis::get(py)) {
            return self.tensors.next().ok_or_else(|| wrong(py));
        }
        let is_dict = v.is_exact_instance_of::<PyDict>() || v.get_type().is(&self.ordered);
        let is_list = v.is_exact_instance_of::<PyList>();
        if !is_dict && !is_list && !v.is_exact_instance_of::<PyTuple>() {
            return Ok(v);
        }
        if let Some(done) = self.containers.get(&(v.as_ptr() as usize)) {
            return Ok(done.clone());
        }
        if depth > DEPTH {
            return Err(wrong(py));
        }
        if is_dict || is_list {
            self.containers.insert(v.as_ptr() as usize, v.clone());
        }
        if is_dict {
            for pair in v.cast::<PyDict>()?.items() {
                let (k, part): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair.extract()?;
                let before = part.as_ptr();
                let part = self.value(part, depth + 1)?;
                if part.as_ptr() != before {
                    v.set_item(k, part)?; // the key is there: the order stays
                }
            }
            return Ok(v);
        }
        if let Ok(all) = v.cast_exact::<PyList>() {
            for i in 0..all.len() {
                let part = self.value(all.get_item(i)?, depth + 1)?;
                all.set_item(i, part)?;
            }
            return Ok(v);
        }
        let all = v.cast_exact::<PyTuple>()?;
        let made = all.iter().map(|part| self.value(part, depth + 1)).collect::<PyResult<Vec<_>>>()?;
        let made = PyTuple::new(py, made)?.into_any();
        // The tuple is kept: another one at its address would be taken for it.
        self.kept.push(v.clone());
        self.containers.insert(v.as_ptr() as usize, made.clone());
        Ok(made)
    }
}

/// Torch's tensors of the records.
fn made<'py>(py: Python<'py>, storages: &[baton::Tensor], records: &[Record]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut over = storages.iter().map(|t| known(py, t)).collect::<PyResult<Vec<_>>>()?;
    // A tensor that is all of a storage brings the storage with it.
    let mut whole: Vec<Option<usize>> = vec![None; storages.len()];
    for (k, r) in records.iter().enumerate() {
        if let Some(i) = r.storage
            && over[i].is_none()
            && whole[i].is_none()
            && r.is_all_of(storages[i].num_bytes())
        {
            whole[i] = Some(k);
        }
    }
    let absent: Vec<usize> = (0..storages.len()).filter(|i| over[*i].is_none()).collect();
    let views = absent.iter().map(|&i| match whole[i] {
        Some(k) => records[k].view(&storages[i]).or_raise(py),
        None => Ok(storages[i].clone()),
    });
    let views = views.collect::<PyResult<Vec<_>>>()?;
    let mut brought: HashMap<usize, Bound<'py, PyAny>> = HashMap::new();
    for (&i, t) in absent.iter().zip(tensors_over(py, &views)?) {
        let storage = t.call_method0(intern!(py, "untyped_storage"))?;
        know(py, &storage, &storages[i])?;
        over[i] = Some(storage);
        if let Some(k) = whole[i] {
            brought.insert(k, t);
        }
    }
    let mut all: Vec<Bound<'py, PyAny>> = Vec::with_capacity(records.len());
    for (k, r) in records.iter().enumerate() {
        let t = match (r.storage, brought.remove(&k)) {
            (_, Some(t)) => t,
            (Some(i), None) => r.laid_over(py, over[i].as_ref().ok_or_else(|| wrong(py))?)?,
            (None, None) => {
                let earlier = usize::try_from(r.offset).ok().and_then(|k| all.get(k));
                earlier.ok_or_else(|| wrong(py))?.clone()
            }
        };
        all.push(t);
    }
    Ok(all)
}

impl Record {
    /// The record of a tensor at an offset in a storage.
    fn of(storage: usize, view: &DLTensor, offset: u64) -> Record {
        let n = view.ndim.max(0) as usize;
        // SAFETY: `ndim` numbers each, lent with the view.
        let [shape, strides] = [view.shape, view.strides]
            .map(|numbers| (0..n).map(|i| unsafe { numbers.add(i).read_unaligned() }).collect());
        Record { storage: Some(storage), dtype: view.dtype, offset, shape, strides }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.storage.map_or(AGAIN, |n| n as u32).to_le_bytes());
        out.extend([self.dtype.code, self.dtype.bits]);
        out.extend(self.dtype.lanes.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend((self.shape.len() as u64).to_le_bytes());
        self.shape.iter().chain(self.strides.iter()).for_each(|n| out.extend(n.to_le_bytes()));
    }

    /// Whether the tensor is all of a storage of so many bytes, in C's order.
    fn is_all_of(&self, storage: u64) -> bool {
        let mut step = 1i64;
        let packed = self.shape.iter().zip(self.strides.iter()).rev().all(|(n, by)| {
            let fits = *by == step || *n == 1;
            step = step.wrapping_mul(*n);
            fits
        });
        let bytes = self.dtype.num_bytes(&self.shape).ok();
        packed && self.offset == 0 && bytes == Some(storage)
    }

    /// The view of all of a storage.
    fn view(&self, storage: &baton::Tensor) -> baton::Result<baton::Tensor> {
        storage.view_as(self.dtype, &self.shape, None, 0)
    }

    /// A tensor over a storage of torch's, which checks that it lies in it.
    fn laid_over<'py>(&self, py: Python<'py>, storage: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (size, t) = empty(py, self.dtype)?;
        if size == 0 || !self.offset.is_multiple_of(size) {
            return Err(wrong(py));
        }
        let place =
            (storage, self.offset / size, PyTuple::new(py, self.shape.iter())?, PyTuple::new(py, self.strides.iter())?);
        t.call_method1(intern!(py, "set_"), place)
    }
}

/// Bytes of a type's element, and a tensor of torch's without elements.
fn empty<'py>(py: Python<'py>, dtype: DType) -> PyResult<(u64, Bound<'py, PyAny>)> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static OPTIONS: Mutex<Vec<(DType, u64, Py<PyDict>)>> = Mutex::new(Vec::new()); // by type, of which there are few
    let known = {
        let all = OPTIONS.lock().unwrap_or_else(|p| p.into_inner());
        all.iter().find(|(d, ..)| *d == dtype).map(|(_, size, options)| (*size, options.clone_ref(py)))
    };
    let (size, options) = match known {
        Some(known) => known,
        None => {
            let class = py.import("torch")?.getattr(dtype.to_string())?;
            let size: u64 = class.getattr("itemsize")?.extract()?;
            let options = PyDict::new(py);
            options.set_item("dtype", class)?;
            let made = (dtype, size, options.clone().unbind());
            OPTIONS.lock().unwrap_or_else(|p| p.into_inner()).push(made);
            (size, options.unbind())
        }
    };
    let function = EMPTY.import(py, "torch", "empty")?;
    Ok((size, function.call((0,), Some(options.bind(py)))?))
}
