//! Where a caller waits for replies: a private topic that it reads alone. A call that is waited for has one of its own,
//! which the next one uses again.

use std::sync::Arc;

use super::received::Received;
use super::record::{IS_ERROR, IS_PART, REPLY, malformed};
use crate::error::{Result, disagree};
use crate::holding::Opening;
use crate::lanes::{Reader, Sent, Start, TopicState, Topics};
use crate::shm::{GroupLane, Stands};
use crate::value::token_bytes;
use crate::wire::ops::TopicOpen;

/// Replies that a topic has room for, of each provider.
const DEPTH: u32 = 64;

/// A topic for replies.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) reader: Reader,
    pub(super) topic: Arc<TopicState>,
    pub(super) token: [u8; 16],
    /// The topic of the function that was called last: its provider has this one open for its replies.
    pub(super) of: u64,
    /// The number of the last call.
    last: u64,
    /// Calls that ended for the caller, and whose replies may still come.
    owed: u32,
    /// These calls.
    given_up: Vec<(GroupLane, u64)>,
    /// Of a call that takes parts: the number of the next.
    parts: Option<u32>,
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
        reader.quiet(true); // a provider has room
        let token = token_bytes(&topic.info.token).ok_or_else(|| disagree("a private topic came without a token"))?;
        Ok(Endpoint { reader, topic, token, of: 0, last: 0, owed: 0, given_up: Vec::new(), parts: None })
    }

    /// The number of another call.
    #[inline]
    pub(super) fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Takes parts of the next call, or none.
    pub(super) fn take_parts(&mut self, yes: bool) {
        self.reader.quiet(!yes); // one that sends them waits for room
        self.parts = yes.then_some(0);
    }

    /// Whether no reply of a call before is to come.
    pub(super) fn has_all_replies(&self) -> bool {
        self.owed == 0
    }

    /// Notes that the last call has ended here, and may be replied to.
    pub(super) fn abandon(&mut self, sent: &Sent) {
        self.owed += 1;
        self.given_up.push(sent.claim());
    }

    /// Whether all calls are over that ended here before their replies came: a look after this finds all replies that
    /// were sent.
    pub(super) fn owes_nothing_more(&self) -> bool {
        self.given_up.iter().all(|(claims, number)| matches!(claims.call(*number), Stands::Over(_)))
    }

    /// Lets go of the replies that have come, of a topic that no call has.
    pub(super) fn let_go(&mut self) {
        while self.owed > 0 {
            match self.poll() {
                // Of the last call.
                Ok(Some(received)) if received.head.flags & IS_PART == 0 => self.has_come(),
                Ok(Some(_)) => {}
                // What is no reply, or cannot be looked at now: the next look finds the others.
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn has_come(&mut self) {
        self.owed = self.owed.saturating_sub(1);
        if self.owed == 0 {
            self.given_up.clear();
        }
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
                if received.head.flags & IS_PART == 0 {
                    return Ok(Some(received));
                }
                match self.parts {
                    Some(_) if received.head.flags & IS_ERROR != 0 => return Err(malformed("a part that is an error")),
                    Some(next) if received.head.topic == next => {
                        self.parts = Some(next.wrapping_add(1)); // a provider has no more
                        return Ok(Some(received));
                    }
                    // Given again, by a provider that has begun the call anew.
                    Some(next) if received.head.topic < next => {}
                    Some(next) => {
                        return Err(malformed(&format!("part {} where part {next} is next", received.head.topic)));
                    }
                    None => {}
                }
                continue;
            }
            self.has_come();
        }
        Ok(None)
    }
}
