//! GPU memory that can be handed to other processes as a descriptor.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Device;
use super::api::{Access, Address, Location, Properties};
use super::borrowed::{Allocation, LentHere};
use crate::error::{Code, Error, Result, disagree};

const PINNED: c_int = 1; // CU_MEM_ALLOCATION_TYPE_PINNED
const ON_DEVICE: c_int = 1; // CU_MEM_LOCATION_TYPE_DEVICE
const POSIX_FD: c_int = 1; // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
const READ: c_int = 1;
const READ_WRITE: c_int = 3;

/// Memory on a GPU in this process: made here, or imported when its address is first asked for. It is
/// mapped once for each right, and unmapped with its value: code that points into it holds it. Or memory
/// that a framework allocated, here or, opened while it is used, in another process.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) device: &'static Device,
    /// The number by which the broker, and so messages and handles, name the GPU.
    pub(crate) id: i32,
    pub(crate) bytes: u64,
    origin: Origin,
    readable: AtomicU64, // addresses; 0: not mapped
    writable: AtomicU64,
}

#[derive(Debug)]
enum Origin {
    /// By a CUmemGenericAllocationHandle; the lock guards the making of it and of the mappings.
    Descriptor(Mutex<Option<u64>>),
    /// A framework of this process made it, and this session lends it.
    Lent { _here: LentHere },
    /// Another session lends it.
    Borrowed(Mutex<Users>),
}

/// The users of borrowed memory.
#[derive(Debug, Default)]
struct Users {
    count: usize,
    foreign: bool, // it is another process's, and open
}

fn properties(d: &Device) -> Properties {
    Properties { kind: PINNED, handle_types: POSIX_FD, location: place(d), win32: 0, flags: [0; 8] }
}

fn place(d: &Device) -> Location {
    Location { kind: ON_DEVICE, id: d.number }
}

impl Device {
    /// What the bytes of a slab are a multiple of.
    pub(crate) fn granularity(&self) -> Result<u64> {
        self.check_slabs()?;
        let _current = self.enter()?;
        let mut n = 0;
        // SAFETY: a place for the result and a live structure.
        unsafe { self.api.granularity(&mut n, &properties(self), 0)? };
        Ok(n as u64)
    }
}

impl Slab {
    /// Makes memory of so many bytes, a multiple of the granularity.
    pub(crate) fn create(device: &'static Device, id: i32, bytes: u64) -> Result<Slab> {
        device.check_slabs()?;
        let _current = device.enter()?;
        let mut handle = 0;
        // SAFETY: a place for the result and a live structure.
        unsafe { device.api.create(&mut handle, bytes as usize, &properties(device), 0)? };
        Ok(Slab::new(device, id, bytes, Origin::Descriptor(Mutex::new(Some(handle))), 0))
    }

    /// Another process's memory, of which nothing is asked of the driver yet.
    pub(crate) fn to_import(device: &'static Device, id: i32, bytes: u64) -> Slab {
        Slab::new(device, id, bytes, Origin::Descriptor(Mutex::default()), 0)
    }

    /// Memory of a framework's of this process, which others may borrow.
    pub(crate) fn to_lend(device: &'static Device, id: i32, a: &Allocation, bytes: u64) -> Slab {
        Slab::new(device, id, bytes, Origin::Lent { _here: LentHere::new(a) }, a.base)
    }

    /// Memory of a framework's that another session lends, of which nothing is asked of the driver yet.
    pub(crate) fn to_borrow(device: &'static Device, id: i32, bytes: u64) -> Slab {
        Slab::new(device, id, bytes, Origin::Borrowed(Mutex::default()), 0)
    }

    fn new(device: &'static Device, id: i32, bytes: u64, origin: Origin, at: Address) -> Slab {
        Slab { device, id, bytes, origin, readable: AtomicU64::new(at), writable: AtomicU64::new(at) }
    }

    /// Whether it ends with another session, so that its users open it first.
    pub(crate) fn is_borrowed(&self) -> bool {
        matches!(self.origin, Origin::Borrowed(_))
    }

    /// Opens borrowed memory for one more user. The descriptor carries its handle.
    pub(crate) fn open(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let Origin::Borrowed(users) = &self.origin else { return Ok(()) };
        let mut users = users.lock().unwrap_or_else(|p| p.into_inner());
        if users.count == 0 {
            let (at, foreign) = self.device.open_borrowed(fd, self.bytes)?;
            users.foreign = foreign;
            self.readable.store(at, Ordering::Release);
            self.writable.store(at, Ordering::Release);
        }
        users.count += 1;
        Ok(())
    }

    /// Ends one `open`; the last closes it, so that its owner may free it once no holder counts it.
    pub(crate) fn close(&self) {
        let Origin::Borrowed(users) = &self.origin else { return };
        let mut users = users.lock().unwrap_or_else(|p| p.into_inner());
        users.count -= 1;
        if users.count == 0 {
            self.writable.store(0, Ordering::Release);
            let at = self.readable.swap(0, Ordering::AcqRel);
            if users.foreign {
                self.device.close_borrowed(at);
            }
        }
    }

    /// A descriptor by which other processes get the memory, which it keeps. The driver bounds their
    /// number: made once for each slab.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let Origin::Descriptor(handle) = &self.origin else { return Err(disagree("a handle is exported as a file")) };
        let handle = *handle.lock().unwrap_or_else(|p| p.into_inner());
        let _current = self.device.enter()?;
        let mut fd = -1;
        // SAFETY: a place for the result, and a handle of `create`, which is always there.
        unsafe { self.device.api.export(&mut fd, handle.unwrap_or_default(), POSIX_FD, 0)? };
        // SAFETY: the driver just made it and gave it away.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A duplicate is CLOEXEC, which the driver's own may not be.
        fd.try_clone().map_err(|e| Error::new(Code::TooMany, "raise the limit of open files", format!("{e}")))
    }

    /// Where it begins. A process that has it writable reads through that mapping. The descriptor is
    /// for the first call.
    pub(crate) fn address(&self, fd: BorrowedFd<'_>, write: bool) -> Result<Address> {
        if let Some(at) = self.mapped(write) {
            return Ok(at);
        }
        let Origin::Descriptor(handle) = &self.origin else {
            return Err(disagree("borrowed memory was not opened for its use"));
        };
        let mut handle = handle.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(at) = self.mapped(write) {
            return Ok(at);
        }
        let _current = self.device.enter()?;
        let h = match *handle {
            Some(h) => h,
            None => *handle.insert(self.import(fd)?),
        };
        let at = self.map(h, write)?;
        (if write { &self.writable } else { &self.readable }).store(at, Ordering::Release);
        Ok(at)
    }

    fn mapped(&self, write: bool) -> Option<Address> {
        let at = |a: &AtomicU64| Some(a.load(Ordering::Acquire)).filter(|at| *at != 0);
        at(&self.writable).or_else(|| at(&self.readable).filter(|_| !write))
    }

    /// Where in it `n` bytes at a device address begin, and whether that mapping may be written.
    pub(crate) fn offset_of(&self, at: Address, n: u64) -> Option<(u64, bool)> {
        [(&self.writable, true), (&self.readable, false)].into_iter().find_map(|(base, write)| {
            let base = Some(base.load(Ordering::Acquire)).filter(|b| *b != 0)?;
            let off = at.checked_sub(base)?;
            (off <= self.bytes && n <= self.bytes - off).then_some((off, write))
        })
    }

    fn import(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let mut handle = 0;
        let raw = fd.as_raw_fd() as usize as *mut c_void; // the driver takes the number as a pointer
        // SAFETY: a place for the result; the descriptor stays ours, and the driver checks what it is.
        unsafe { self.device.api.import(&mut handle, raw, POSIX_FD) }.map_err(|e| {
            let what = format!("import a slab of {} bytes on {}: {}", self.bytes, self.device.name, e.message());
            Error::new(e.code(), e.remedy().to_owned(), what)
        })?;
        Ok(handle)
    }

    /// A new mapping. The context is current.
    fn map(&self, handle: u64, write: bool) -> Result<Address> {
        let (api, n, mut at) = (&self.device.api, self.bytes as usize, 0);
        let access = Access { location: place(self.device), flags: if write { READ_WRITE } else { READ } };
        // SAFETY: a range that was just reserved is mapped, and given back where that fails.
        unsafe {
            api.reserve(&mut at, n, 0, 0, 0)?;
            let mapped = api.map(at, n, 0, handle, 0);
            let set = mapped.and_then(|()| api.set_access(at, n, &access, 1).inspect_err(|_| drop(api.unmap(at, n))));
            set.inspect_err(|_| drop(api.unreserve(at, n)))?;
        }
        Ok(at)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let Origin::Descriptor(handle) = &mut self.origin else { return };
        // What cannot be undone ends with the process; in the child of a fork it is the parent's.
        let Ok(_current) = self.device.enter() else { return };
        let (api, n) = (&self.device.api, self.bytes as usize);
        for at in [*self.writable.get_mut(), *self.readable.get_mut()].into_iter().filter(|at| *at != 0) {
            // SAFETY: mappings of `map`, into which no pointer is left.
            let _ = unsafe { api.unmap(at, n).and_then(|()| api.unreserve(at, n)) };
        }
        if let Some(h) = *handle.get_mut().unwrap_or_else(|p| p.into_inner()) {
            // SAFETY: a handle that is this value's, once.
            let _ = unsafe { api.release(h) };
        }
    }
}
