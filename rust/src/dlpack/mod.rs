//! DLPack 1.3: the structures, and tensors handed to and taken from other libraries of this process.
//!
//! Ownership: an export ([`Tensor::to_dlpack`](crate::Tensor::to_dlpack)) is a [`Managed`], which holds a
//! reference of its own until it is dropped, or its deleter is called, once, on any thread. An import
//! ([`Session::from_dlpack`](crate::Session::from_dlpack)) takes a [`Managed`] over and has called its
//! deleter when it returns, with an error too: the elements were copied, or they lie in shared memory
//! that is now referenced.
//!
//! Hostile producers: fields that another library writes are integers, never Rust enums, so an unknown
//! value is no undefined behaviour here. What can be checked is checked before it is used; that the
//! addresses are right cannot be checked, which is why [`Managed::from_raw`] is `unsafe`.

mod copies;
mod copy;
#[cfg(any(feature = "dlpk", feature = "dlpark"))]
mod crates;
mod cuda;
mod exchange;
mod export;
mod gather;
mod import;
mod owned;
mod stream;
pub(crate) mod types;
mod view;

#[doc(hidden)]
pub use exchange::allocate_by_default_in;
pub use exchange::{allocate_in, exchange_api};
pub use export::ExportOptions;
pub use gather::Gather;
pub use owned::{Managed, Structure};
pub use types::*;
