//! GPUs, and the context that this process shares with everything else in it that uses them.

use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use super::api::Api;
use super::result::SPAWN;
use crate::error::{Code, Error, Result};
use crate::sys;

/// What a GPU's UUID begins with, as nvidia-smi writes it.
pub(super) const PREFIX: &str = "GPU-";

/// What nvidia-smi puts before the UUID of a part of a GPU that is divided (MIG). The driver gives the part's
/// UUID in the place of the GPU's, and no prefix.
pub(super) const INSTANCE: &str = "MIG-";

/// Attributes that decide what can be done (CU_DEVICE_ATTRIBUTE_…).
mod attribute {
    use std::ffi::c_int;
    pub(super) const VIRTUAL_MEMORY: c_int = 102;
    pub(super) const POSIX_DESCRIPTOR: c_int = 103;
    pub(super) const READ_ONLY_REGISTER: c_int = 113;
    pub(super) const STREAM_VALUES: c_int = 122;
}

/// One GPU that this process sees. Its context is the primary one, which torch and others use too,
/// retained at the first call that needs it.
pub(crate) struct Device {
    /// As this process counts.
    pub(crate) index: i32,
    /// What names it in all processes: `GPU-…`.
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(super) number: c_int, // CUdevice
    pub(super) api: Arc<Api>,
    process: u32, // that loaded the driver
    context: OnceLock<usize>,
    has: Features,
}

/// What a GPU and its driver can do.
#[derive(Debug, Clone, Copy)]
struct Features {
    slabs: bool,
    values: bool,
    read_only_register: bool,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.uuid, self.name)
    }
}

/// The context is current on this thread as long as this lives.
pub(super) struct Current<'a>(&'a Api, PhantomData<*const ()>); // not to be sent to another thread

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // What was pushed can be popped.
        // SAFETY: a place for the context that was current.
        let _ = unsafe { self.0.pop(&mut 0) };
    }
}

impl Device {
    pub(super) fn find(api: &Arc<Api>, index: c_int, process: u32) -> Result<Device> {
        let (mut number, mut uuid, mut name) = (0, [0u8; 16], [0; 128]);
        // SAFETY: places for the results, of the sizes that the calls write.
        unsafe {
            api.device_get(&mut number, index)?;
            api.device_uuid(&mut uuid, number)?;
            api.device_name(name.as_mut_ptr(), name.len() as c_int - 1, number)?;
        }
        // SAFETY: the last byte is zero, whatever the driver wrote before it.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let has = |attribute| {
            let mut value = 0;
            // SAFETY: a place for the result.
            match unsafe { api.device_attribute(&mut value, attribute, number) } {
                // A driver that does not know the attribute is too old for what it describes.
                Err(e) if matches!(e.code(), Code::InvalidArgument | Code::Unsupported) => Ok(false),
                got => got.map(|()| value != 0),
            }
        };
        let has = Features {
            slabs: has(attribute::VIRTUAL_MEMORY)? && has(attribute::POSIX_DESCRIPTOR)?,
            values: has(attribute::STREAM_VALUES)?,
            read_only_register: has(attribute::READ_ONLY_REGISTER)?,
        };
        let uuid = written(uuid);
        Ok(Device { index, uuid, name, number, api: api.clone(), process, context: OnceLock::new(), has })
    }

    /// Makes the context current on this thread.
    pub(super) fn enter(&self) -> Result<Current<'_>> {
        check_process(self.process)?;
        let context = match self.context.get() {
            Some(c) => *c,
            None => {
                let mut c = 0;
                // SAFETY: a place for the result. Two threads may both retain it: it is one context, and
                // it is kept to the end of the process.
                unsafe { self.api.primary_retain(&mut c, self.number)? };
                *self.context.get_or_init(|| c)
            }
        };
        // SAFETY: a context that is retained.
        unsafe { self.api.push(context)? };
        Ok(Current(&self.api, PhantomData))
    }

    /// Whether this process has its context.
    pub(super) fn is_used(&self) -> bool {
        self.context.get().is_some()
    }

    /// Refuses what the child of a fork inherited, as [`check_process`].
    pub(crate) fn check_process(&self) -> Result<()> {
        check_process(self.process)
    }

    /// Whether memory can be shared by descriptors.
    pub(super) fn check_slabs(&self) -> Result<()> {
        if self.has.slabs {
            return Ok(());
        }
        let what = format!("{} cannot share memory by descriptors", self.name);
        Err(Error::new(Code::Unsupported, "use a newer driver or GPU, or memory of the cpu", what))
    }

    /// Whether streams can write and wait for 64-bit values.
    pub(crate) fn values(&self) -> bool {
        self.has.values
    }

    pub(super) fn read_only_register(&self) -> bool {
        self.has.read_only_register
    }

    /// Waits for all work of this process on the GPU.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the context is current.
        unsafe { self.api.synchronize() }
    }

    /// The bytes that are free, and those that the GPU has, as the driver counts them for all processes.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for the results.
        unsafe { self.api.memory_info(&mut free, &mut total)? };
        Ok((free as u64, total as u64))
    }
}

/// Refuses the child of a process that had loaded the driver.
pub(super) fn check_process(loaded: u32) -> Result<()> {
    if sys::is_process(loaded) {
        return Ok(());
    }
    Err(Error::new(Code::Unsupported, SPAWN, "CUDA was initialised by the process that this one was forked from"))
}

/// The form of nvidia-smi: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.
fn written(uuid: [u8; 16]) -> String {
    let mut text = PREFIX.to_owned();
    for (i, b) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{b:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_is_written_as_nvidia_smi_does() {
        let uuid = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(super::written(uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
