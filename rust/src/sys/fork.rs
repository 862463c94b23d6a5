//! Hearing of forks, and what parent and child tell each other meanwhile.

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{Code, Result, os};

type Hook = extern "C" fn();

unsafe extern "C" {
    fn pthread_atfork(prepare: Option<Hook>, parent: Option<Hook>, child: Option<Hook>) -> c_int;
}

/// Has hooks called at each fork that goes through the C library: before it, and after it on both
/// sides, by the thread that forks.
pub(crate) fn at_fork(prepare: Hook, parent: Hook, child: Hook) -> Result<()> {
    // SAFETY: the hooks are functions of this library; the C library forgets them when it unloads it.
    match unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        e => Err(os(Code::OutOfMemory, "free memory", "hear of forks", io::Error::from_raw_os_error(e))),
    }
}

/// A pipe: the end to read, the end to write.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Says a word into a pipe.
pub(crate) fn say(to: &OwnedFd) {
    let _ = rustix::io::write(to, &[1]);
}
