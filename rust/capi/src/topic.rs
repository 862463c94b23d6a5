//! Topics.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use baton::{Topic, TopicOptions};

use crate::error::{Outcome, answer, refused, refused_for, run};
use crate::grown::{grown, grows};
use crate::payload::{baton_payload, payload};
use crate::status::baton_status;
use crate::{baton_session, c_text, choice, give_object, given, maybe_text, text, wait};

/// As a time to linger: not at all.
pub const BATON_NO_LINGER: i64 = -1;

/// Options of a topic or queue. BATON_TOPIC_OPTIONS_INIT takes what exists, else the defaults; what differs
/// from what exists is the error BATON_CONFLICT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_topic_options {
    /// Of this structure, set by BATON_TOPIC_OPTIONS_INIT.
    pub size: usize,
    /// How many messages of each sender are kept. Default: 8 in a topic, 64 in a queue.
    pub depth: u32,
    /// Bytes of a slot for what describes a message. Default: 1024; a longer description costs a
    /// storage.
    pub description: u32,
    /// How long it stays when no session has it open, or BATON_NO_LINGER. Default: 60 s.
    pub linger_ns: i64,
    /// A topic's: BATON_NO makes it lossless, so that a send waits for the slowest reader. Default:
    /// BATON_YES.
    pub overwrite: i32,
    /// A queue's: BATON_YES gives an item whose taker dies before releasing it to another. Default:
    /// BATON_NO.
    pub redeliver: i32,
    /// BATON_NO opens only what is there (BATON_NOT_FOUND). Default: BATON_YES.
    pub create: i32,
    /// 0.
    pub reserved: i32,
}

// The reserved member stands where padding would be.
grows! { baton_topic_options to reserved: i32, BATON_TOPIC_OPTIONS_INIT; }

/// A channel of messages with many senders and many readers.
pub struct baton_topic {
    pub(crate) session: baton::Session,
    pub(crate) topic: Topic,
    token: CString,
}

/// The choices of topics and queues alike.
pub(crate) struct Common {
    pub(crate) depth: Option<u32>,
    pub(crate) description: Option<u32>,
    pub(crate) linger: Option<Duration>,
    pub(crate) overwrite: Option<bool>,
    pub(crate) redeliver: Option<bool>,
    pub(crate) must_exist: bool,
}

/// # Safety
/// It is null, or has as many bytes as it says.
pub(crate) unsafe fn common(o: *const baton_topic_options) -> Outcome<Common> {
    let none =
        Common { depth: None, description: None, linger: None, overwrite: None, redeliver: None, must_exist: false };
    // SAFETY: as the caller says.
    let Some(o) = unsafe { grown(o) }? else { return Ok(none) };
    if o.reserved != 0 {
        return refused(format!("reserved is {}", o.reserved));
    }
    let linger = match o.linger_ns {
        0 => None,
        BATON_NO_LINGER => Some(Duration::ZERO),
        ns => match u64::try_from(ns) {
            Ok(ns) => Some(Duration::from_nanos(ns)),
            Err(_) => return refused_for(format!("linger_ns is {ns}"), "give ns above 0, 0 or BATON_NO_LINGER"),
        },
    };
    Ok(Common {
        depth: Some(o.depth).filter(|n| *n > 0),
        description: Some(o.description).filter(|n| *n > 0),
        linger,
        overwrite: choice(o.overwrite, "overwrite")?,
        redeliver: choice(o.redeliver, "redeliver")?,
        must_exist: choice(o.create, "create")? == Some(false),
    })
}

/// # Safety
/// As of [`common`].
unsafe fn topic_options(o: *const baton_topic_options) -> Outcome<TopicOptions> {
    // SAFETY: as the caller says.
    let c = unsafe { common(o) }?;
    if c.redeliver.is_some() {
        return refused("redeliver is an option of queues");
    }
    let mut to = TopicOptions::default();
    if let Some(n) = c.depth {
        to = to.depth(n);
    }
    if let Some(n) = c.description {
        to = to.description(n);
    }
    if let Some(d) = c.linger {
        to = to.linger(d);
    }
    if let Some(yes) = c.overwrite {
        to = to.overwrite(yes);
    }
    Ok(if c.must_exist { to.must_exist() } else { to })
}

impl baton_topic {
    fn new(session: &baton_session, topic: Topic) -> baton_topic {
        baton_topic { session: session.0.clone(), token: c_text(topic.token()), topic }
    }
}

/// Opens or makes a topic. name: tokens of A-Z a-z 0-9 _ - joined by /; NULL or an empty text makes a
/// private one. options may be NULL. Errors: BATON_INVALID_ARGUMENT, BATON_CONFLICT, BATON_TOO_MANY.
#[unsafe(no_mangle)]
pub extern "C" fn baton_topic_open(
    session: Option<&baton_session>,
    name: *const c_char,
    options: *const baton_topic_options,
    out: Option<&mut MaybeUninit<Option<Box<baton_topic>>>>,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let session = given(session, "session")?;
            // SAFETY: the header asks for a text or NULL, and for a structure of the size that it says or NULL.
            let (name, options) = unsafe { (maybe_text(name, "name")?.unwrap_or_default(), topic_options(options)?) };
            Ok(baton_topic::new(session, session.0.topic_with(name, &options)?))
        })
    })
}

/// Opens another process's private topic by its token. Errors: BATON_NOT_FOUND when it is no more,
/// BATON_INVALID_ARGUMENT, BATON_TOO_MANY.
#[unsafe(no_mangle)]
pub extern "C" fn baton_topic_open_private(
    session: Option<&baton_session>,
    token: *const c_char,
    out: Option<&mut MaybeUninit<Option<Box<baton_topic>>>>,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let session = given(session, "session")?;
            // SAFETY: the header asks for a text or NULL.
            let token = unsafe { text(token, "token") }?;
            Ok(baton_topic::new(session, session.0.private_topic(token)?))
        })
    })
}

/// What opens a private topic in another process. The topic's; NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_topic_token(topic: Option<&baton_topic>) -> *const c_char {
    topic.map_or(std::ptr::null(), |t| t.token.as_ptr())
}

/// Hands a value to every reader. No tensor of Baton's is copied; the message holds them from now on,
/// and their sender does not write them any more. In a lossless topic it waits until the slowest
/// reader has made room. Errors: BATON_FULL when there is no room within timeout_ns; BATON_CLOSED,
/// BATON_INVALID_ARGUMENT, BATON_OUT_OF_MEMORY, BATON_QUOTA_EXCEEDED.
#[unsafe(no_mangle)]
pub extern "C" fn baton_topic_send(
    topic: Option<&baton_topic>,
    value: *const baton_payload,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        let t = given(topic, "topic")?;
        // SAFETY: the header asks for a payload whose pointers are right, or NULL.
        let value = unsafe { payload(&t.session, value) }?;
        match wait(timeout_ns) {
            Some(time) => t.topic.send_timeout(value, time)?,
            None => t.topic.send(value)?,
        }
        Ok(())
    })
}

/// Closes the topic for all sessions: sends give BATON_CLOSED, and readers get it when they have received
/// all that is there. baton_topic_release leaves the topic and closes it for no other. What another sends at that
/// moment may be received although the send fails, and not the other way round.
#[unsafe(no_mangle)]
pub extern "C" fn baton_topic_end(topic: Option<&baton_topic>) -> baton_status {
    run(|| Ok(given(topic, "topic")?.topic.end()?))
}

/// Releases the topic; NULL is nothing. Other sessions still send and receive by it, and what was sent is received.
#[unsafe(no_mangle)]
pub extern "C" fn baton_topic_release(topic: Option<Box<baton_topic>>) {
    answer((), || drop(topic));
}
