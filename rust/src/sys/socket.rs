//! The control socket: bytes and descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};

/// SCM_MAX_FD of the kernel: no message carries more.
const MOST_FDS: usize = 253;

/// Connects to a Unix stream socket.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let fd = stream()?;
    connect_to(&fd, path)?;
    Ok(fd)
}

/// As [`connect`]; a listener whose queue stays full until the time has come is `WouldBlock`.
pub(crate) fn connect_by(path: &Path, until: Instant) -> io::Result<OwnedFd> {
    let fd = stream()?;
    // No time at all would mean for ever.
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    set_socket_timeout(&fd, Timeout::Send, Some(left))?;
    connect_to(&fd, path)?;
    set_socket_timeout(&fd, Timeout::Send, None)?;
    Ok(fd)
}

fn stream() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

fn connect_to(fd: &OwnedFd, path: &Path) -> io::Result<()> {
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(fd, &address) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether it failed because no more files may be open.
pub(crate) fn is_no_descriptors(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE))
}

/// Sends all bytes; the descriptors travel with the first.
pub(crate) fn send(socket: impl AsFd, mut bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    while !bytes.is_empty() {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(n) => {
                bytes = &bytes[n..];
                control.clear();
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Receives some bytes, 0 at the end, and appends the descriptors that came with them, and `None` behind
/// them where this process could have no more files open.
pub(crate) fn receive(socket: impl AsFd, into: &mut [u8], fds: &mut Vec<Option<OwnedFd>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(m) => break m,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights.map(Some));
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        fds.push(None);
    }
    Ok(got.bytes)
}

/// Wakes a thread that waits in [`wait_readable`], or polls its descriptor.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// What becomes readable.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// Waits until the socket can be read (true) or the waker was used (false).
pub(crate) fn wait_readable(socket: impl AsFd, waker: &Waker) -> io::Result<bool> {
    loop {
        let mut fds = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&waker.0, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if !fds[0].revents().is_empty() {
            return Ok(true);
        }
        if !fds[1].revents().is_empty() {
            waker.clear();
            return Ok(false);
        }
    }
}
