//! Memory of the GPU that a framework allocated, lent to other processes by the driver's legacy handles:
//! those of one allocation of cudaMalloc's, which ends with its process. The driver does not open a handle of
//! its own process: sessions of one process find in a table what the others lend.

use std::ffi::{c_int, c_uint};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;

use super::Device;
use super::api::{Address, HANDLE_BYTES, IpcHandle};
use crate::error::{Code, Error, Result};
use crate::layout::PAGE;
use crate::sys;

const LEGACY_IPC_CAPABLE: c_int = 10; // CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
const LAZY_PEER_ACCESS: c_uint = 1;

impl IpcHandle {
    /// A descriptor that carries it to other processes.
    pub(crate) fn to_file(self) -> Result<OwnedFd> {
        sys::sealed_bytes("baton-ipc-handle", &self.0)
    }

    /// The handle that a descriptor of another process carries.
    fn of_file(fd: BorrowedFd<'_>) -> Result<IpcHandle> {
        let mut bytes = [0; HANDLE_BYTES];
        match sys::sealed(fd) && sys::read_at(fd, &mut bytes) {
            true => Ok(IpcHandle(bytes)),
            false => {
                let what = "borrowed memory came without its handle";
                Err(Error::new(Code::InvalidHandle, "restart the process that owns it", what))
            }
        }
    }
}

/// An allocation as other processes can open it.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: Address,
    pub(crate) bytes: u64,
    pub(crate) handle: IpcHandle,
}

/// What the sessions of this process lend, once for each. A handle that another process forges finds no more
/// here than the memory that it names.
static LENT_HERE: Mutex<Vec<(IpcHandle, Address, u64)>> = Mutex::new(Vec::new());

/// That an allocation is lent, to its drop.
#[derive(Debug)]
pub(crate) struct LentHere(IpcHandle);

impl LentHere {
    pub(super) fn new(a: &Allocation) -> LentHere {
        let mut all = LENT_HERE.lock().unwrap_or_else(|p| p.into_inner());
        all.push((a.handle, a.base, a.bytes));
        LentHere(a.handle)
    }

    /// Where the allocation of a handle begins, and its bytes.
    fn find(handle: IpcHandle) -> Option<(Address, u64)> {
        let all = LENT_HERE.lock().unwrap_or_else(|p| p.into_inner());
        all.iter().find(|(h, ..)| *h == handle).map(|(_, base, bytes)| (*base, *bytes))
    }
}

impl Drop for LentHere {
    fn drop(&mut self) {
        let mut all = LENT_HERE.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(at) = all.iter().position(|(h, ..)| *h == self.0) {
            all.swap_remove(at);
        }
    }
}

/// Refuses to take more for lent than an allocation has. The broker rounds up to whole pages.
fn check_size(lent: u64, real: u64) -> Result<()> {
    if lent < real.saturating_add(PAGE) {
        return Ok(());
    }
    let what = format!("{lent} bytes are lent of an allocation of {real}");
    Err(Error::new(Code::InvalidHandle, "restart the process that owns it", what))
}

impl Device {
    /// The allocation that an address lies in. `Unsupported`: it is of another kind than cudaMalloc's,
    /// which other processes cannot open.
    pub(crate) fn allocation(&self, at: Address) -> Result<Allocation> {
        let _current = self.enter()?;
        let mut capable: c_int = 0;
        let mut a = Allocation { base: 0, bytes: 0, handle: IpcHandle([0; HANDLE_BYTES]) };
        // SAFETY: a place for the result, an int.
        unsafe { self.api.pointer_attribute((&raw mut capable).cast(), LEGACY_IPC_CAPABLE, at)? };
        if capable == 0 {
            let remedy = "share it with copy=True, which copies it into a slab, or allocate it by cudaMalloc \
                          (torch: expandable_segments:False, no backend:cudaMallocAsync)";
            return Err(Error::new(Code::Unsupported, remedy, "the driver cannot lend this memory to other processes"));
        }
        let mut bytes = 0;
        // SAFETY: places for the results.
        unsafe {
            self.api.address_range(&mut a.base, &mut bytes, at)?;
            self.api.ipc_handle(&mut a.handle, a.base)?;
        }
        a.bytes = bytes as u64;
        Ok(a)
    }

    /// Opens memory that a session lends; whether it is another process's, which is to be closed. Each open
    /// needs its close; a second one in this process gives the same address. The descriptor carries the handle.
    pub(super) fn open_borrowed(&self, fd: BorrowedFd<'_>, bytes: u64) -> Result<(Address, bool)> {
        let handle = IpcHandle::of_file(fd)?;
        let _current = self.enter()?;
        if let Some((base, real)) = LentHere::find(handle) {
            return check_size(bytes, real).map(|()| (base, false));
        }
        let (mut at, mut base, mut real) = (0, 0, 0);
        // SAFETY: a place for the result; the driver checks the handle.
        unsafe { self.api.ipc_open(&mut at, handle, LAZY_PEER_ACCESS) }.map_err(|e| {
            let what = format!("open {bytes} bytes borrowed on {}: {}", self.name, e.message());
            Error::new(e.code(), e.remedy().to_owned(), what)
        })?;
        // SAFETY: places for the results.
        let ranged = unsafe { self.api.address_range(&mut base, &mut real, at) };
        if ranged.is_ok() {
            check_size(bytes, (base + real as u64).saturating_sub(at)).inspect_err(|_| self.close_borrowed(at))?;
        }
        Ok((at, true))
    }

    pub(super) fn close_borrowed(&self, at: Address) {
        // What cannot be closed ends with the process; in the child of a fork it is the parent's.
        let Ok(_current) = self.enter() else { return };
        // SAFETY: an address of `open_borrowed`, once for each open; no stream uses it any more.
        let _ = unsafe { self.api.ipc_close(at) };
    }
}
