//! Readers of topics.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use baton::bindings::Closable;
use baton::{Deadline, Reader, Start};

use crate::error::{answer, refused, refused_for, run};
use crate::message::baton_message;
use crate::status::baton_status;
use crate::{baton_topic, give_object, given, maybe_text, wait};

/// A reader begins with what is sent from now on.
pub const BATON_START_NEW: i32 = 0;
/// A reader begins with the newest message that is kept.
pub const BATON_START_LAST: i32 = 1;
/// A reader begins with everything that is kept.
pub const BATON_START_ALL: i32 = 2;

/// Receives a topic's messages. Threads that share one take turns, also while one waits: open one for
/// each thread that is to receive side by side.
pub struct baton_reader {
    pub(crate) reader: Closable<Reader>,
    lost: AtomicU64, // as the last receive left it, for a caller that asks while one waits
}

/// Joins a topic as a reader of every message, or, with the name of a group and in a lossless topic,
/// as one of the readers that share them. start: BATON_START_NEW, _LAST or _ALL; of groups
/// BATON_START_NEW. group: one token, NULL for none. Errors: BATON_INVALID_ARGUMENT, also for a group of a topic that
/// overwrites; BATON_TOO_MANY.
#[unsafe(no_mangle)]
pub extern "C" fn baton_reader_open(
    topic: Option<&baton_topic>,
    start: i32,
    group: *const c_char,
    out: Option<&mut MaybeUninit<Option<Box<baton_reader>>>>,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let topic = &given(topic, "topic")?.topic;
            let start = match start {
                BATON_START_NEW => Start::New,
                BATON_START_LAST => Start::Last,
                BATON_START_ALL => Start::All,
                n => return refused(format!("start is {n}")),
            };
            // SAFETY: the header asks for a text or NULL.
            let reader = match unsafe { maybe_text(group, "group") }? {
                Some(_) if start != Start::New => {
                    return refused_for("a group has its own start", "use BATON_START_NEW");
                }
                Some(group) => topic.group_reader(group)?,
                None => topic.reader(start)?,
            };
            Ok(baton_reader { reader: Closable::new(reader)?, lost: AtomicU64::new(0) })
        })
    })
}

/// Receives the next message, waiting for it: without a limit with BATON_FOREVER, not at all with 0. Errors:
/// BATON_TIMEOUT when none came within timeout_ns; BATON_CLOSED when the topic was closed and everything
/// received, or the session ended.
#[unsafe(no_mangle)]
pub extern "C" fn baton_reader_receive(
    reader: Option<&baton_reader>,
    out: Option<&mut MaybeUninit<Option<Box<baton_message>>>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let t = Deadline::after(wait(timeout_ns));
            let r = given(reader, "reader")?;
            let received = r.reader.with(
                t,
                || false,
                |reader| {
                    let received = reader.recv(t.left());
                    r.lost.store(reader.lost(), Ordering::Relaxed);
                    received
                },
            );
            Ok(baton_message::received(received?))
        })
    })
}

/// Messages that went by unseen and that no later message has reported; while another thread receives,
/// as it was before. 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_reader_lost(reader: Option<&baton_reader>) -> u64 {
    answer(0, || {
        reader.map_or(0, |r| match r.reader.try_with(|reader| Ok(Some(reader.lost()))) {
            Ok(Some(lost)) => lost,
            _ => r.lost.load(Ordering::Relaxed),
        })
    })
}

/// Releases the reader; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn baton_reader_release(reader: Option<Box<baton_reader>>) {
    answer((), || drop(reader));
}
