//! Which sessions hold a storage, as the refcounts say.

use super::session_files::text;
use super::{Access, Held};
use crate::layout::{BROKER_SLOT, broker_file, limits, session_file, session_record};
use crate::ledger::Holders;

/// A session that counts references to a storage, as of a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
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

impl Access {
    /// As far as their files are mapped here; others' are asked for.
    pub(crate) fn holders(&self, h: &Held) -> Vec<Holder> {
        let index = h.reference.index;
        let chunk = index / limits::CHUNK_INDICES;
        let counts = |slot| self.refcounts(slot).map_or(0, |refcounts| refcounts.count(index));
        let attached = self.memory.files.chunks.attached(chunk);
        attached
            .slots()
            .map(|slot| (slot, counts(slot)))
            .filter(|(_, n)| *n > 0)
            .map(|(s, n)| self.holder(s, n))
            .collect()
    }

    fn holder(&self, slot: u32, references: u64) -> Holder {
        let (b, at) = (&self.memory.files.broker, broker_file::session(slot));
        let name = || text(b, at + session_record::NAME, session_file::SENDER_BYTES);
        Holder {
            serial: b.load(at + session_record::SERIAL),
            pid: b.load32(at + session_record::PID),
            name: if slot == BROKER_SLOT { String::new() } else { name() },
            references,
        }
    }
}
