//! The runtime directory, its lock, and programs that outlive us.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, lstat, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open, setsid};

use super::{LastLook, Waker, own_thread, wait_ready};
use crate::error::{Code, Error, Result, os};

const REMEDY: &str = "set XDG_RUNTIME_DIR to a directory that is yours alone";
const NOT_MADE: &str = "set XDG_RUNTIME_DIR to a directory that you may write, or leave it unset";

/// Makes a directory of mode 0700, or checks that the one that is there belongs to this user and
/// is writable by no other user.
pub(crate) fn check_private_dir(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let shown = path.display();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| os(Code::PermissionDenied, NOT_MADE, format_args!("make runtime directory {shown}"), e))?;
    let st = lstat(path)
        .map_err(|e| os(Code::PermissionDenied, REMEDY, format_args!("look at runtime directory {shown}"), e))?;
    let refused = if FileType::from_raw_mode(st.st_mode) != FileType::Directory {
        "is not a directory".to_owned()
    } else if st.st_uid != geteuid().as_raw() {
        format!("belongs to user {}", st.st_uid)
    } else if st.st_mode & 0o022 != 0 {
        format!("can be written by others (mode {:04o})", st.st_mode & 0o7777)
    } else {
        return Ok(());
    };
    Err(Error::new(Code::PermissionDenied, REMEDY, format!("runtime directory {shown} {refused}")))
}

/// A lock file. The kernel drops the lock with the last descriptor.
pub(crate) struct Lock {
    file: OwnedFd,
    path: PathBuf,
}

impl Lock {
    /// Opens or makes a lock file, mode 0600.
    pub(crate) fn open(path: &Path) -> Result<Lock> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        open(path, flags, Mode::from_raw_mode(0o600))
            .map(|file| Lock { file, path: path.to_owned() })
            .map_err(|e| os(Code::NoBroker, "check the runtime directory", format_args!("open {}", path.display()), e))
    }

    /// Takes the lock; false when another process has it.
    pub(crate) fn try_lock(&self) -> Result<bool> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
            Err(e) => {
                let remedy = "set XDG_RUNTIME_DIR to a folder where files can be locked";
                Err(os(Code::NoBroker, remedy, format_args!("lock {}", self.path.display()), e))
            }
        }
    }
}

/// Waits for the end of a child on a thread of this crate: it may outlive this process, or is reaped when it ends before
/// that. Without a thread it stays unreaped.
pub(crate) fn reap_later(mut child: Child) {
    let made = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
    let waits = made.and_then(|ended| Some((ended, Arc::new(Waker::new().ok()?))));
    let waker = waits.as_ref().map(|(_, waker)| waker.clone());
    let _ = own_thread("baton-reaper", waker.as_ref(), move |_| {
        if let Some((ended, waker)) = waits {
            let last = LastLook::new();
            while wait_ready(&ended, false, &waker, Some(last.look_before(None))).is_ok_and(|ready| !ready.readable) {}
        }
        let _ = child.wait();
    });
}

/// Makes a program a process session of its own, so that a terminal's end does not reach it.
pub(crate) fn detach(command: &mut Command) {
    // SAFETY: between fork and exec only setsid is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            Ok(())
        })
    };
}
