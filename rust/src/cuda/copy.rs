//! Copies, in the order of a stream.

use std::ffi::c_void;

use super::api::Address;
use super::{Device, Stream};
use crate::error::Result;

impl Device {
    /// Makes a stream copy memory of the machine to the GPU.
    ///
    /// # Safety
    /// `n` bytes may be read there: until the stream has passed where the memory is registered, else
    /// until the call returns. The device's are the caller's to write.
    pub(crate) unsafe fn copy_in(&self, to: Address, from: *const u8, n: u64, s: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: as the caller says.
        unsafe { self.api.copy_in(to, from.cast::<c_void>(), n as usize, s.as_raw() as usize) }
    }

    /// Makes a stream copy memory of the GPU to the machine's.
    ///
    /// # Safety
    /// As of `copy_in`, the other way round.
    pub(crate) unsafe fn copy_out(&self, to: *mut u8, from: Address, n: u64, s: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: as the caller says.
        unsafe { self.api.copy_out(to.cast::<c_void>(), from, n as usize, s.as_raw() as usize) }
    }

    /// Makes a stream copy between device addresses.
    ///
    /// # Safety
    /// Both are memory of the GPU that stays until the stream has passed.
    pub(crate) unsafe fn copy_within(&self, to: Address, from: Address, n: u64, s: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: as the caller says.
        unsafe { self.api.copy_within(to, from, n as usize, s.as_raw() as usize) }
    }

    /// Makes a stream set bytes.
    ///
    /// # Safety
    /// As of `copy_within`.
    pub(crate) unsafe fn fill(&self, to: Address, value: u8, n: u64, s: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: as the caller says.
        unsafe { self.api.fill(to, value, n as usize, s.as_raw() as usize) }
    }
}
