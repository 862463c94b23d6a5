//! What knows no class of this package: errors, waits, types, capsules.

pub(crate) mod capsule;
pub(crate) mod cuda;
pub(crate) mod dtype;
pub(crate) mod errors;
pub(crate) mod json;
pub(crate) mod meta;
pub(crate) mod place;
pub(crate) mod poll;
pub(crate) mod refused;
pub(crate) mod shape;
pub(crate) mod text;
pub(crate) mod wait;
