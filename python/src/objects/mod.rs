//! The classes, without their methods: what holds the client's values.

pub(crate) mod bundle;
pub(crate) mod default;
pub(crate) mod function;
pub(crate) mod handle;
pub(crate) mod session;
pub(crate) mod tensor;
