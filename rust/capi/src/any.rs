//! One wait for several readers, watches and queues.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use baton::Waitable;

use crate::error::{Outcome, Refusal, refused, run};
use crate::grown::{each_own, grown, grows};
use crate::status::baton_status;
use crate::{baton_queue, baton_reader, baton_watch, give, given, wait};

/// The object of a baton_wait is a baton_reader.
pub const BATON_WAIT_READER: i32 = 1;
/// The object of a baton_wait is a baton_queue.
pub const BATON_WAIT_QUEUE: i32 = 2;
/// The object of a baton_wait is a baton_watch.
pub const BATON_WAIT_WATCH: i32 = 3;

/// One object of baton_wait_any. BATON_WAIT_FOR makes one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_wait {
    /// sizeof(baton_wait), the same for all objects of a call.
    pub size: usize,
    /// The object, of the type that the kind says.
    pub object: *const c_void,
    /// BATON_WAIT_READER, _QUEUE or _WATCH.
    pub kind: i32,
    /// Written by the call: 1 if the object is ready, else 0.
    pub ready: i32,
}

grows! {
    baton_wait to ready: i32, BATON_WAIT_INIT;
}

/// Its size in the first version.
const FIRST: usize = 24;

/// # Safety
/// The object is of its kind, or NULL.
unsafe fn waitable<'a>(of: &baton_wait) -> Outcome<Box<dyn Waitable + 'a>> {
    if of.object.is_null() {
        return refused("an object is NULL");
    }
    // SAFETY: as the caller says.
    unsafe {
        Ok(match of.kind {
            BATON_WAIT_READER => Box::new(&(*of.object.cast::<baton_reader>()).reader),
            BATON_WAIT_QUEUE => Box::new(&(*of.object.cast::<baton_queue>()).queue),
            BATON_WAIT_WATCH => Box::new(&(*of.object.cast::<baton_watch>()).0),
            n => return refused(format!("the kind of an object is {n}")),
        })
    }
}

/// Waits until at least one of several readers, queues and watches is ready, without a limit with BATON_FOREVER, and
/// looks once with 0. Writes for each whether it is, and how many are: a call of it with the time 0 would give a
/// message, or the status that it ends with. It takes nothing: what is not taken is ready the next time too, and
/// another taker may be faster. The objects may be of several sessions, and one may stand there twice. Errors:
/// BATON_TIMEOUT when none is ready in time; BATON_INVALID_ARGUMENT without objects; BATON_UNSUPPORTED with several
/// sessions on a kernel before Linux 5.16.
#[unsafe(no_mangle)]
pub extern "C" fn baton_wait_any(
    objects: *mut baton_wait,
    count: usize,
    ready: Option<&mut MaybeUninit<usize>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        give(ready, 0, || {
            // SAFETY: the header asks for so many objects, each of its size and kind.
            let objects = unsafe { each_own(objects, count, FIRST) }?;
            let set_ready = |i: usize, ready| {
                let one: *mut baton_wait = objects[i];
                // SAFETY: as above; the member is one of those of the first version.
                unsafe { (&raw mut (*one).ready).write(ready) };
            };
            (0..count).for_each(|i| set_ready(i, 0));
            let known = objects.iter().map(|o| {
                // SAFETY: as above.
                let o = unsafe { grown(o.cast_const()) }?;
                given(o.as_ref(), "an object").copied()
            });
            let known = known.collect::<Outcome<Vec<baton_wait>>>()?;
            // SAFETY: as above.
            let mut each = known.iter().map(|o| unsafe { waitable(o) }).collect::<Outcome<Vec<_>>>()?;
            let mut all: Vec<&mut dyn Waitable> = Vec::with_capacity(each.len());
            for o in &mut each {
                all.push(&mut **o);
            }
            let found = baton::wait_any(&mut all, wait(timeout_ns))?;
            found.iter().for_each(|i| set_ready(*i, 1));
            match found.len() {
                0 => Err(Refusal::Own(
                    baton_status::BATON_TIMEOUT,
                    format!("none of {count} objects was ready (give the call a longer timeout)"),
                )),
                n => Ok(n),
            }
        })
    })
}
