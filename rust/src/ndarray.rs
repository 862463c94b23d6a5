//! Tensors as arrays of the crate `ndarray`, and arrays copied into shared memory.

use ndarray::{Array, ArrayBase, ArrayD, ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Data, Dimension, IxDyn};
use ndarray::{ShapeBuilder, ShapeError, StrideShape};

use crate::dtype::{Element, last_index};
use crate::error::{Code, Error, Result, disagree};
use crate::session::Session;
use crate::tensor::{Tensor, TensorMut};

fn unfit(t: &Tensor, e: &ShapeError) -> Error {
    let what = format!("a tensor of {:?} with strides {:?} as an array: {e}", t.shape(), t.strides());
    Error::new(Code::InvalidArgument, "copy it with to_array", what)
}

/// The shape and strides of a tensor, and how many elements lie from its first to its last.
fn layout(t: &Tensor) -> Result<(StrideShape<IxDyn>, usize)> {
    let dims = |d: &[i64]| IxDyn(&d.iter().map(|n| *n as usize).collect::<Vec<_>>());
    if t.is_empty() {
        return Ok((dims(t.shape()).into(), 0));
    }
    let strides = t.full_strides();
    Ok((dims(t.shape()).strides(dims(&strides)), last_index(t.shape(), &strides)? as usize + 1))
}

impl Session {
    /// A tensor to fill, with the elements of an array of any layout copied in row-major order. Errors
    /// as for [`alloc`](Session::alloc).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let a = ndarray::array![[1f32, 2.0], [3.0, 4.0]];
    /// let x = session.from_array(&a.t())?.freeze();
    /// assert_eq!(x.to_array::<f32>()?, a.t().into_dyn());
    /// # Ok(()) }
    /// ```
    pub fn from_array<T, S, D>(&self, a: &ArrayBase<S, D>) -> Result<TensorMut<T>>
    where
        T: Element,
        S: Data<Elem = T>,
        D: Dimension,
    {
        let shape: Vec<i64> = a.shape().iter().map(|n| *n as i64).collect();
        let mut t = self.alloc::<T>(&shape)?;
        t.as_array_mut()?.assign(&a.view().into_dyn());
        Ok(t)
    }
}

impl<T: Element> TensorMut<T> {
    /// The elements as an array. `InvalidArgument` for bytes of another type ([`Allocation::raw`](crate::Allocation::raw)).
    pub fn as_array(&self) -> Result<ArrayViewD<'_, T>> {
        self.tensor().typed::<T>()?;
        let (shape, _) = layout(self.tensor())?;
        ArrayView::from_shape(shape, self).map_err(|e| unfit(self.tensor(), &e))
    }

    /// The elements as an array to be written. Errors as of [`as_array`](TensorMut::as_array).
    pub fn as_array_mut(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        self.tensor().typed::<T>()?;
        let (shape, _) = layout(self.tensor())?;
        let of = self.tensor().clone();
        ArrayViewMut::from_shape(shape, self).map_err(|e| unfit(&of, &e))
    }
}

impl Tensor {
    /// A copy of the elements as an array. Safe whatever others write meanwhile: then values may be
    /// torn. `InvalidArgument` when the type differs.
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        let shape: Vec<usize> = self.shape().iter().map(|n| *n as usize).collect();
        Array::from_shape_vec(IxDyn(&shape), self.to_vec()?).map_err(|e| disagree(e.to_string()).caused_by(e))
    }

    /// The elements in place as an array with the tensor's strides. `InvalidArgument` when the type
    /// differs.
    ///
    /// # Safety
    /// No code, in this or another process, writes the memory as long as the view lives; see
    /// [`as_slice`](Tensor::as_slice).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let mut x = session.alloc::<f32>(&[2, 2])?;
    /// x.as_array_mut()?.fill(1.0); // in shared memory
    /// assert_eq!(x.as_array()?.sum(), 4.0);
    /// let mut x = x.freeze();
    /// let mut all = unsafe { x.as_array_mut::<f32>()? }; // here nothing else looks at it
    /// all[[0, 1]] = 3.0;
    /// assert_eq!(unsafe { x.as_array::<f32>()? }.sum(), 6.0);
    /// # Ok(()) }
    /// ```
    pub unsafe fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.typed::<T>()?;
        let (shape, span) = layout(self)?;
        let at = self.address(false)?.cast::<T>();
        // SAFETY: the view was checked against its storage, which the tensor keeps mapped and counted,
        // and its offset is a multiple of T's size; the caller answers for aliasing.
        let all = unsafe { std::slice::from_raw_parts(at, span) };
        ArrayView::from_shape(shape, all).map_err(|e| unfit(self, &e))
    }

    /// The elements in place as an array to be written. `InvalidArgument` as well when two indices
    /// lead to one element; `ReadOnly`.
    ///
    /// # Safety
    /// No code, in this or another process, reads or writes the memory as long as the view lives.
    pub unsafe fn as_array_mut<T: Element>(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        self.typed::<T>()?;
        let (shape, span) = layout(self)?;
        let at = self.address(true)?.cast::<T>();
        // SAFETY: as in as_array; the mapping is writable.
        let all = unsafe { std::slice::from_raw_parts_mut(at, span) };
        ArrayViewMut::from_shape(shape, all).map_err(|e| unfit(self, &e))
    }
}
