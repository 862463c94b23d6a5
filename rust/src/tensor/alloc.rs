//! Allocating tensors in an opening of a session.

use std::sync::Arc;

use super::Tensor;
use crate::cuda::named;
use crate::devices::Devices;
use crate::dtype::DType;
use crate::error::Result;
use crate::holding::{Opening, Place, View};

impl Tensor {
    /// As [`Session::alloc`](crate::Session::alloc).
    #[inline]
    pub(crate) fn alloc(inner: &Arc<Opening>, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        Ok(Tensor::of(match dtype.num_bytes(shape)? {
            0 => inner.nothing(View::whole(Place::Nowhere, dtype, shape.into())),
            n => inner.fill(n, dtype, shape)?,
        }))
    }

    /// As [`Allocation::on`](crate::Allocation::on).
    pub(crate) fn alloc_on(inner: &Arc<Opening>, device: &str, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        if device == "cpu" {
            return Tensor::alloc(inner, dtype, shape);
        }
        let n = dtype.num_bytes(shape)?;
        let gpu = Devices::gpu(&inner.memory, named(device)?);
        Ok(Tensor::of(match n {
            0 => inner.nothing(View::whole(Place::Nowhere, dtype, shape.into())),
            n => inner.fill_by(|fallback| gpu.alloc(inner, n, fallback), dtype, shape)?,
        }))
    }
}
