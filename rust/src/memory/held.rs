//! A storage that this process counts, and its bytes.

use super::attach::Attached;
use crate::error::{Code, Error, Result};
use crate::message::Ref;
use crate::shm::Segment;

/// A storage that this process counts, and where it lies.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) reference: Ref,
    pub(crate) at: Attached,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Attached {
    /// Reads a counted ref's entry and checks it: the generation is the ref's, the range lies in the
    /// chunk's.
    #[inline(always)]
    pub(crate) fn locate(self, reference: Ref) -> Result<Held> {
        match self.range_of(reference) {
            Some((offset, bytes)) => Ok(Held { reference, at: self, offset, bytes }),
            None => Err(self.why_not(reference)),
        }
    }
}

impl Held {
    /// The device address of the storage's bytes, mapped for a use.
    pub(crate) fn device_address(&self, write: bool) -> Result<u64> {
        let base = self.at.segment.device_address(write)?;
        if self.offset > self.at.segment.bytes || self.bytes > self.at.segment.bytes - self.offset {
            let what = format!("storage {} lies outside its segment", self.reference.index);
            return Err(Error::new(Code::InvalidHandle, "restart the process that owns it", what));
        }
        Ok(base + self.offset)
    }

    /// The address of the storage's bytes, mapped for a use.
    pub(crate) fn address(&self, write: bool) -> Result<*mut u8> {
        self.address_in(&self.at.segment, write)
    }

    /// As `address`, in a mapping of this process's.
    pub(crate) fn address_in(&self, segment: &Segment, write: bool) -> Result<*mut u8> {
        let region = segment.region(write)?;
        if !region.has(self.offset, self.bytes) {
            let what = format!("storage {} lies outside its segment", self.reference.index);
            return Err(Error::new(Code::InvalidHandle, "restart the process that owns it", what));
        }
        Ok(region.address(self.offset, self.bytes))
    }
}
