//! DLPack 1.3: the structures, and tensors handed to other libraries of this process.
//!
//! Fields that another library writes are integers, never Rust enums: an unknown value is no
//! undefined behaviour here.

mod export;
mod types;

pub use types::*;
