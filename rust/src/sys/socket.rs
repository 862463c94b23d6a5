//! The control socket: bytes and descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};

/// SCM_MAX_FD of the kernel: no message carries more.
const MOST_FDS: usize = 253;

/// Connects to a Unix stream socket; a listener whose queue stays full until the time has come is
/// `WouldBlock`.
pub(crate) fn connect(path: &Path, until: Option<Instant>) -> io::Result<OwnedFd> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // No time at all would mean no timeout.
    let left = until.map(|u| u.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
    set_socket_timeout(&fd, Timeout::Send, left)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&fd, &address) {
            Ok(()) => return Ok(fd), // what is sent later does not wait
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether it failed because no more files may be open.
pub(crate) fn is_no_descriptors(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE))
}

/// Sends what the socket has room for, without waiting; the descriptors travel with the first byte. The
/// number of bytes sent, 0 where there is no room.
pub(crate) fn send_some(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(n) => return Ok(n),
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives what bytes there are (`WouldBlock`: none), 0 at the end, and appends the descriptors that came with them, and `None` behind
/// them where this process could have no more files open.
pub(crate) fn receive(socket: impl AsFd, into: &mut [u8], fds: &mut Vec<Option<OwnedFd>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(
            &socket,
            &mut [IoSliceMut::new(into)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        ) {
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

/// Wakes a thread that waits in [`wait_ready`], or polls its descriptor.
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

/// What [`wait_ready`] found.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// Waits until the socket can be read, or the waker was used, or, where that is wanted, the socket has room, or a
/// time has come.
pub(crate) fn wait_ready(socket: impl AsFd, room: bool, waker: &Waker, until: Option<Instant>) -> io::Result<Ready> {
    let wanted = if room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds = [PollFd::new(&socket, wanted), PollFd::new(&waker.0, PollFlags::IN)];
    let left = || {
        let left = until?.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    };
    while let Err(e) = poll(&mut fds, left().as_ref()) {
        if e != Errno::INTR {
            return Err(e.into());
        }
    }
    if !fds[1].revents().is_empty() {
        waker.clear();
    }
    let found = fds[0].revents();
    Ok(Ready { readable: !(found - PollFlags::OUT).is_empty(), writable: found.contains(PollFlags::OUT) })
}
