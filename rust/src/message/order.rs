//! When the bytes of a message on a device are written.

use super::refs::bad;
use crate::error::Result;
use crate::layout::{STREAM_POISON, limits, order};

/// A stream of the sender's, by number, and the value that it writes after the bytes of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) stream: u32,
    pub(crate) ready: u64,
}

const _: () = assert!(order::SIZE == 16 && order::READY == 8);

impl Order {
    /// Words that it takes, behind the refs.
    pub(crate) const WORDS: usize = (order::SIZE / 8) as usize;

    /// The wire form as words.
    pub(crate) fn words(self) -> [u64; Order::WORDS] {
        [u64::from(self.stream), self.ready]
    }

    /// Reads words that a sender wrote; numbers that name no stream or value are refused.
    pub(crate) fn of(words: [u64; Order::WORDS]) -> Result<Order> {
        let [stream, ready] = words;
        match u32::try_from(stream) {
            Ok(n @ 1..=limits::STREAMS) if (1..STREAM_POISON).contains(&ready) => Ok(Order { stream: n, ready }),
            _ => Err(bad(format!("invalid stream {stream} or value {ready} in a message's order"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn an_order_reads_as_it_was_written_and_what_names_no_stream_is_refused() {
        for (stream, ready) in [(1, 1), (256, STREAM_POISON - 1)] {
            assert_eq!(Order::of([u64::from(stream), ready]).unwrap(), Order { stream, ready });
        }
        for words in [[0, 1], [257, 1], [1 << 32 | 1, 1], [1, 0], [1, STREAM_POISON], [1, u64::MAX]] {
            assert_eq!(Order::of(words).unwrap_err().code(), Code::Protocol, "{words:?}");
        }
    }
}
