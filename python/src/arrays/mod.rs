//! Arrays of others: seen, copied into shared memory, or referenced there.

pub(crate) mod copies;
pub(crate) mod import;
pub(crate) mod room;
pub(crate) mod source;
pub(crate) mod tables;
