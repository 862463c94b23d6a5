//! Queues.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use baton::{Queue, QueueOptions};

use crate::error::{Outcome, answer, refused, run};
use crate::message::baton_message;
use crate::payload::{baton_payload, payload};
use crate::status::baton_status;
use crate::topic::{baton_topic_options, common};
use crate::{baton_session, c_text, give, give_object, given, maybe_text, text, wait};

/// Gives each item to one taker. Threads that share one take turns in getting, also while one waits:
/// open it once for each thread that is to take side by side.
pub struct baton_queue {
    session: baton::Session,
    pub(crate) queue: Queue,
    token: CString,
}

impl baton_queue {
    fn new(session: &baton_session, queue: Queue) -> baton_queue {
        baton_queue { session: session.0.clone(), token: c_text(queue.token()), queue }
    }
}

/// # Safety
/// As of [`common`].
unsafe fn queue_options(o: *const baton_topic_options) -> Outcome<QueueOptions> {
    // SAFETY: as the caller says.
    let c = unsafe { common(o) }?;
    if c.overwrite.is_some() {
        return refused("overwrite is an option of topics");
    }
    let mut to = QueueOptions::default();
    if let Some(n) = c.depth {
        to = to.depth(n);
    }
    if let Some(n) = c.description {
        to = to.description(n);
    }
    if let Some(d) = c.linger {
        to = to.linger(d);
    }
    if let Some(yes) = c.redeliver {
        to = to.redeliver(yes);
    }
    Ok(if c.must_exist { to.must_exist() } else { to })
}

/// Opens or makes a queue; as baton_topic_open.
#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_open(
    session: Option<&baton_session>,
    name: *const c_char,
    options: *const baton_topic_options,
    out: Option<&mut MaybeUninit<Option<Box<baton_queue>>>>,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let session = given(session, "session")?;
            // SAFETY: the header asks for a text or NULL, and for a structure of the size that it says or NULL.
            let (name, options) = unsafe { (maybe_text(name, "name")?.unwrap_or_default(), queue_options(options)?) };
            Ok(baton_queue::new(session, session.0.queue_with(name, &options)?))
        })
    })
}

/// Opens another process's private queue by its token. Errors: as baton_topic_open_private.
#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_open_private(
    session: Option<&baton_session>,
    token: *const c_char,
    out: Option<&mut MaybeUninit<Option<Box<baton_queue>>>>,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let session = given(session, "session")?;
            // SAFETY: the header asks for a text or NULL.
            let token = unsafe { text(token, "token") }?;
            Ok(baton_queue::new(session, session.0.private_queue(token)?))
        })
    })
}

/// What opens a private queue in another process. The queue's; NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_token(queue: Option<&baton_queue>) -> *const c_char {
    queue.map_or(std::ptr::null(), |q| q.token.as_ptr())
}

/// Adds an item, waiting while the queue is full. Its taker may write its tensors; the caller does not write them any
/// more. Errors: BATON_FULL when there is no room within timeout_ns, and those of baton_topic_send.
#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_put(
    queue: Option<&baton_queue>,
    value: *const baton_payload,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        let q = given(queue, "queue")?;
        // SAFETY: the header asks for a payload whose pointers are right, or NULL.
        let value = unsafe { payload(&q.session, value) }?;
        Ok(q.queue.put(value, wait(timeout_ns))?)
    })
}

/// Takes an item, waiting for one: without a limit with BATON_FOREVER, not at all with 0. Errors: BATON_EMPTY when none
/// came within timeout_ns; BATON_CLOSED when the queue was closed and is empty, or the session ended.
#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_get(
    queue: Option<&baton_queue>,
    out: Option<&mut MaybeUninit<Option<Box<baton_message>>>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| give_object(out, || Ok(baton_message::received(given(queue, "queue")?.queue.get(wait(timeout_ns))?))))
}

/// How many items wait to be taken. Errors: BATON_NOT_FOUND if the queue is no more.
#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_waiting(
    queue: Option<&baton_queue>,
    out: Option<&mut MaybeUninit<usize>>,
) -> baton_status {
    run(|| give(out, 0, || Ok(given(queue, "queue")?.queue.waiting()?)))
}

/// Closes the queue for all sessions: puts give BATON_CLOSED, and takers get it when the queue is empty.
/// baton_queue_release leaves the queue and closes it for no other. What another puts at that moment may be taken
/// although the put fails, and not the other way round.
#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_end(queue: Option<&baton_queue>) -> baton_status {
    run(|| Ok(given(queue, "queue")?.queue.end()?))
}

/// Releases the queue; NULL is nothing. Other sessions still put and take, and what was put is taken.
#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_release(queue: Option<Box<baton_queue>>) {
    answer((), || drop(queue));
}
