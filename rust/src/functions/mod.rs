//! Functions: callable by name, in any language, with tensors by handle.
//!
//! A function is a topic of calls (`lanes`), which its providers share. A call is answered in a private topic of its
//! caller's. What stands in both is the record of a call (`record`); docs/protocol.md, Functions, has the whole.
//!
//! Ownership: a [`Provided`] provides a function as long as it lives. Concurrency: each of its threads takes a call
//! when it is free; callers share what they wait with, one at a time. Hostile peers: what a record says is checked
//! before it is used; a caller that breaks the protocol gets no reply, and holds no provider up. Death: a call whose
//! provider ends is over without a reply, as its claim says, or another provider's.

mod answers;
mod args;
mod arguments;
mod call;
mod caller;
mod calls;
mod convert;
mod doors;
mod endpoint;
mod fate;
mod given;
mod known;
mod listed;
mod name;
mod parts;
mod pending;
mod places;
mod provider;
mod received;
mod record;
mod replies;
mod reply;
mod sending;
mod serving;
mod signature;
mod spare;
mod taken;
mod target;
mod waiting;

pub use args::{Args, Which};
pub use arguments::{Arguments, IntoArguments};
pub use call::{Call, Outer};
pub use caller::{Begun, Calling, Function, check_ahead};
pub(crate) use calls::Calls;
pub use convert::FromValue;
pub(crate) use listed::list;
pub use listed::{CallCounts, FunctionInfo, ProviderInfo};
pub(crate) use name::check_function;
pub use parts::Parts;
pub use pending::Pending;
pub use provider::{PartSender, Provide, Provided};
pub use reply::Reply;
pub use sending::Sending;
pub use taken::{Taken, Waits};

/// What `any_bytes` reads.
#[cfg(test)]
pub(crate) mod for_any_bytes {
    pub(crate) use super::record::{Is, Record};
    pub(crate) use super::signature::Signature;
}
