//! Hearing of forks, and what parent and child tell each other meanwhile.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
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

/// Waits until a descriptor can be read, or its other end is gone; false when the time has come.
pub(crate) fn readable_by(fd: impl AsFd, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
