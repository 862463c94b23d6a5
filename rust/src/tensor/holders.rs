//! The holders of a tensor's memory.

use super::Tensor;
use crate::dtype::DType;
use crate::memory::Holder;

impl Tensor {
    /// The storage that it lies in: its name, all of its bytes, and where the first element is in them. `None`
    /// if it lies in a file or has no elements.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.from_slice(&[4], &[1u8, 2, 3, 4])?.freeze();
    /// let (name, all, first) = x.as_strided(&[2], None, 1)?.whole().unwrap();
    /// assert_eq!((all.to_vec::<u8>()?, first, x.whole().unwrap().0), (vec![1, 2, 3, 4], 1, name));
    /// # Ok(()) }
    /// ```
    pub fn whole(&self) -> Option<([u64; 3], Tensor, u64)> {
        let h = self.storage()?;
        let shape = [h.bytes as i64][..].into();
        let all = Tensor::laid_out(self.held.clone(), self.view().place.clone(), 0, DType::UINT8, shape);
        Some((h.reference.words(), if self.is_read_only() { all.to_read_only() } else { all }, self.view().offset))
    }

    /// The holders of the tensor's memory at this moment, as far as their files are mapped here; others'
    /// are asked for and seen the next time. Empty without a storage.
    pub fn holders(&self) -> Vec<Holder> {
        let inner = self.held.inner();
        match self.storage() {
            Some(h) => inner.opened_here().map_or_else(Vec::new, |inner| inner.holders(h)),
            None => Vec::new(),
        }
    }
}
