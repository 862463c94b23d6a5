//! What answers calls: of a function that is provided, and of those that were given with a call.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::arguments::{Arguments, give_back};
use super::call::{Answering, Call, Outer};
use super::convert::refused;
use super::fate::{MOST_CAUSES, cause_of};
use super::given::SessionCalls;
use super::places::Places;
use super::received::{Received, head_of};
use super::record::{Head, IS_ERROR, IS_PART, Link, REPLY, REQUEST, Record, TAKES_PARTS, twice};
use super::replies::{ALL, Replies};
use super::signature::Signature;
use crate::crash_point;
use crate::deadline::for_a_moment;
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::{CanBegin, Claimed, Counts, FunctionRecord, Message, TopicState};
use crate::panics::caught;
use crate::sys;
use crate::value::Value;
use crate::waits::{Enclosing, enclosed};

/// The variable with which traces of errors stay in this process. A mistyped value does so too: what was told cannot
/// be taken back.
const KEEP_TRACES: &str = "BATON_NO_REMOTE_TRACES";

/// Answers the calls that come by one topic.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) topic: Arc<TopicState>,
    /// The functions of the session, for those that come as arguments. What has it has these.
    pub(super) calls: Weak<dyn SessionCalls>,
    pub(super) signature: Signature,
    pub(super) replies: Replies,
    /// Of a function that gives parts: those of its calls that run.
    pub(super) places: Option<Places>,
    link: Link,
    record: FunctionRecord,
    /// What this process says of its calls; of a provided function alone.
    counts: Option<Counts>,
    /// Whether the environment keeps traces of errors in this process.
    keeps_traces: bool,
}

impl Answers {
    pub(super) fn new(
        topic: &Arc<TopicState>,
        calls: Weak<dyn SessionCalls>,
        signature: Signature,
        places: Option<Places>,
        counts: Option<Counts>,
    ) -> Answers {
        let link = Link { topic_id: topic.info.id, slot: topic.inner.memory.files.slot };
        let keeps_traces =
            std::env::var_os(KEEP_TRACES).is_some_and(|v| !["", "0", "false"].contains(&&*v.to_string_lossy()));
        let (topic, record) = (topic.clone(), FunctionRecord::of(topic));
        Answers { topic, calls, signature, replies: Replies::default(), places, link, record, counts, keeps_traces }
    }

    pub(super) fn inner(&self) -> &Arc<Opening> {
        &self.topic.inner
    }

    /// Begins a call, unless it is over, or the place of its reply cannot be opened.
    pub(super) fn begin(&self, message: Message, claimed: Claimed) -> Option<(Received, Call)> {
        let received = request_of(message)?;
        let place = match self.place(&claimed, &received.head, None) {
            Ok(place) => place,
            Err(e) => {
                self.has_no_place(&claimed, &received.head, &e);
                return None;
            }
        };
        self.begin_at(received, claimed, place, None)
    }

    /// Counts a call that ends without a reply, which is an error of its caller's.
    #[cold]
    pub(super) fn has_no_place(&self, claimed: &Claimed, head: &Head, e: &Error) {
        if let Some(counts) = &self.counts
            && !claimed.is_cancelled()
            && !head.is_late(sys::monotonic())
        {
            counts.ran(0);
            counts.failed();
            self.unreplied(claimed, e);
        }
    }

    /// Notes for the caller of a call why it ends without a reply, where memory lacks for one.
    #[cold]
    fn unreplied(&self, claimed: &Claimed, e: &Error) {
        if let Some(counts) = &self.counts
            && matches!(e.code(), Code::OutOfMemory | Code::QuotaExceeded | Code::TooMany)
        {
            let (lane, message) = claimed.place();
            counts.no_reply(lane, message);
        }
    }

    /// As `begin`, of one whose reply has a place.
    pub(super) fn begin_at(
        &self,
        received: Received,
        claimed: Claimed,
        place: Arc<TopicState>,
        served: Option<Arc<dyn Enclosing>>,
    ) -> Option<(Received, Call)> {
        let head = received.head;
        let began = sys::monotonic();
        let (chain, link, outer) = (received.chain(), self.link, OnceLock::new());
        let mut call = Call { claimed, head, place, chain, link, began, lent_in: None, served, outer };
        if head.is_late(began) || call.cancelled() || !call.claimed.begin() {
            return None;
        }
        if let Some(counts) = &self.counts {
            let (lane, message) = call.claimed.place();
            counts.begins(lane, message, began);
        }
        let refused = match (head.flags & TAKES_PARTS != 0) == self.signature.parts {
            true => match received.record().ok().and_then(Record::given_twice) {
                None => return Some((received, call)),
                Some(name) => twice(name),
            },
            false => of_parts(self.signature.parts),
        };
        self.finish(&mut call, Err(refused));
        None
    }

    /// Where the caller of a request waits: after it is opened a reply needs no broker. While none answers it is tried for
    /// as long as the caller waits, and what the thread waits for that serves the call.
    #[inline]
    pub(super) fn place(
        &self,
        claimed: &Claimed,
        head: &Head,
        served: Option<&Arc<dyn Enclosing>>,
    ) -> Result<Arc<TopicState>> {
        match self.replies.known(head) {
            Some(place) => Ok(place),
            None => {
                let within = Answering::of(Outer::claimed(claimed, head), served);
                self.answering(within, || self.replies.open(self.inner(), head))
            }
        }
    }

    /// Says of a call that is not taken yet whether its reply has a place, which is opened with a broker alone. What is no
    /// request is over when it is taken.
    pub(super) fn can_begin(self: Arc<Self>) -> Box<CanBegin> {
        Box::new(move |call| head_of(call).is_none_or(|head| self.replies.known(&head).is_some()))
    }

    /// Carries out what answers a call, until a broker answers, or the call is over.
    #[cold]
    fn answering<T>(&self, within: Arc<dyn Enclosing>, mut part: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match enclosed(Some(within.clone()), &mut part) {
                Err(e) if e.may_pass() && !self.inner().is_closed() && within.check().is_ok() => {}
                done => return done,
            }
        }
    }

    /// As `answering`, of what mostly needs no broker.
    #[inline]
    fn sending<T>(&self, call: &Call, mut part: impl FnMut() -> Result<T>) -> Result<T> {
        if call.served.is_none() {
            match for_a_moment(None, &mut part) {
                Err(e) if e.may_pass() && !self.inner().is_closed() => call.check()?,
                done => return done,
            }
        }
        self.answering(call.answering(), part)
    }

    /// Replies, and ends the call. In the child of a fork, in which a function of its parent has returned, there is
    /// nothing to be done: the call is the parent's, and the pages in which its time is counted are not here.
    pub(super) fn finish(&self, call: &mut Call, outcome: Result<Arguments>) {
        if !call.is_here() {
            return;
        }
        crash_point::at("call-ran");
        if let Some(counts) = &self.counts {
            counts.ran(sys::monotonic() - call.began);
        }
        call.returned();
        let replied = self.reply(call, outcome);
        crash_point::at("call-replied");
        call.end(replied);
    }

    /// Sends a reply. Whether its caller has it.
    fn reply(&self, call: &Call, outcome: Result<Arguments>) -> bool {
        if call.claimed.is_deserted() || !call.is_here() {
            return false;
        }
        let unwanted = match outcome {
            _ if call.claimed.is_cancelled() => {
                Err(Error::new(Code::Cancelled, "", "the caller wants the call no more"))
            }
            Ok(_) => call.check_time(), // what comes after the deadline is no result
            Err(_) => Ok(()),
        };
        if let Err(e) = unwanted {
            return self.send_error(call, error_of(&e, false));
        }
        let failed = match outcome {
            Ok(reply) => match self.send(call, reply, 0) {
                Err(e) if is_of_value(&e) => e,
                sent => return sent.unwrap_or(false),
            },
            Err(e) => e,
        };
        if let Some(counts) = &self.counts {
            counts.failed();
        }
        let traces = !self.keeps_traces && !self.record.keeps_traces();
        self.send_error(call, error_of(&failed, traces))
    }

    /// Sends an error as a reply. Whether its caller has it.
    fn send_error(&self, call: &Call, error: Arguments) -> bool {
        self.send(call, error, IS_ERROR).unwrap_or_else(|e| {
            self.unreplied(&call.claimed, &e);
            false
        })
    }

    /// Sends a reply, for as long as its caller waits where a broker has to be asked and none answers.
    fn send(&self, call: &Call, mut reply: Arguments, flags: u32) -> Result<bool> {
        let head = Head { kind: REPLY, flags, call: call.head.call, time: call.began, ..Head::default() };
        let mut made = || reply.payload(&head, [].into_iter(), &mut |_| Err(of_result()));
        let mut payload = match &call.served {
            Some(_) => enclosed(Some(call.answering()), made),
            None => made(),
        }?;
        let sent = self.sending(call, || self.replies.send(&call.place, &mut payload, ALL));
        give_back(&mut payload);
        sent
    }

    /// Writes a part, to be sent.
    pub(super) fn part(&self, call: &Call, progress: &Progress, mut part: Arguments) -> Result<Part> {
        if !call.is_here() {
            return Err(Error::closed_here("the call"));
        }
        call.check()?;
        let number = progress.0.load(Ordering::Relaxed);
        if number == u32::MAX {
            return Err(Error::new(
                Code::TooMany,
                "end the function",
                "a call gives no more parts than 32 bits number",
            ));
        }
        let head = Head {
            kind: REPLY,
            flags: IS_PART,
            call: call.head.call,
            time: call.began,
            topic: number,
            ..Head::default()
        };
        part.payload(&head, [].into_iter(), &mut |_| Err(of_result())).map(Part)
    }

    /// Sends a part, if its caller has taken enough of those before; whether it did.
    pub(super) fn try_part(&self, call: &Call, progress: &Progress, part: &mut Part) -> Result<bool> {
        call.check()?;
        let most = call.head.window.min(ALL - 1);
        match self.sending(call, || self.replies.send(&call.place, &mut part.0, most)) {
            Err(e) if e.is_end() && !self.inner().is_closed() => {
                Err(Error::new(Code::Cancelled, "end the function", "the caller has gone"))
            }
            Err(e) if e.may_pass() => Err(call.check().err().unwrap_or(e)),
            Ok(true) => {
                progress.0.fetch_add(1, Ordering::Relaxed); // one thread at a time sends parts of a call
                give_back(&mut part.0);
                crash_point::at("part-sent");
                Ok(true)
            }
            sent => sent,
        }
    }

    /// Sends a part, waiting until its caller has taken enough of those before. Others have the place of the call
    /// meanwhile, where `relieve` says that there is a thread that could take them.
    pub(super) fn send_part(
        &self,
        call: &Call,
        progress: &Progress,
        part: Arguments,
        relieve: impl Fn() -> bool,
    ) -> Result<()> {
        let mut part = self.part(call, progress, part)?;
        while !self.try_part(call, progress, &mut part)? {
            crash_point::at("part-waiting");
            let places = self.places.as_ref().filter(|_| relieve());
            if let Some(places) = places {
                places.give(self.inner());
            }
            let wait = || self.replies.wait(&call.place, call.head.window, call.deadline(), || call.cancelled());
            let waited = call.in_chain(wait);
            if let Some(places) = places {
                places.take(self.inner());
            }
            waited?;
        }
        Ok(())
    }

    /// Runs a function for a call, whose panic is an error of it.
    pub(super) fn run<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        caught(run).unwrap_or_else(|text| Err(Error::of_kind("panic", text)))
    }
}

/// What a message asks for; of one that is no request its caller has broken the protocol: the call is over.
pub(super) fn request_of(message: Message) -> Option<Received> {
    Received::of(message).ok().filter(|r| r.head.kind == REQUEST)
}

/// A part that is to be sent.
pub(super) struct Part(crate::value::Payload);

/// How many parts of a call were sent.
#[derive(Debug, Default)]
pub(super) struct Progress(AtomicU32);

/// The error of a call that takes parts of a function that gives none, or the other way round.
#[cold]
pub(super) fn of_parts(gives: bool) -> Error {
    refused(match gives {
        true => "the function gives parts: call it by stream".to_owned(),
        false => "the function gives no parts: call it without stream".to_owned(),
    })
}

#[cold]
fn of_result() -> Error {
    Error::new(
        Code::InvalidArgument,
        "register it, and return it by its name",
        "a result has a function that is not registered",
    )
}

/// Whether an error says that a value cannot be sent: it is an error of the function.
fn is_of_value(e: &Error) -> bool {
    use Code::{Expired, InvalidArgument, OutOfMemory, QuotaExceeded, TooMany};
    matches!(e.code(), InvalidArgument | Expired | OutOfMemory | QuotaExceeded | TooMany)
}

/// The reply that an error is, with its traces or without.
fn error_of(e: &Error, traces: bool) -> Arguments {
    let text = |key: &str| e.detail().get(key).and_then(serde_json::Value::as_str);
    let of_another = e.code() == Code::Remote;
    let kind = text("kind").filter(|_| of_another).map_or_else(|| format!("baton.{}", e.code()), str::to_owned);
    let message = text("message").filter(|_| of_another).map_or_else(|| e.to_string(), str::to_owned);
    let trace = text("trace").filter(|_| traces).unwrap_or_default();
    let mut reply = Arguments::new();
    for (name, v) in [("kind", kind), ("message", message), ("trace", trace.to_owned())] {
        reply.put(name, shortened(v).into());
    }
    if let Some(cause) = e.detail().get("cause").filter(|c| c.is_object()) {
        reply.put("cause", cause_of(cause, traces, MOST_CAUSES));
    }
    reply
}

/// What is sent of a text of an error: a longer one says no more. Python's are a little longer than 64 KiB, since it
/// leaves out what stands between the first and the last of a trace.
fn shortened(mut text: String) -> String {
    const MOST: usize = 96 << 10;
    if text.len() > MOST {
        let end = (0..=MOST).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// What a handler returns, as a reply.
pub(super) fn reply_of(value: impl Into<Value>) -> Arguments {
    Arguments::new().arg(value)
}
