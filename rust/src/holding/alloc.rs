//! Allocating: what holds memory that was just handed out.

use std::sync::Arc;
use std::time::Duration;

use super::Opening;
use super::references::{Holding, KeptBy, One, Storages};
use super::shared::Shared;
use super::view::View;
use crate::dtype::DType;
use crate::error::{Error, Result, disagree};
use crate::layout::limits;
use crate::ledger::Storage;
use crate::memory::Held;
use crate::message::Ref;

/// For how long an allocation waits for memory that pickles were given up for.
const FOR_GIVEN_UP: Duration = Duration::from_secs(1);

impl Opening {
    /// What holds nothing, for a tensor without elements.
    pub(crate) fn nothing(self: &Arc<Opening>, view: View) -> Shared {
        Shared::new(|| Holding::new(self, Storages::default(), view))
    }

    /// Allocates a storage of `bytes` > 0, counted once, for a compact tensor.
    // What it returns fits into registers: a tensor that is handed from one function to the next by memory is waited
    // for there.
    pub(crate) fn fill(self: &Arc<Opening>, bytes: u64, dtype: DType, shape: &[i64]) -> Result<Shared> {
        self.check_open()?;
        let at = |reference, offset| self.holding_at(reference, offset, bytes, dtype, shape);
        match if self.memory.traces { None } else { self.memory.pool.warm(bytes, at) } {
            Some(held) => held,
            None => self.fill_by(|fallback| self.memory.pool.alloc(&self.access, bytes, fallback), dtype, shape),
        }
    }

    /// As `fill`, from whichever pool `cut` allocates, which is told whether another attempt follows a refusal.
    #[cold]
    pub(crate) fn fill_by(
        self: &Arc<Opening>,
        cut: impl Fn(bool) -> Result<Storage>,
        dtype: DType,
        shape: &[i64],
    ) -> Result<Shared> {
        self.check_open()?;
        let mut got = cut(true);
        if got.as_ref().is_err_and(Error::is_full) {
            self.withdraw_done(); // withdraw what queues still name, then try once more
            got = cut(false);
        }
        // Each attempt that fails so has freed something: there is an end to it.
        while let Some(elsewhere) = got.as_ref().err().and_then(Error::gave_up) {
            got = cut(elsewhere);
            if got.as_ref().is_err_and(|e| e.is_full() && e.gave_up().is_none()) {
                // It is memory of others, or this session has not the file yet of one that has just let go.
                got = self.access.wait_for_memory(Some(FOR_GIVEN_UP), || cut(true));
                if got.is_err() {
                    got = cut(false);
                }
            }
        }
        let got = got.map_err(|e| self.refused(e))?;
        if self.memory.traces {
            self.trace(got.reference.index);
        }
        self.holding_of(got, dtype, shape)
    }

    /// What holds a storage that was just handed out, and counted, for a compact tensor.
    pub(crate) fn holding_of(self: &Arc<Opening>, s: Storage, dtype: DType, shape: &[i64]) -> Result<Shared> {
        self.holding_at(s.reference, s.offset, s.bytes, dtype, shape)
    }

    #[inline(always)]
    pub(crate) fn holding_at(
        self: &Arc<Opening>,
        reference: Ref,
        offset: u64,
        bytes: u64,
        dtype: DType,
        shape: &[i64],
    ) -> Result<Shared> {
        let at = self.memory.attached.find(reference.index / limits::CHUNK_INDICES, reference.serial);
        let at = at.ok_or_else(not_attached)?;
        let held = Held { reference, at, offset, bytes };
        let one = One { held, dtype, shape: shape.into(), readonly: false };
        Ok(Shared::of_one(self, one, None, || KeptBy::Session(self.clone())))
    }
}

#[cold]
fn not_attached() -> Error {
    disagree("a chunk of this session's own is not attached")
}
