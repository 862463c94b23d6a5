//! Memory of the machine that a GPU reaches.

use std::ffi::c_void;

use super::Device;
use super::api::Address;
use crate::error::{Code, Error, Result};
use crate::shm::Region;

const PORTABLE: u32 = 1; // CU_MEMHOSTREGISTER_…
const DEVICE_MAP: u32 = 2;
const READ_ONLY: u32 = 8;

/// A registered range of whole pages, to its drop. It keeps the mapping.
#[derive(Debug)]
pub(crate) struct Registered {
    device: &'static Device,
    region: Region,
    /// Its device address.
    pub(crate) at: Address,
}

impl Registered {
    /// Registers a range; read-only where this process may not write it.
    pub(crate) fn new(device: &'static Device, region: Region, write: bool) -> Result<Registered> {
        let mut flags = PORTABLE | DEVICE_MAP;
        if !write {
            if !device.read_only_register() {
                let what = format!("{} cannot register memory that may not be written", device.name);
                return Err(Error::new(Code::Unsupported, "use a newer driver or GPU", what));
            }
            flags |= READ_ONLY;
        }
        let _current = device.enter()?;
        let host = region.address(0, region.len()).cast::<c_void>();
        let mut at = 0;
        // SAFETY: mapped pages, which the region keeps until they are unregistered.
        unsafe {
            device.api.register(host, region.len() as usize, flags)?;
            let got = device.api.host_address(&mut at, host, 0);
            got.inspect_err(|_| drop(device.api.unregister(host)))?;
        }
        Ok(Registered { device, region, at })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // What cannot be undone ends with the process.
        let Ok(_current) = self.device.enter() else { return };
        let host = self.region.address(0, self.region.len()).cast();
        // SAFETY: registered by `new`, once; no stream uses it any more.
        let _ = unsafe { self.device.api.unregister(host) };
    }
}
