//! What Python sees: methods and functions.

pub(crate) mod any;
pub(crate) mod bundle;
pub(crate) mod cuda_allocator;
pub(crate) mod function;
pub(crate) mod message;
pub(crate) mod name;
pub(crate) mod packing;
pub(crate) mod parts;
pub(crate) mod pending;
pub(crate) mod pickle;
pub(crate) mod provided;
pub(crate) mod queue;
pub(crate) mod sending;
pub(crate) mod session;
pub(crate) mod storages;
pub(crate) mod taking;
pub(crate) mod tensor;
pub(crate) mod topic;
