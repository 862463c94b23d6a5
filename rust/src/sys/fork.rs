//! Being notified of forks, and what parent and child tell each other meanwhile.

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::readable_by;
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
        e => Err(os(
            Code::OutOfMemory,
            "free memory of this machine, or raise the container's limit",
            "install a fork handler",
            io::Error::from_raw_os_error(e),
        )),
    }
}

/// A pipe: the end to read, the end to write. Neither is ever waited for by what reads or writes.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// Says some words into a pipe, as far as there is room for them.
pub(crate) fn say(to: &OwnedFd, words: &[u8]) {
    let _ = rustix::io::write(to, words);
}

/// Reads `n` words from a pipe, or fewer: those that were said until a time, or until nothing is left that
/// could say more.
pub(crate) fn hear(from: &OwnedFd, n: usize, until: Instant) -> Vec<u8> {
    let mut words = vec![0; n];
    let mut heard = 0;
    while heard < n && readable_by(from, until).unwrap_or(false) {
        match rustix::io::read(from, &mut words[heard..]) {
            Ok(0) => break,
            Ok(more) => heard += more,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => break,
        }
    }
    words.truncate(heard);
    words
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_said_is_heard_and_no_more_is_waited_for_than_may_come() {
        let (from, to) = pipe().unwrap();
        let long = Instant::now() + Duration::from_secs(60);
        say(&to, &[1, 2]);
        assert_eq!(hear(&from, 2, long), [1, 2]);
        say(&to, &[3]);
        assert_eq!(hear(&from, 2, Instant::now()), [3]);
        say(&to, &[4]);
        drop(to);
        assert_eq!(hear(&from, 2, long), [4]);
    }
}
