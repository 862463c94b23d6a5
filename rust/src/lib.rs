//! *Pass the handle, not the tensor.* Hands tensors to other processes of this machine, in any
//! language, without copying them.
//!
//! ```
//! # fn main() -> Result<(), baton::Error> {
//! # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
//! use std::time::Duration;
//!
//! let session = baton::Session::connect()?; // starts the user's broker if none runs
//! let mut reader = session.topic("batches")?.reader(baton::Start::New)?;
//!
//! let mut x = session.alloc::<f32>(&[1024, 1024])?; // shared memory, as a slice with no other owner
//! x.fill(1.0);
//! session.topic("batches")?.send(x.freeze())?; // a reference goes over, the bytes stay
//!
//! let message = reader.recv(Duration::from_secs(1))?;
//! assert_eq!(message.tensor()?.shape(), [1024, 1024]);
//! # Ok(()) }
//! ```
//!
//! # Where the broker comes from
//! A session needs the broker of its machine, the program `baton`. [`Session::connect`] finds it at
//! `BATON_ADDRESS`, else it uses the user's own and starts it if none runs: the program named by
//! `BATON_BINARY`, or `baton` on `PATH`. It comes with the Python package `baton-ipc`, as a Debian package, or
//! as one static binary. Without one the error is `NoBroker`.
//!
//! # Ownership
//! A [`Tensor`], [`Message`] or [`Bundle`] counts references, which its last clone's drop gives back.
//! A send counts for itself: a sender may drop its tensor at once, and does not write it any more,
//! which [`TensorMut::freeze`] enforces. The last clone, tensor, topic or reader of a [`Session`] ends
//! it; what was sent is still received.
//!
//! # Concurrency
//! All types are `Send` and `Sync`, but for DLPack's own structures, which have bare addresses in them. A [`Reader`]
//! is used by one thread at a time (`&mut`); a [`Closer`] of it ends that thread's wait from another, and
//! [`wait_any`] waits for several of them at once. A session has one background thread, for its control socket; with
//! a poll descriptor one more, which sleeps for it, and with async tasks another one.
//!
//! # Errors
//! Every call of a session, and of what it has made, may fail with `Closed` once the session was closed, with
//! `SessionLost` once a broker has ended it, and, if it needs a broker and none answers, with `BrokerLost` or
//! `Timeout`. The section of a function names what it fails with besides. [`Code`] is what a program looks at;
//! [`Error::remedy`] says what to do, and `source` has the cause if another library or the system gave one.
//!
//! # Features
//! `half`, `num-complex`: elements of those crates. `dlpk`, `dlpark`: tensors to and from those crates.
//! `ndarray`: tensors as arrays of that crate. `tokio`: waits of async tasks, for messages and for room. `cuda`, the only one that is on
//! by default: tensors on GPUs; the driver is loaded when the first is met, so without one it costs nothing.
//!
//! # Aliasing across processes
//! Rust's references promise what the compiler relies on: behind a `&[T]` nothing changes, and a
//! `&mut [T]` is the only way to its memory. Shared memory cannot keep that promise by itself, for no
//! compiler sees the other process. So the crate divides memory by which processes may know of it:
//!
//! - A [`TensorMut`] is memory that no slot, name or handle names yet. The protocol gives it to
//!   no other session, so it is a safe `&mut [T]`, as a `Vec` is.
//! - A [`Tensor`] may be held by others. [`Tensor::to_vec`] copies out of it with atomic loads: safe
//!   whatever others do, though values may be torn while another process writes.
//! - [`Tensor::as_slice`] lends the memory itself and is `unsafe`: the caller warrants that nothing
//!   writes it. Topic messages and published names are not written by clients that keep to the protocol;
//!   a message of an untrusted process is a reason to copy.
//! - [`Tensor::as_mut_slice`] is `unsafe` as well: queue items belong to their taker when their sender
//!   kept no clone, while a live name is written by all its users (Hogwild). There use raw pointers
//!   ([`Tensor::as_mut_ptr`]) with atomic or volatile accesses, not references.
//!
//! Types are plain numbers ([`Element`]): every bit pattern is a value, so garbage from another process
//! is a wrong number and never undefined behaviour. A read-only tensor may be mapped without write
//! permission: writing through its address ends the process with SIGSEGV.
//!
//! # Hostile peers
//! Whatever another process wrote is copied, checked, and refused with a typed [`Error`]. A process
//! that breaks the protocol can write garbage into tensors that it may write, and pin memory; it
//! cannot make this one crash.
//!
//! That holds for processes of other users. One user is no boundary: a process of the broker's own user, or one that
//! passes over the modes of files (root, CAP_DAC_OVERRIDE), can open what it was given read-only for writing, below
//! `/proc/self/fd`, and then write every page, also the memory of a [`TensorMut`].
//!
//! # Death
//! When another process dies, what it sent stays and what it held is dropped by the broker. When the
//! broker dies, mapped memory is handed over as before, and the session reconnects by itself. A call that
//! needs the broker fails with `BrokerLost` if none has come within 30 s. Only a broker that was stopped
//! for good, one that evicts the session, or one that does not know it, ends it: then each call fails with
//! `SessionLost`, those that wait too, what is held can still be read, and [`Session::reopen`] opens another.
//! One that the session's user may not use any more ends it with `PermissionDenied`.
//!
//! # Fork
//! A child made by the C library's `fork` has a session of its own, and all that it inherited works:
//! sessions, tensors, messages, topics, queues, readers. If the parent holds anything, the child
//! counts it before the parent runs on, so it stays whatever the parent does next; dropping it in the
//! child touches the child's counts alone. A reader of a topic that overwrites goes on where it was at
//! the fork; one of a lossless topic joins anew, as a further member of its group; an item that is to be
//! acknowledged is acknowledged by the parent. What is left behind when no broker was reached within
//! two seconds, or it was suspended as long, or it did not answer within ten, is the error `BrokerLost`. A [`TensorMut`]
//! is in both processes: only one may write it.
//!
//! A child that only runs another program is a child like any other while it is forked: with anything held it costs some
//! tenths of a millisecond, and up to those times if the broker does not answer. `std::process::Command` forks if
//! a user, a group or a `pre_exec` is set. Without them it spawns, which costs nothing here.
//!
//! Threads of this crate do not keep a process from ending. The child of a thread that forked ends where that thread ends
//! in it, if no other of the program runs, by `exit(0)` as without this crate; and so does any process whose last thread
//! ends, where the C library sees that, and `/proc` is mounted. Threads that call provided functions are the program's.
//!
//! As everywhere, a program with several threads that goes on in a child may not count on locks of
//! its own. What other threads hold, the child holds too, until it ends. The crate is not called at a fork
//! by a bare system call, so that child has no session and counts nothing. The crate recognises it later, by a page that the
//! kernel empties: what was inherited is refused there with `Closed`, the elements of a [`TensorMut`] by a panic, and a
//! session can be opened.

// docs.rs marks what a feature of the crate turns on.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Under loom only what the models run is built.
#![cfg_attr(baton_loom, allow(dead_code, unused_imports))]

#[cfg(all(test, not(baton_loom)))]
mod any_bytes;
mod crash_point;
#[cfg(not(baton_loom))]
mod cuda;
#[cfg(not(baton_loom))]
mod deadline;
#[cfg(not(baton_loom))]
mod devices;
mod dims;
#[cfg(not(baton_loom))]
pub mod dlpack;
mod dtype;
mod error;
#[cfg(not(baton_loom))]
mod functions;
#[cfg(not(baton_loom))]
mod handle;
#[cfg(not(baton_loom))]
mod holding;
#[cfg(not(baton_loom))]
mod lanes;
#[doc(hidden)]
pub mod layout;
mod ledger;
#[cfg(not(baton_loom))]
mod link;
#[cfg(all(test, baton_loom))]
mod loom_models;
#[cfg(not(baton_loom))]
mod memory;
mod message;
#[cfg(all(feature = "ndarray", not(baton_loom)))]
mod ndarray;
mod owners;
mod panics;
#[cfg(not(baton_loom))]
mod session;
mod shm;
#[cfg(not(baton_loom))]
mod step;
mod sync;
mod sys;
mod table;
#[cfg(not(baton_loom))]
mod tensor;
#[cfg(not(baton_loom))]
mod turns;
mod turnstile;
#[cfg(not(baton_loom))]
mod value;
mod waits;
#[cfg(not(baton_loom))]
mod wire;

#[cfg(not(baton_loom))]
pub use cuda::{Stream, finish_devices};
#[cfg(not(baton_loom))]
pub use deadline::Deadline;
pub use dims::Dims;
pub use dtype::{Bool, DType, Element};
pub use error::{Code, Error, KindedError, Result, register_error};
#[cfg(not(baton_loom))]
pub use functions::{
    Args, Arguments, Call, CallCounts, Calling, FromValue, Function, FunctionInfo, IntoArguments, PartSender, Parts,
    Pending, Provide, Provided, ProviderInfo, Which,
};
#[cfg(not(baton_loom))]
pub use handle::Handle;
#[cfg(not(baton_loom))]
pub use holding::Lease;
#[cfg(not(baton_loom))]
pub use lanes::{
    Closer, Message, NameOptions, Queue, QueueOptions, Reader, Start, Topic, TopicOptions, Waitable, Watch, wait_any,
};
#[cfg(not(baton_loom))]
pub use ledger::PoolStats;
#[cfg(not(baton_loom))]
pub use memory::{Holder, HugePages};
#[cfg(not(baton_loom))]
pub use session::{Allocation, Builder, DeviceAllocator, Session, Stats, UnreadPickles};
#[cfg(not(baton_loom))]
pub use tensor::{Tensor, TensorMut};
#[cfg(not(baton_loom))]
pub use value::{Build, Bundle, FunctionValue, Payload, Value};

/// What the bindings of other languages, the tests and the measurements of this project need, and no program: it may
/// change with any version.
#[cfg(not(baton_loom))]
#[doc(hidden)]
pub mod bindings {
    pub use crate::functions::{Begun, Outer, Reply, Sending, Taken, Waits, check_ahead};
    pub use crate::lanes::Closable;
    pub use crate::layout;
    pub use crate::panics::caught;
    pub use crate::step::Step;
    pub use crate::sys::OwnThread;
    pub use crate::turns::Turns;
    pub use crate::value::{Around, Decimal, MOST_DEPTH, MOST_DIGITS, Names, Tree};
}
