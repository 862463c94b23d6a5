//! *Pass the handle, not the tensor.* Hands tensors to other processes of this machine, in any
//! language, without copying them.
//!
//! ```no_run
//! # fn main() -> Result<(), baton::Error> {
//! use std::time::Duration;
//!
//! let session = baton::Session::connect()?; // starts the user's broker if none runs
//! let mut reader = session.topic("batches")?.reader(baton::Start::New)?;
//!
//! let mut x = session.alloc::<f32>(&[1024, 1024])?; // shared memory, as a slice that nobody else has
//! x.fill(1.0);
//! session.topic("batches")?.send(x.freeze())?; // a handle goes over, the bytes stay
//!
//! let message = reader.recv(Duration::from_secs(1))?;
//! assert_eq!(message.tensor()?.shape(), [1024, 1024]);
//! # Ok(()) }
//! ```
//!
//! # Ownership
//! A [`Tensor`], [`Message`] or [`Bundle`] counts references, which its last clone's drop gives back.
//! A send counts for itself: a sender may drop its tensor at once, and does not write it any more,
//! which [`TensorMut::freeze`] enforces. The last clone, tensor, topic or reader of a [`Session`] ends
//! it; what was sent is still received.
//!
//! # Concurrency
//! All types are `Send` and `Sync`. A [`Reader`] is used by one thread at a time (`&mut`). A session
//! has one background thread, for its control socket.
//!
//! # Aliasing across processes
//! Rust knows nothing of other processes. A [`TensorMut`] is memory that no place names yet, so the
//! protocol gives it to nobody else: it is a safe `&mut [T]`. A [`Tensor`] may be held by others,
//! some of whom may write it: looking at it in place is `unsafe`, copying it out is not.
//!
//! # Hostile peers
//! Whatever another process wrote is copied, checked, and refused with a typed [`Error`]. A process
//! that breaks the protocol can write garbage into tensors that it may write, and pin memory; it
//! cannot make this one crash.
//!
//! # Death
//! When another process dies, what it sent stays and what it held is dropped by the broker. When the
//! broker dies, mapped memory is handed over as before, and the session reconnects by itself.

mod dims;
pub mod dlpack;
mod dtype;
mod error;
mod handle;
#[doc(hidden)]
pub mod layout;
mod ledger;
mod message;
#[cfg(feature = "ndarray")]
mod ndarray;
mod session;
mod shm;
mod sys;
mod wire;

pub use dims::Dims;
pub use dtype::{DType, Element};
pub use error::{Code, Error, Result};
pub use handle::Handle;
pub use ledger::PoolStats;
pub use session::{
    Builder, Bundle, Lease, Message, Payload, Queue, QueueOptions, Reader, Session, Start, Stats, Tensor, TensorMut,
    Topic, TopicOptions, Watch,
};
