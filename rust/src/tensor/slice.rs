//! Views of a tensor's memory: none copies, each is one more holder of the same storage.

use std::ops::{Bound, RangeBounds};

use super::Tensor;
use crate::error::{Code, Error, Result};

fn refused(t: &Tensor, remedy: &str, what: &str) -> Error {
    Error::new(Code::InvalidArgument, remedy, format!("{what} of {}{:?}", t.dtype(), t.shape()))
}

impl Tensor {
    fn extent(&self, dim: usize) -> Result<i64> {
        let none = || refused(self, "count dimensions from 0", &format!("dimension {dim}"));
        self.shape().get(dim).copied().ok_or_else(none)
    }

    /// The elements of a range of one dimension. `InvalidArgument` when it reaches past the extent, or
    /// when elements narrower than a byte would begin inside one.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.from_slice(&[2, 3], &[0, 1, 2, 3, 4, 5])?.freeze();
    /// assert_eq!(x.slice(1, 1..)?.to_vec::<i32>()?, [1, 2, 4, 5]);
    /// assert_eq!(x.select(0, 1)?.to_vec::<i32>()?, [3, 4, 5]);
    /// assert_eq!(x.transpose(0, 1)?.to_vec::<i32>()?, [0, 3, 1, 4, 2, 5]);
    /// assert_eq!(x.reshape(&[3, 2])?.shape(), [3, 2]);
    /// # Ok(()) }
    /// ```
    pub fn slice(&self, dim: usize, range: impl RangeBounds<i64>) -> Result<Tensor> {
        let extent = self.extent(dim)?;
        let from = match range.start_bound() {
            Bound::Included(n) => *n,
            Bound::Excluded(n) => n.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(n) => n.saturating_add(1),
            Bound::Excluded(n) => *n,
            Bound::Unbounded => extent,
        };
        if from < 0 || to < from || to > extent {
            return Err(refused(
                self,
                "stay inside the extent",
                &format!("elements {from} to {to} in dimension {dim}"),
            ));
        }
        let mut shape = self.shape().to_vec();
        shape[dim] = to - from;
        let strides = self.full_strides();
        // The first element of nothing may lie behind the storage.
        let at = if shape.contains(&0) { 0 } else { from * strides[dim] };
        self.as_strided(&shape, Some(&strides), at as u64)
    }

    /// The elements with one index of a dimension, which the view lacks. `InvalidArgument` as for
    /// [`slice`](Tensor::slice).
    pub fn select(&self, dim: usize, index: i64) -> Result<Tensor> {
        if !(0..self.extent(dim)?).contains(&index) {
            return Err(refused(self, "stay inside the extent", &format!("index {index} in dimension {dim}")));
        }
        let one = self.slice(dim, index..=index)?;
        let (mut shape, mut strides) = (one.shape().to_vec(), one.full_strides().to_vec());
        shape.remove(dim);
        strides.remove(dim);
        one.as_strided(&shape, Some(&strides), 0)
    }

    /// The view with two dimensions exchanged. `InvalidArgument` when there is no such dimension.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor> {
        self.extent(a)?;
        self.extent(b)?;
        let (mut shape, mut strides) = (self.shape().to_vec(), self.full_strides().to_vec());
        shape.swap(a, b);
        strides.swap(a, b);
        self.as_strided(&shape, Some(&strides), 0)
    }

    /// The same elements in another shape of as many. `InvalidArgument` when the number differs, or
    /// the elements are not contiguous.
    pub fn reshape(&self, shape: &[i64]) -> Result<Tensor> {
        if !self.is_contiguous() {
            return Err(refused(self, "copy it first", &format!("shape {shape:?} for a view with gaps")));
        }
        let bytes = self.dtype().num_bytes(shape)?;
        if shape.iter().product::<i64>() as usize != self.len() || bytes != self.num_bytes() {
            return Err(refused(self, "keep the number of elements", &format!("shape {shape:?}")));
        }
        self.as_strided(shape, None, 0)
    }
}
