//! Copies of what lies in shared memory.

use std::alloc::{Layout, alloc_zeroed};

use super::Tensor;
use crate::dtype::Element;
use crate::error::{Code, Error, Result};
use crate::holding::Place;
use crate::shm::racing::copy_out;
use crate::sys;

/// From here on it is looked whether there is so much memory before it is taken: the kernel grants more
/// than there is, and ends a process that uses it.
const MUCH: usize = 64 << 20;

impl Tensor {
    /// Copies the elements out, in row-major order. Safe whatever others write meanwhile: then values
    /// may be torn. `InvalidArgument` when the type differs; `OutOfMemory` when there is no room for
    /// them, since a view may repeat a few elements as often as its maker says.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.from_slice(&[2, 3], &[0u8, 1, 2, 3, 4, 5])?.freeze();
    /// let column = x.as_strided(&[2], Some(&[3]), 1)?;
    /// assert_eq!(column.to_vec::<u8>()?, [1, 4]);
    /// # Ok(()) }
    /// ```
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.typed::<T>()?;
        self.held.check()?;
        let mut out = zeros(self.len())?;
        if self.is_contiguous() {
            self.read(0, bytes_of(&mut out))?;
            return Ok(out);
        }
        let strides = self.full_strides();
        let mut index = vec![0i64; self.shape().len()];
        for element in &mut out {
            let at: i64 = index.iter().zip(strides.iter()).map(|(i, s)| i * s).sum(); // checked when it was made
            self.read(at as u64 * size_of::<T>() as u64, bytes_of(std::slice::from_mut(element)))?;
            if let Some(d) = (0..index.len()).rev().find(|d| index[*d] + 1 < self.shape()[*d]) {
                index[d] += 1;
                index[d + 1..].fill(0);
            }
        }
        Ok(out)
    }

    /// The bits of the first element, which has 16.
    pub(crate) fn first_bits(&self) -> Result<u16> {
        self.held.check()?;
        let mut bits = [0; 2];
        self.read(0, &mut bits)?;
        Ok(u16::from_le_bytes(bits))
    }

    /// Copies bytes out, `at` bytes behind the first element's first; they are the view's.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        match (&self.view().place, self.storage()) {
            (_, Some(h)) => match h.at.segment.mapped(false) {
                Some(r) => r.read_bytes(h.offset + self.view().offset + at, into),
                None => {
                    self.held.segment(h, false)?.region(false)?.read_bytes(h.offset + self.view().offset + at, into)
                }
            },
            // SAFETY: the view was checked to lie inside the mapping.
            (Place::File(f), _) => unsafe {
                let from = f.address().add((self.view().offset + at) as usize);
                copy_out(from, into.as_mut_ptr(), into.len());
            },
            _ => {}
        }
        Ok(())
    }
}

/// Zeros, as many as another process may have said.
fn zeros<T: Element>(n: usize) -> Result<Vec<T>> {
    let full = || {
        let what = format!("no room for a copy of {n} elements of {}", T::DTYPE);
        Error::new(Code::OutOfMemory, "copy parts of the tensor, by slice or select", what)
    };
    let layout = Layout::array::<T>(n).map_err(|_| full())?;
    if n == 0 {
        return Ok(Vec::new());
    }
    if layout.size() >= MUCH && sys::free_memory().is_some_and(|free| layout.size() as u64 > free) {
        return Err(full());
    }
    // SAFETY: the layout has a size above 0.
    let at = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if at.is_null() {
        return Err(full());
    }
    // SAFETY: the global allocator gave room for n elements of the alignment of T; zero is one.
    Ok(unsafe { Vec::from_raw_parts(at, n, n) })
}

/// Plain numbers as bytes.
fn bytes_of<T: Element>(all: &mut [T]) -> &mut [u8] {
    // SAFETY: an Element has no padding, and every bit pattern is one.
    unsafe { std::slice::from_raw_parts_mut(all.as_mut_ptr().cast(), size_of_val(all)) }
}
