//! GPU memory, by the CUDA driver, which is loaded at run time when a tensor on a GPU is first met.
//!
//! Ownership: a [`Slab`] is memory that this process made or imported, with its mappings; code that points into
//! it holds it. Concurrency: all of it from any thread; each call makes the context current on its thread
//! and puts back what was there. Hostile peers: a descriptor that is no memory of the GPU is refused by the
//! driver, and so by the import. Death: the driver ends what a dead process ran and mapped.

mod api;
mod borrowed;
mod copy;
mod device;
mod registered;
mod result;
mod slab;
mod stream;

use std::fmt::Display;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) use api::IpcHandle;
pub(crate) use borrowed::Allocation;
pub(crate) use device::Device;
pub(crate) use registered::Registered;
pub(crate) use slab::Slab;
pub use stream::Stream;

use crate::error::{Code, Error, Result};
use crate::sys::{self, PerProcess};

/// What the driver's library is called, as the loader knows it.
#[cfg(feature = "cuda")]
const LIBRARY: &str = "libcuda.so.1";

/// The loaded driver with the GPUs that this process may see, as `CUDA_VISIBLE_DEVICES` shows them. It is
/// never unloaded: others in the process use it too.
#[derive(Debug)]
pub(crate) struct Driver {
    devices: Vec<Device>,
    process: u32,
}

static DRIVER: PerProcess<Driver> = PerProcess::new();

/// Waits until the GPUs have done what this process gave them, at most for a time; at once if it used
/// none. For the end of a program that drops its sessions late or never: what its streams have not written
/// by then is lost with the process, and a receiver of it gets `Expired`.
///
/// ```
/// baton::finish_devices(std::time::Duration::from_secs(10));
/// ```
pub fn finish_devices(timeout: Duration) {
    let Some(d) = DRIVER.last().filter(|d| device::check_process(d.process).is_ok()) else { return };
    let (tell, told) = channel();
    // A thread, for a stream may never end, and the driver knows no timeout.
    let all = sys::own_thread("baton-finish", None, move |_| {
        // Of a context that is lost nothing runs any more.
        d.devices.iter().filter(|d| d.is_used()).for_each(|d| drop(d.synchronize()));
        let _ = tell.send(());
    });
    if all.is_ok() {
        let _ = told.recv_timeout(timeout);
    }
}

/// The driver. Errors: `Unsupported` without one and in the child of a fork, `NotFound` without a GPU.
pub(crate) fn driver() -> Result<&'static Driver> {
    static LOADING: PerProcess<Mutex<()>> = PerProcess::new();
    if let Some(d) = DRIVER.last() {
        device::check_process(d.process)?;
        return Ok(d);
    }
    let _one = LOADING.get_or(Mutex::default)?.lock().unwrap_or_else(|p| p.into_inner());
    match DRIVER.get() {
        Some(d) => Ok(d),
        None => {
            let d = Driver::load()?;
            DRIVER.get_or(|| d)
        }
    }
}

/// The GPU that a user names: `cuda` (the first), `cuda:1` (as this process counts), `cuda:GPU-…`,
/// `cuda:MIG-…`.
pub(crate) fn named(name: &str) -> Result<&'static Device> {
    let which = match name.strip_prefix("cuda") {
        Some("") => Some("0"),
        Some(rest) => rest.strip_prefix(':'),
        None => None,
    };
    if let Some(uuid) = which.filter(|w| w.starts_with(device::PREFIX)) {
        return driver()?.by_uuid(uuid);
    }
    if let Some(part) = which.and_then(|w| w.strip_prefix(device::INSTANCE)) {
        return driver()?.by_uuid(&format!("{}{part}", device::PREFIX));
    }
    match which.and_then(|w| w.parse::<usize>().ok()) {
        Some(index) => driver()?.numbered(index),
        None => {
            let what = format!("{name:?} names no GPU");
            Err(Error::new(Code::InvalidArgument, "use cpu, cuda, cuda:0 or cuda:GPU-…", what))
        }
    }
}

#[cfg(feature = "cuda")]
fn load() -> Result<api::Api> {
    api::Api::load()
}

#[cfg(not(feature = "cuda"))]
fn load() -> Result<api::Api> {
    let what = "this program was built without the feature cuda of the crate baton";
    Err(Error::new(Code::Unsupported, "build it with the feature, or use tensors on the cpu", what))
}

impl Driver {
    fn load() -> Result<Driver> {
        let (api, process) = (Arc::new(load()?), sys::process_number()?);
        let mut n = 0;
        // SAFETY: init comes first, and the count has a place.
        unsafe {
            api.init(0)?;
            api.device_count(&mut n)?;
        }
        let devices = (0..n).map(|i| Device::find(&api, i, process)).collect::<Result<_>>()?;
        Ok(Driver { devices, process })
    }

    /// The GPU that has this index here.
    pub(crate) fn numbered(&'static self, index: impl TryInto<usize> + Display + Copy) -> Result<&'static Device> {
        index.try_into().ok().and_then(|i| self.devices.get(i)).ok_or_else(|| {
            let what = format!("there is no cuda:{index}: this process sees {} GPUs", self.devices.len());
            Error::new(Code::NotFound, "check CUDA_VISIBLE_DEVICES", what)
        })
    }

    /// The GPU by what names it in all processes.
    pub(crate) fn by_uuid(&'static self, uuid: &str) -> Result<&'static Device> {
        self.devices.iter().find(|d| d.uuid == uuid).ok_or_else(|| {
            let what = format!("this process does not see the GPU {uuid}");
            Error::new(Code::NotFound, "make it visible with CUDA_VISIBLE_DEVICES", what)
        })
    }
}
