//! Mappings of shared files.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::{is_process, process_number};
use crate::error::{Code, Error, Result, os};

/// A mapped range of memory, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The number of the process that alone has it; 0: its children have it too.
    of: AtomicU32,
}

// SAFETY: a mapping belongs to the process, not to a thread; its content is only reached through
// atomics or through views whose owners answer for them.
unsafe impl Send for Mapping {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, which must have as many: touching what lies behind a
    /// file's end is SIGBUS.
    pub(crate) fn shared(fd: impl AsFd, len: usize, writable: bool) -> Result<Mapping> {
        let mut prot = ProtFlags::READ;
        if writable {
            prot |= ProtFlags::WRITE;
        }
        // SAFETY: the kernel chooses a range that is not in use.
        let at = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) };
        Mapping::made(at, len, writable)
    }

    /// Maps the first `len` bytes of another process's file for reading.
    pub(crate) fn readable(fd: impl AsFd, len: usize) -> Result<Mapping> {
        // SAFETY: the kernel chooses a range that is not in use.
        let at = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, fd, 0) };
        Mapping::made(at, len, false)
    }

    /// Maps `len` bytes at `at`, a multiple of the page size, copy-on-write: what is written stays in
    /// this process, in this mapping.
    pub(crate) fn private(fd: impl AsFd, at: u64, len: usize) -> Result<Mapping> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // Most pages are never written: the kernel need not set memory aside for all of them.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses a range that is not in use.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, fd, at) };
        Mapping::made(base, len, true)
    }

    /// Zeroed memory of this process alone.
    pub(crate) fn anonymous(len: usize) -> Result<Mapping> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) };
        Mapping::made(at, len, true)
    }

    fn made(at: rustix::io::Result<*mut std::ffi::c_void>, len: usize, writable: bool) -> Result<Mapping> {
        match at.map(|p| NonNull::new(p.cast())) {
            Ok(Some(base)) => Ok(Mapping { base, len, writable, of: AtomicU32::new(0) }),
            Ok(None) => Err(Error::new(
                Code::Internal,
                "report this with the broker's log, see docs/support.md",
                "map shared memory: address 0",
            )),
            Err(e) => {
                let code = if e == Errno::NOMEM { Code::OutOfMemory } else { Code::Internal };
                Err(os(code, "raise the limit of address space", format_args!("map {len} bytes of shared memory"), e))
            }
        }
    }

    /// Keeps the mapping out of forked children: a pidfd says nothing of children, so pages that
    /// this process writes must not live on in one.
    pub(crate) fn dont_fork(&self) -> Result<()> {
        self.of.store(process_number()?, Ordering::Relaxed);
        self.advise(Advice::LinuxDontFork, "keep a mapping from children")
    }

    /// Unmaps, in a child, what its parent keeps from children otherwise. Nothing is read or written through it.
    pub(crate) fn leave(&self) {
        // SAFETY: the range is that of the parent's mapping, of which this process has a copy that nothing of it
        // uses; the value is the parent's, so it is not unmapped here again.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }

    /// Advises the kernel about all of the mapping, in a way that changes what children see of it.
    pub(crate) fn advise(&self, advice: Advice, to: &str) -> Result<()> {
        // SAFETY: the range is this mapping's; a child that touches what it has not faults, and nothing
        // else does.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, advice) }
            .map_err(|e| os(Code::Internal, "report this with the broker's log, see docs/support.md", to, e))
    }

    /// Touches reserved pages for writing, so that their first user does not pay for faults.
    /// Kernels before 5.14 do not know how; then nothing happens.
    pub(crate) fn populate(&self) -> Result<()> {
        // SAFETY: the range is this mapping's and its content stays.
        match unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) } {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(e) => Err(os(
                Code::OutOfMemory,
                "free memory of this machine, or raise the container's limit",
                format_args!("touch {} bytes of shared memory", self.len),
                e,
            )),
        }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let of = *self.of.get_mut();
        if of != 0 && !is_process(of) {
            return; // in a child: nothing is there, or something of others
        }
        // SAFETY: the range was mapped here, and code that reaches into it owns a share of this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
