//! A file by which others see that this program runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::Advice;

use super::{Mapping, PerProcess};
use crate::error::{Code, Error, Result, os};

/// A memfd that only this program has mapped for writing. While the mapping lives the kernel refuses to seal
/// the file against writes. Exec ends the mapping, where a pidfd says nothing; closed descriptors, a stopped
/// program and children do not.
#[derive(Debug)]
struct Alive {
    file: OwnedFd,
    _map: Mapping,
}

static ALIVE: PerProcess<Alive> = PerProcess::new();

/// The file of this process, one for all its sessions.
pub(crate) fn alive() -> Result<BorrowedFd<'static>> {
    if let Some(alive) = ALIVE.get() {
        return Ok(alive.file.as_fd());
    }
    let made = make()?;
    Ok(ALIVE.get_or(|| made)?.file.as_fd())
}

/// The mapping while children that are made get it too.
#[derive(Debug)]
pub(crate) struct Lent(&'static Mapping);

/// Has children that are made from here on keep the file from being sealed, until each has called
/// [`leave`](Lent::leave), execs or ends. `None`: no session of this process has sent one.
pub(crate) fn lend() -> Option<Lent> {
    let map = &ALIVE.get()?._map;
    map.advise(Advice::LinuxDoFork, "give children a mapping").ok().map(|()| Lent(map))
}

impl Lent {
    /// In the process that lent it: children that are made from here on do not get it.
    pub(crate) fn take_back(self) {
        let _ = self.0.advise(Advice::LinuxDontFork, "keep a mapping from children"); // as it was before
    }

    /// In a child that got it.
    pub(crate) fn leave(self) {
        self.0.leave();
    }
}

fn make() -> Result<Alive> {
    let failed = |e| os(Code::TooMany, "raise the limit of open files", "make a memfd", e);
    let file = memfd_create("baton-alive", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
    let bytes = rustix::param::page_size();
    ftruncate(&file, bytes as u64).map_err(failed)?;
    let map = Mapping::shared(&file, bytes, true).map_err(|e| {
        Error::new(e.code(), "free memory of this machine, or raise the container's limit", e.message())
    })?;
    map.dont_fork()?;
    Ok(Alive { file, _map: map })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{SealFlags, fcntl_add_seals};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn it_cannot_be_sealed_while_it_is_mapped() {
        let Alive { file, _map } = make().unwrap();
        assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::BUSY));
        drop(_map);
        fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        assert_eq!(alive().unwrap().as_raw_fd(), alive().unwrap().as_raw_fd(), "one for all sessions");
    }
}
