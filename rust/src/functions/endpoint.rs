//! Where a caller waits for replies: a private topic that it reads alone. A call that is waited for has one of its own,
//! which the next one uses again.

use std::sync::Arc;

use super::args::Received;
use super::record::REPLY;
use crate::error::{Result, disagree};
use crate::holding::Opening;
use crate::lanes::{Reader, Start, TopicState, Topics};
use crate::wire::ops::TopicOpen;

/// Replies that a topic has room for, of each provider.
const DEPTH: u32 = 64;

/// A topic for replies.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) reader: Reader,
    pub(super) topic: Arc<TopicState>,
    pub(super) token: [u8; 16],
    /// The number of the last call.
    last: u64,
    /// Calls that ended for the caller, and whose replies may still come.
    owed: u32,
}

impl Endpoint {
    pub(super) fn new(inner: &Arc<Opening>) -> Result<Endpoint> {
        let open = TopicOpen {
            kind: "topic",
            depth: Some(DEPTH),
            overwrite: Some(false),
            linger: Some(0.0),
            create: true,
            ..TopicOpen::default()
        };
        let topic = Topics::open(inner, "topic.open", &open)?;
        let mut reader = Reader::new(topic.clone(), Start::New, None)?;
        reader.quiet(); // a provider has room
        let token = bytes_of(&topic.info.token).ok_or_else(|| disagree("a private topic came without a token"))?;
        Ok(Endpoint { reader, topic, token, last: 0, owed: 0 })
    }

    /// The number of another call.
    #[inline]
    pub(super) fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Notes that the last call has ended here, and may be replied to.
    pub(super) fn abandon(&mut self) {
        self.owed += 1;
    }

    /// Whether another call's reply has room beside those that are owed.
    pub(super) fn is_fit(&self) -> bool {
        self.owed < DEPTH - 1 && !self.topic.inner.is_closed() && !self.topic.is_closed()
    }

    /// The reply of the last call, if it has come. Replies of calls that have ended are let go, and so is what is no
    /// reply; but one of the last call that cannot be read is an error.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<Option<Received>> {
        while let Some(message) = self.reader.poll()? {
            let received = Received::of(message)?;
            if received.head.kind != REPLY {
                continue;
            }
            if received.head.call == self.last {
                return Ok(Some(received));
            }
            self.owed = self.owed.saturating_sub(1);
        }
        Ok(None)
    }
}

/// The bytes of a token.
fn bytes_of(token: &str) -> Option<[u8; 16]> {
    if token.len() != 32 || !token.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = u8::from_str_radix(&token[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::bytes_of;

    #[test]
    fn a_token_is_of_sixteen_bytes() {
        assert_eq!(bytes_of("000102030405060708090a0b0c0d0eff").map(|b| (b[1], b[15])), Some((1, 255)));
        for odd in ["", "00", "0001020304050607 8090a0b0c0d0eff", "zz0102030405060708090a0b0c0d0eff"] {
            assert_eq!(bytes_of(odd), None, "{odd}");
        }
    }
}
