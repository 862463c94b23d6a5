//! Shared files: their size, and the reservation of their pages.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;

use crate::error::{Code, Result, os};

/// Bytes of a file, as the kernel says.
pub(crate) fn size_of(fd: &OwnedFd) -> Result<u64> {
    match fstat(fd) {
        Ok(s) => Ok(s.st_size as u64),
        Err(e) => Err(os(Code::Internal, "report this", "look at a shared file", e)),
    }
}

/// Allocates the pages of a range, so that touching them can no longer fail. This process's
/// container pays.
pub(crate) fn reserve(fd: impl AsFd, offset: u64, bytes: u64) -> Result<()> {
    loop {
        match fallocate(&fd, FallocateFlags::KEEP_SIZE, offset, bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => {
                let code = match e {
                    Errno::NOSPC | Errno::NOMEM | Errno::DQUOT => Code::OutOfMemory,
                    _ => Code::Internal,
                };
                let remedy = "free memory, or raise the container's limit";
                return Err(os(code, remedy, format_args!("reserve {bytes} bytes of shared memory"), e));
            }
        }
    }
}

/// Gives the pages of a range back to the machine: they read zero afterwards.
pub(crate) fn punch(fd: impl AsFd, offset: u64, bytes: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)
        .map_err(|e| os(Code::Internal, "report this", format_args!("release {bytes} bytes of shared memory"), e))
}

/// Whether a memfd lies in huge pages.
pub(crate) fn in_huge_pages(fd: impl AsFd) -> bool {
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    fstatfs(fd).is_ok_and(|s| s.f_type == HUGETLBFS_MAGIC)
}

/// Whether nobody can resize the file. Only a memfd can say yes.
pub(crate) fn sealed(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok_and(|s| s.contains(SealFlags::SHRINK | SealFlags::GROW))
}
