//! What is received.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI64, Ordering};

use baton::dlpack::{DLManagedTensorVersioned, ExportOptions};
use baton::{Bundle, Message, Stream};

use crate::error::{Outcome, Refusal, answer, missing, run};
use crate::status::baton_status;
use crate::tensor::give_tensor_on;
use crate::{array_mut, c_text, given, text};

/// What was received: named tensors with their message, item or revision. But for the stream that it is
/// for it never changes, so any number of threads may look at it. Texts that it gives are its own and go with it.
pub struct baton_message {
    content: Result<Content, baton::Error>,
    sender: CString,
    sequence: u64,
    stamp: u64,
    lost: u64,
    stream: AtomicI64, // whose work its tensors are for
    // With redelivery its end is the acknowledgement, so it stays until the release.
    _message: Option<Message>,
}

struct Content {
    bundle: Bundle,
    names: Vec<CString>,
    tree: CString,
    meta: CString,
}

impl Content {
    fn new(bundle: Bundle) -> Content {
        let names = bundle.iter().map(|(n, _)| c_text(n)).collect();
        let (tree, meta) = (c_text(bundle.tree()), c_text(bundle.meta()));
        Content { bundle, names, tree, meta }
    }
}

impl baton_message {
    pub(crate) fn received(m: Message) -> baton_message {
        baton_message {
            content: m.bundle().map(Content::new),
            sender: c_text(m.sender()),
            sequence: m.sequence(),
            stamp: m.stamp(),
            lost: m.lost(),
            stream: AtomicI64::new(Stream::LEGACY.as_raw()),
            _message: Some(m),
        }
    }

    pub(crate) fn revision(b: Bundle) -> baton_message {
        let sequence = b.revision();
        baton_message {
            content: Ok(Content::new(b)),
            sender: CString::default(),
            sequence,
            stamp: 0,
            lost: 0,
            stream: AtomicI64::new(Stream::LEGACY.as_raw()),
            _message: None,
        }
    }

    pub(crate) fn set_stream(&self, stream: Stream) {
        self.stream.store(stream.as_raw(), Ordering::Relaxed);
    }

    fn stream(&self) -> Outcome<Stream> {
        // SAFETY: a number of a `Stream`.
        Ok(unsafe { Stream::from_raw(self.stream.load(Ordering::Relaxed)) }?)
    }

    fn content(&self) -> Outcome<&Content> {
        self.content.as_ref().map_err(|e| Refusal::Baton(e.clone()))
    }
}

/// Answers a question about a message; `none` for NULL and for what its sender described wrongly.
fn look<T>(message: Option<&baton_message>, none: T, ask: impl FnOnce(&Content) -> Option<T>) -> T {
    match message.map(|m| &m.content) {
        Some(Ok(c)) => ask(c).unwrap_or(none),
        _ => none,
    }
}

/// How many tensors there are. 0 too when the sender described them wrongly: then
/// baton_message_tensor says how.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_count(message: Option<&baton_message>) -> usize {
    look(message, 0, |c| Some(c.names.len()))
}

/// The name of a tensor, from 0: a key of a flat dict, or a path in the tree; "" for one that is the
/// value itself. NULL when there is none of that number.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_name(message: Option<&baton_message>, index: usize) -> *const c_char {
    look(message, std::ptr::null(), |c| c.names.get(index).map(|n| n.as_ptr()))
}

/// A tensor, from 0: no copy, and a reference of its own, which outlives the message. It is read-only
/// by its flags unless it came from a queue, a live name, or a sender that gave it for writing. On a GPU
/// it is for work of the message's stream (baton_message_stream).
/// Errors: BATON_NOT_FOUND; BATON_PROTOCOL, BATON_UNSUPPORTED or BATON_INVALID_ARGUMENT when the sender
/// described it wrongly.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_tensor(
    message: Option<&baton_message>,
    index: usize,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    run(|| {
        give_tensor_on(out, || {
            let message = given(message, "message")?;
            let c = message.content()?;
            match c.bundle.iter().nth(index) {
                Some((_, t)) => Ok((t.clone(), message.stream()?)),
                None => missing(format!("the message has no tensor {index}, but {}", c.names.len())),
            }
        })
    })
}

/// As baton_message_tensor, by name.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_tensor_named(
    message: Option<&baton_message>,
    name: *const c_char,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    run(|| {
        give_tensor_on(out, || {
            let message = given(message, "message")?;
            let c = message.content()?;
            // SAFETY: the header asks for a text or NULL.
            let name = unsafe { text(name, "name") }?;
            match c.bundle.get(name) {
                Some(t) => Ok((t.clone(), message.stream()?)),
                None => missing(format!("the message has no tensor {name:?}")),
            }
        })
    })
}

/// As baton_message_tensor, of count tensors from the one with the number first on, which go to an array of
/// as many. With an error none is given, and the array holds NULLs.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_tensors(
    message: Option<&baton_message>,
    first: usize,
    count: usize,
    out: *mut *mut DLManagedTensorVersioned,
) -> baton_status {
    run(|| {
        // SAFETY: the header asks for an array of so many pointers, which need not be initialised.
        let out = unsafe { array_mut(out.cast::<MaybeUninit<_>>(), count, "the array of the results")? };
        out.fill(MaybeUninit::new(std::ptr::null_mut()));
        let message = given(message, "message")?;
        let (c, stream) = (message.content()?, message.stream()?);
        if first.checked_add(count).is_none_or(|end| end > c.names.len()) {
            return missing(format!("tensors {first} to {first} + {count} of a message that has {}", c.names.len()));
        }
        let options = ExportOptions::default().stream(stream);
        let some = c.bundle.iter().skip(first).take(count);
        let made = some.map(|(_, t)| t.to_dlpack(options)).collect::<baton::Result<Vec<_>>>()?;
        for (to, t) in out.iter_mut().zip(made) {
            to.write(t.into_raw());
        }
        Ok(())
    })
}

/// The JSON that came with the message or revision, "" for none. NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_meta(message: Option<&baton_message>) -> *const c_char {
    given_text(message, |c| &c.meta)
}

/// The JSON of the value tree (docs/protocol.md, section 6); "": the value is the unnamed tensor, or a
/// flat dict of the named ones. NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_tree(message: Option<&baton_message>) -> *const c_char {
    given_text(message, |c| &c.tree)
}

fn given_text(message: Option<&baton_message>, which: impl FnOnce(&Content) -> &CStr) -> *const c_char {
    if message.is_none() {
        return std::ptr::null();
    }
    look(message, c"".as_ptr(), |c| Some(which(c).as_ptr()))
}

/// The session that sent it: its program's name. "" for a revision of a name, NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_sender(message: Option<&baton_message>) -> *const c_char {
    message.map_or(std::ptr::null(), |m| m.sender.as_ptr())
}

/// Its number among its sender's in this topic, from 1; of a name the number of the revision. 0 for
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_sequence(message: Option<&baton_message>) -> u64 {
    message.map_or(0, |m| m.sequence)
}

/// When it was sent, in ns of CLOCK_MONOTONIC; 0 for a revision of a name.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_stamp(message: Option<&baton_message>) -> u64 {
    message.map_or(0, |m| m.stamp)
}

/// How long ago the revision of a name was set, also on another host, in ns. 0 for all else and for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_age(message: Option<&baton_message>) -> u64 {
    look(message, 0, |c| Some(u64::try_from(c.bundle.age().as_nanos()).unwrap_or(u64::MAX)))
}

/// 1 for the revision of a name of several hosts of which the broker could not say, when it was taken, that it is the
/// newest: it has not got a newer one yet, or does not reach what orders them; else 0.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_stale(message: Option<&baton_message>) -> i32 {
    look(message, 0, |c| Some(i32::from(c.bundle.is_stale())))
}

/// Messages that went by unseen before this one: of its sender, and of senders that have gone.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_lost(message: Option<&baton_message>) -> u64 {
    message.map_or(0, |m| m.lost)
}

/// 1 for the bundle of a live name, which all sessions may write in place, so that a read may see half a
/// write; else 0.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_live(message: Option<&baton_message>) -> i32 {
    look(message, 0, |c| Some(i32::from(c.bundle.is_live())))
}

/// Releases the message; NULL is nothing. Tensors taken from it stay. In a queue with redelivery the
/// release of it and of its last tensor is the acknowledgement.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_release(message: Option<Box<baton_message>>) {
    answer((), || drop(message));
}
