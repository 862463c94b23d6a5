//! Descriptors that a program may close behind the library's back.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that is closed only where it still is that of the file which it was made of: a program that
/// becomes a daemon closes all of them, and what it opens then has their numbers.
#[derive(Debug)]
pub(crate) struct CheckedFd {
    fd: ManuallyDrop<OwnedFd>,
    /// Device and inode; `None`: not known.
    file: Option<(u64, u64)>,
}

fn file_of(fd: &OwnedFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|s| (s.st_dev, s.st_ino))
}

impl CheckedFd {
    pub(crate) fn new(fd: OwnedFd) -> CheckedFd {
        CheckedFd { file: file_of(&fd), fd: ManuallyDrop::new(fd) }
    }
}

impl Drop for CheckedFd {
    fn drop(&mut self) {
        if self.file.is_some() && file_of(&self.fd) == self.file {
            // SAFETY: nothing uses the descriptor after this.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl Deref for CheckedFd {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}

impl AsFd for CheckedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn it_is_closed_with_its_last_user() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        drop(CheckedFd::new(ours.into()));
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_a_program_has_opened_at_its_number_stays_open() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (other, mut end) = UnixStream::pair().unwrap();
        let checked = CheckedFd::new(ours.into());
        rustix::io::dup2(&other, &mut ManuallyDrop::new(raw(&checked))).unwrap();
        drop(other);
        let number = raw(&checked);
        drop(checked);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0); // closed by dup2
        end.write_all(&[7]).unwrap();
        let mut word = [0];
        UnixStream::from(number).read_exact(&mut word).unwrap();
        assert_eq!(word, [7]);
    }

    /// The program's own view of the number.
    fn raw(checked: &CheckedFd) -> OwnedFd {
        // SAFETY: of the two that name it, one alone closes the descriptor.
        unsafe { OwnedFd::from_raw_fd(checked.as_raw_fd()) }
    }
}
