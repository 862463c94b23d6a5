//! Frames: a head of 8 bytes, then JSON. Descriptors are queued as they come, and each frame is given
//! its count.

use std::os::fd::OwnedFd;

use crate::error::{Code, Error, Result};
use crate::layout::{frame_head as head, limits};
use crate::sys;

/// A frame's JSON and descriptors; `None` in their place where they came while this process could have no
/// more files open.
pub(crate) type Frame = (Vec<u8>, Option<Vec<OwnedFd>>);

/// The receiving half of a connection. Descriptors that were not taken are closed with it.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buf: Vec<u8>,
    from: usize,
    /// Where some were lost, `None` stands behind those that came with them.
    fds: Vec<Option<OwnedFd>>,
}

/// What ends a connection: its end, or what is not a frame.
fn broken(what: impl Into<String>) -> Error {
    Error::new(Code::Protocol, "stop the broker and start one of this client's version", what)
}

impl Frames {
    /// The next whole frame that has been received.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>> {
        let src = &self.buf[self.from..];
        if src.len() < head::SIZE as usize {
            return Ok(None);
        }
        let n = u32::from_le_bytes([src[0], src[1], src[2], src[3]]) as usize;
        let fds = usize::from(u16::from_le_bytes([src[4], src[5]]));
        let zero = u16::from_le_bytes([src[6], src[7]]);
        if !(2..=limits::FRAME).contains(&n) || fds > limits::FRAME_FDS || zero != 0 {
            return Err(broken(format!("a control frame announces {n} bytes and {fds} descriptors")));
        }
        let end = head::SIZE as usize + n;
        if src.len() < end {
            return Ok(None);
        }
        let lost = self.fds.iter().take(fds).position(Option::is_none);
        if lost.is_none() && fds > self.fds.len() {
            return Err(broken(format!("a control frame announces {fds} descriptors, {} came", self.fds.len())));
        }
        let json = src[head::SIZE as usize..end].to_vec();
        self.from += end;
        if self.from == self.buf.len() {
            self.buf.clear();
            self.from = 0;
        }
        // Those that came of a frame that lacks one are closed.
        let came = self.fds.drain(..lost.map_or(fds, |at| at + 1)).flatten().collect();
        Ok(Some((json, lost.is_none().then_some(came))))
    }

    /// Receives what bytes there are; false at the connection's end.
    pub(crate) fn receive(&mut self, socket: &OwnedFd) -> Result<bool> {
        if self.from > 0 {
            self.buf.drain(..self.from);
            self.from = 0;
        }
        let at = self.buf.len();
        self.buf.resize(at + (16 << 10), 0);
        let got = sys::receive(socket, &mut self.buf[at..], &mut self.fds);
        self.buf.truncate(at + *got.as_ref().unwrap_or(&0));
        if self.fds.len() > 4 * limits::FRAME_FDS {
            return Err(broken(format!("{} descriptors came that no frame announces", self.fds.len())));
        }
        match got {
            Ok(0) if !self.buf.is_empty() => Err(broken("the connection ended inside a frame")),
            Ok(n) => Ok(n > 0),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(true),
            Err(e) => Err(Error::new(Code::BrokerLost, "try again", format!("receive from the broker: {e}"))),
        }
    }
}

/// One frame, whose descriptors, so many, travel with its first byte.
pub(super) fn encode(json: &[u8], fds: usize) -> Result<Vec<u8>> {
    if json.len() > limits::FRAME || fds > limits::FRAME_FDS {
        return Err(Error::new(
            Code::InvalidArgument,
            "split the request",
            format!("a message of {} bytes and {fds} descriptors is too large", json.len()),
        ));
    }
    let mut frame = Vec::with_capacity(head::SIZE as usize + json.len());
    frame.extend((json.len() as u32).to_le_bytes());
    frame.extend((fds as u16).to_le_bytes());
    frame.extend([0, 0]);
    frame.extend(json);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        (a.into(), b.into())
    }

    fn send(socket: &OwnedFd, json: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let frame = encode(json, fds.len())?;
        assert_eq!(sys::send_some(socket, &frame, fds).unwrap(), frame.len());
        Ok(())
    }

    #[test]
    fn frames_and_their_descriptors_arrive_in_order() {
        let (a, b) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(&a, b"{\"n\":1}", &[]).unwrap();
        send(&a, b"{\"n\":2}", &[file.as_fd(), file.as_fd()]).unwrap();
        send(&a, b"{\"n\":3}", &[file.as_fd()]).unwrap();
        drop(a);
        let (mut frames, mut got) = (Frames::default(), Vec::new());
        while frames.receive(&b).unwrap() {
            while let Some((json, fds)) = frames.next().unwrap() {
                got.push((String::from_utf8(json).unwrap(), fds.unwrap().len()));
            }
        }
        let want = [("{\"n\":1}", 0), ("{\"n\":2}", 2), ("{\"n\":3}", 1)];
        assert_eq!(got, want.map(|(s, n)| (s.to_owned(), n)));
    }

    #[test]
    fn a_frame_lacks_descriptors_that_were_lost_and_the_next_has_its_own() {
        let file = || Some(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let buf = [&b"\x02\0\0\0\x03\0\0\0{}"[..], b"\x02\0\0\0\x01\0\0\0[]"].concat();
        let mut f = Frames { buf, fds: vec![file(), None, file()], ..Default::default() };
        assert!(matches!(f.next().unwrap(), Some((json, None)) if json == b"{}"));
        assert!(matches!(f.next().unwrap(), Some((json, Some(fds))) if json == b"[]" && fds.len() == 1));
        assert!(f.next().unwrap().is_none());
    }

    #[test]
    fn what_is_not_a_frame_is_refused() {
        for head in
            [[1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0], [2, 0, 0, 0, 65, 0, 0, 0], [2, 0, 0, 0, 0, 0, 1, 0]]
        {
            let mut f = Frames { buf: head.to_vec(), ..Default::default() };
            assert!(f.next().is_err(), "{head:?}");
        }
        let mut f = Frames { buf: b"\x02\0\0\0\x01\0\0\0{}".to_vec(), ..Default::default() };
        assert!(f.next().is_err(), "a descriptor that did not come");
    }
}
