//! Tensors of the crates dlpk and dlpark.
//!
//! What is taken from them is safe: they answer for their structures as `Managed::from_raw` asks. What is
//! given to them can be read there as a slice, so that only what has no other owner is given by safe code: a
//! [`TensorMut`](crate::TensorMut).

#[cfg(feature = "dlpk")]
mod dlpk {
    use dlpk::{DLPackTensor, sys};

    use crate::dlpack::{DLManagedTensorVersioned, ExportOptions, Managed};
    use crate::dtype::Element;
    use crate::error::{Error, Result};
    use crate::tensor::TensorMut;

    const _: () = assert!(size_of::<sys::DLManagedTensorVersioned>() == size_of::<DLManagedTensorVersioned>());

    impl From<DLPackTensor> for Managed<DLManagedTensorVersioned> {
        fn from(t: DLPackTensor) -> Self {
            // Both are the header's structure, at an address that is not null.
            Managed::made(t.into_raw().cast())
        }
    }

    /// The memory itself, which goes when dlpk's tensor does.
    impl<T: Element> TryFrom<TensorMut<T>> for DLPackTensor {
        type Error = Error;

        fn try_from(t: TensorMut<T>) -> Result<DLPackTensor> {
            let m = t.freeze().to_dlpack(ExportOptions::default())?;
            // SAFETY: a live structure of the same layout, whose deleter may be called on any thread; its
            // memory has no other owner.
            Ok(unsafe { DLPackTensor::from_ptr(m.into_raw().cast()) })
        }
    }
}

#[cfg(feature = "dlpark")]
mod dlpark {
    use dlpark::ffi;

    use crate::dlpack::{DLManagedTensorVersioned, Managed};
    use crate::error::{Code, Error, Result};

    const _: () = assert!(size_of::<ffi::DLManagedTensorVersioned>() == size_of::<DLManagedTensorVersioned>());

    impl TryFrom<dlpark::Managed<ffi::DLManagedTensorVersioned>> for Managed<DLManagedTensorVersioned> {
        type Error = Error;

        /// `InvalidArgument` for a structure at no address.
        fn try_from(m: dlpark::Managed<ffi::DLManagedTensorVersioned>) -> Result<Self> {
            // SAFETY: the header's structure, which dlpark owns and answers for as is asked here.
            unsafe { Managed::from_raw(m.into_raw().cast()) }
        }
    }

    impl TryFrom<Managed<DLManagedTensorVersioned>> for dlpark::Managed<ffi::DLManagedTensorVersioned> {
        type Error = Error;

        /// `Unsupported` for a version that dlpark does not read. Reading the elements is unsafe there.
        fn try_from(m: Managed<DLManagedTensorVersioned>) -> Result<Self> {
            // SAFETY: a live structure of the same layout that is given away.
            unsafe { dlpark::Managed::from_raw(m.into_raw().cast()) }.map_err(|e| {
                Error::new(Code::Unsupported, "use a dlpark of this version", format!("dlpark: {e}")).caused_by(e)
            })
        }
    }
}
