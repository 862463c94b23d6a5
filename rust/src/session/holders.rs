//! Who holds a tensor's memory, as the ledger's rows say.

use super::holding::Held;
use super::inner::Inner;
use super::pages::text;
use super::tensor::Tensor;
use crate::dtype::DType;
use crate::layout::{BROKER_SLOT, broker_file, limits, session_file, session_record};
use crate::ledger::Rows;

/// A session that counts references to a storage, as of a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The serial by which listings name the session.
    pub serial: u64,
    /// Its process.
    pub pid: u32,
    /// Its name; the broker's is empty.
    pub name: String,
    /// Its references: of tensors, messages, names and leases together.
    pub references: u64,
}

impl Tensor {
    /// The storage that it lies in: its name, all of its bytes, and where the first element is in them. `None`
    /// where it lies in a file or has no elements.
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
        Some((h.reference.words(), if self.is_read_only() { all.as_read_only() } else { all }, self.view().offset))
    }

    /// Who holds the tensor's memory at this moment, as far as their pages are mapped here; others'
    /// are asked for and seen the next time. Empty without a storage.
    pub fn holders(&self) -> Vec<Holder> {
        let inner = self.held.inner();
        match self.storage() {
            Some(h) => inner.opened_here().map_or_else(Vec::new, |inner| inner.holders(h)),
            None => Vec::new(),
        }
    }
}

impl Inner {
    fn holders(&self, h: &Held) -> Vec<Holder> {
        let index = h.reference.index;
        let chunk = index / limits::CHUNK_INDICES;
        let counts = |slot| self.row(slot).map_or(0, |row| row.count(index));
        let attached = self.pages.chunks.attached(chunk);
        attached
            .slots()
            .map(|slot| (slot, counts(slot)))
            .filter(|(_, n)| *n > 0)
            .map(|(s, n)| self.holder(s, n))
            .collect()
    }

    fn holder(&self, slot: u32, references: u64) -> Holder {
        let (b, at) = (&self.pages.broker, broker_file::session(slot));
        let name = || text(b, at + session_record::NAME, session_file::SENDER_BYTES);
        Holder {
            serial: b.load(at + session_record::SERIAL),
            pid: b.load32(at + session_record::PID),
            name: if slot == BROKER_SLOT { String::new() } else { name() },
            references,
        }
    }
}
