//! Tensors on GPUs.

use super::Session;
use crate::cuda::named;
use crate::error::Result;

impl Session {
    /// Bytes of a GPU that are free, and that it has, as its driver counts them for all processes. Errors:
    /// `InvalidArgument` for what names no GPU, `NotFound` for one that this process does not see,
    /// `Unsupported` without a driver.
    pub fn device_memory(device: &str) -> Result<(u64, u64)> {
        named(device)?.memory()
    }
}
