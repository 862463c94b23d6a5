//! What the records of the broker say of a provider that has a call, and what a reply says of an error.

use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::given::over;
use super::known::{Known, LENT};
use super::received::Received;
use super::record::IS_ERROR;
use crate::deadline::is_past;
use crate::error::{Code, Error, Result, of_kind};
use crate::holding::Opening;
use crate::layout::{broker_file, limits, session_record, topic_record};
use crate::memory::text;
use crate::shm::Stands;
use crate::sys;
use crate::value::Value;

/// Whether the process that has a call has ended, or all that could take it have.
pub(super) fn is_hopeless(inner: &Opening, known: &Known, stands: Stands) -> bool {
    match stands {
        Stands::Claimed(member) | Stands::Begun(member) => is_gone(inner, u32::from(member)),
        Stands::Over(_) => false,
        Stands::Open(_) => known.topic.reader_slots().all(|slot| is_gone(inner, slot)),
    }
}

/// Whether the process of the session of a slot has ended. One that cannot be looked at lives.
fn is_gone(inner: &Opening, slot: u32) -> bool {
    if slot >= limits::SESSIONS {
        return false;
    }
    let (broker, at) = (&inner.memory.files.broker, broker_file::session(slot));
    let own = broker_file::session(inner.memory.files.slot);
    // Numbers are those that the broker sees: it has to see this process as the process does.
    if broker.load32(own + session_record::PID) != std::process::id()
        || broker.load(own + session_record::PID_NS) != broker.load(at + session_record::PID_NS)
    {
        return false;
    }
    let (pid, began) = (broker.load32(at + session_record::PID) as i32, broker.load(at + session_record::START_TIME));
    if broker.load(at + session_record::SERIAL) == 0 || began == 0 {
        return false;
    }
    sys::has_ended(pid, began)
}

/// The name of the function that a topic is, as the broker's records say.
pub(super) fn name_of(inner: &Opening, topic_id: u64) -> String {
    let broker = &inner.memory.files.broker;
    let is = |i: &u32| broker.load(broker_file::topic(*i) + topic_record::ID) == topic_id;
    let mut all = 0..broker.load32(broker_file::TOPICS_END).min(limits::TOPICS);
    let Some(i) = all.find(is) else { return "a function that is gone".to_owned() };
    match text(broker, broker_file::topic(i) + topic_record::NAME, 256) {
        name if name.is_empty() => LENT.to_owned(),
        name => name,
    }
}

/// How long before the deadline an error is sent, at most, that is taken for one by it: clocks and stamps differ.
const ABOUT: Duration = Duration::from_millis(1);

/// Whether a reply was sent at about the deadline, or behind it.
fn is_sent_late(received: &Received, until: Option<Instant>) -> bool {
    let age = Duration::from_nanos(sys::monotonic().saturating_sub(received.message().stamp()));
    until.is_some_and(|u| Instant::now() + ABOUT >= u + age)
}

/// The error that a function has ended with. `until`: the call's deadline, by which calls within it end too.
#[cold]
fn failure(known: &Known, received: &Received, until: Option<Instant>) -> Error {
    let text = |name: &str| match received.named(name) {
        Ok(Some(Value::Text(s))) => s,
        _ => String::new(),
    };
    let (kind, message, trace) = (text("kind"), text("message"), text("trace"));
    let provider = received.message().sender().to_owned();
    if is_past(until) && (kind == "baton.Timeout" || is_sent_late(received, until)) {
        return known.late();
    }
    if kind == "baton.Closed" && known.topic.info.name.is_empty() {
        return over();
    }
    if kind == "baton.Cancelled" {
        let what = format!("{} was cancelled in {provider}: {message}", known.name());
        return Error::new(Code::Cancelled, "", what).with("function", known.name());
    }
    let what = format!("{} failed in {provider}: {}", known.name(), of_kind(&kind, &message));
    let e = Error::new(Code::Remote, "", what).with("function", known.name()).with("kind", kind);
    let e = e.with("message", message).with("trace", trace).with("provider", provider);
    let e = match received.named("cause") {
        Ok(Some(cause)) => e.with("cause", texts_of(&cause, MOST_CAUSES)),
        Ok(None) => e,
        Err(malformed) => return malformed,
    };
    e.into_registered()
}

/// A reply that is a result; else the error that it is. `until`: the call's deadline, which the function had as well.
#[inline]
pub(super) fn succeeded(known: &Known, received: Received, until: Option<Instant>) -> Result<Received> {
    if received.head.flags & IS_ERROR == 0 {
        return Ok(received);
    }
    Err(failure(known, &received, until))
}

/// Errors that led to each other, as a reply tells.
pub(super) const MOST_CAUSES: usize = 16;

/// The texts of a cause, with its own cause.
fn texts_of(cause: &Value, most: usize) -> Json {
    match cause {
        Value::Text(s) => s.as_str().into(),
        Value::Dict(items) if most > 0 => {
            let named = items.iter().filter_map(|(k, v)| match k {
                Value::Text(k) => Some((k.clone(), texts_of(v, most - 1))),
                _ => None,
            });
            Json::Object(named.collect())
        }
        _ => Json::Null,
    }
}

/// A cause that `texts_of` gives, with its traces or without.
pub(super) fn cause_of(texts: &Json, traces: bool, most: usize) -> Value {
    match texts {
        Json::String(s) => s.as_str().into(),
        Json::Object(all) if most > 0 => {
            let told = all.iter().filter(|(k, _)| traces || *k != "trace");
            Value::dict(told.map(|(k, v)| (k.as_str(), cause_of(v, traces, most - 1))))
        }
        _ => Value::Null,
    }
}
