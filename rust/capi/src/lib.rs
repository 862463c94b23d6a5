//! The C library: `libbaton` and `baton.h`, a thin layer over the crate `baton`.
//!
//! # Ownership
//! What a function gives through an `out` pointer is the caller's, which gives it back once to the
//! release function of its type. Objects keep what they need alive, so they are released in any order.
//! Strings and arrays that are passed in are only read during the call.
//!
//! # Concurrency
//! Any thread may use any object at the same time as others; releasing an object is its last use.
//!
//! # Hostile peers
//! As in the crate: another process can make a call fail, never crash. Of the calling program a null
//! pointer, text that is not UTF-8 and numbers that cannot be are refused; wrong addresses cannot be
//! seen. A panic is caught at the boundary and is the status `BATON_INTERNAL`.
//!
//! # How it is written
//! Objects cross the boundary as `Option<&T>` (a pointer that may be null), `Option<Box<T>>` (one that
//! is given back) and `Option<&mut MaybeUninit<T>>` (where a result goes); structures that may grow cross it as
//! raw pointers (`grown`). The header is made of these files by cbindgen, so the comments at public items are
//! written for readers of C.
#![allow(non_camel_case_types)]
// No Rust code calls these functions: the crate is no rlib. To C, every call is unsafe, and the header
// asks for what each needs.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

// In the order of the header.
mod status;

mod error;

mod version;

mod session;
mod stats;

mod alloc;
mod tensor;

mod legacy;

mod exchange;

mod payload;

mod message;

mod gpu;

mod topic;

mod reader;

mod queue;

mod name;

mod any;

mod value;

mod value_of;

mod value_as;

mod function;

mod parts;

mod handler;

mod provide;

mod current;

mod functions;

mod grown;

mod pointer;

pub use alloc::*;
pub use any::*;
pub use current::*;
pub use error::*;
pub use exchange::*;
pub use function::*;
pub use functions::*;
pub use gpu::*;
pub use handler::*;
pub use legacy::*;
pub use message::*;
pub use name::*;
pub use parts::*;
pub use payload::*;
pub use provide::*;
pub use queue::*;
pub use reader::*;
pub use session::*;
pub use stats::*;
pub use status::*;
pub use tensor::*;
pub use topic::*;
pub use value::*;
pub use value_as::*;
pub use value_of::*;
pub use version::*;

pub(crate) use pointer::*;
