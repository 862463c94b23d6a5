//! Tensors in huge pages.

use std::time::Duration;

use super::Session;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::memory::HugePages;
use crate::tensor::{Tensor, TensorMut};

impl Session {
    /// A tensor to fill in huge pages, of those that the machine has reserved; where too few are free
    /// it waits as [`alloc_within`](Session::alloc_within) does. Whole pages are taken from the machine
    /// at a time, and shared by small tensors. Errors: those of [`alloc`](Session::alloc);
    /// `Unsupported` where the kernel has none of the size, or memory lies in files.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::{Code, HugePages};
    ///
    /// match session.alloc_huge::<f32>(HugePages::MiB2, &[1024, 1024], std::time::Duration::ZERO) {
    ///     Ok(mut x) => x.fill(1.0),
    ///     Err(e) if e.code() == Code::OutOfMemory => println!("{e}"), // it says how to reserve them
    ///     Err(e) => return Err(e),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn alloc_huge<T: Element>(
        &self,
        pages: HugePages,
        shape: &[i64],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<TensorMut<T>> {
        TensorMut::new(self.alloc_huge_dtype(pages, T::DTYPE, shape, timeout.into())?)
    }

    /// As [`alloc_huge`](Session::alloc_huge), for types that Rust has no type for.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::{Code, DType, HugePages};
    ///
    /// match session.alloc_huge_raw(HugePages::MiB2, DType::BFLOAT16, &[1024], std::time::Duration::ZERO) {
    ///     Ok(x) => assert_eq!(x.freeze().dtype(), DType::BFLOAT16),
    ///     Err(e) => assert!(matches!(e.code(), Code::OutOfMemory | Code::Unsupported), "{e}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn alloc_huge_raw(
        &self,
        pages: HugePages,
        dtype: DType,
        shape: &[i64],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<TensorMut<u8>> {
        TensorMut::new(self.alloc_huge_dtype(pages, dtype, shape, timeout.into())?)
    }

    fn alloc_huge_dtype(
        &self,
        pages: HugePages,
        dtype: DType,
        shape: &[i64],
        timeout: Option<Duration>,
    ) -> Result<Tensor> {
        let n = dtype.num_bytes(shape)?;
        if n == 0 {
            return self.alloc_dtype(dtype, shape);
        }
        let inner = self.inner()?;
        inner
            .wait_for_room(timeout, || inner.fill_by(|fallback| inner.cut_huge(pages, n, fallback), dtype, shape))
            .map(Tensor::of)
    }
}
