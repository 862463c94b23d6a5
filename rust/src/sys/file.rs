//! Shared files: their size, and the reservation of their pages.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs,
    memfd_create,
};
use rustix::io::{Errno, pread, write};

use crate::error::{Code, Result, os};

/// Bytes of a file, as the kernel says.
pub(crate) fn size_of(fd: &OwnedFd) -> Result<u64> {
    match fstat(fd) {
        Ok(s) => Ok(s.st_size as u64),
        Err(e) => Err(os(
            Code::Internal,
            "report this with the broker's log, see docs/support.md",
            "look at a shared file",
            e,
        )),
    }
}

/// Opens a file for reading, and waits for nothing, as for the writer of a pipe.
pub(crate) fn open_at_once(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// Opens a regular file to append to it, or makes it, mode 0600; `None` where something else stands there, which is not
/// waited for.
pub(crate) fn open_append(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    match File::options().create(true).append(true).mode(0o600).custom_flags(flags).open(path) {
        Ok(file) => Ok(file.metadata()?.is_file().then_some(file)),
        // A pipe that nothing reads, or a socket; a directory.
        Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::IsADirectory => Ok(None),
        Err(e) => Err(e),
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
                let remedy =
                    "free memory, raise the container's limit, or make room in the broker's --memory-dir if it has one";
                return Err(os(code, remedy, format_args!("reserve {bytes} bytes of shared memory"), e));
            }
        }
    }
}

/// Gives the pages of a range back to the machine: they read zero afterwards.
pub(crate) fn punch(fd: impl AsFd, offset: u64, bytes: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes).map_err(|e| {
        os(
            Code::Internal,
            "report this with the broker's log, see docs/support.md",
            format_args!("release {bytes} bytes of shared memory"),
            e,
        )
    })
}

/// Whether a memfd lies in huge pages.
pub(crate) fn in_huge_pages(fd: impl AsFd) -> bool {
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    fstatfs(fd).is_ok_and(|s| s.f_type == HUGETLBFS_MAGIC)
}

/// Whether the file can no longer be resized. Only a memfd can say yes.
pub(crate) fn sealed(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok_and(|s| s.contains(SealFlags::SHRINK | SealFlags::GROW))
}

/// A memfd with these bytes, which cannot change any more.
pub(crate) fn sealed_bytes(name: &str, bytes: &[u8]) -> Result<OwnedFd> {
    let failed = |e| os(Code::OutOfMemory, "raise the limit of open files", "make a memfd", e);
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
    match write(&fd, bytes) {
        Ok(n) if n == bytes.len() => {}
        Ok(_) => return Err(failed(Errno::NOSPC)),
        Err(e) => return Err(failed(e)),
    }
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL).map_err(failed)?;
    Ok(fd)
}

/// Reads the first bytes of a file; false when it has fewer.
pub(crate) fn read_at(fd: impl AsFd, to: &mut [u8]) -> bool {
    let n = to.len();
    pread(fd, to, 0).is_ok_and(|got| got == n)
}
