//! Tensors of the crates dlpk and dlpark.
//!
//! dlpark answers for a structure and its shape, and not for the address of its elements, which is read here: to take
//! one over is `unsafe`, by [`Managed::from_dlpark`]. dlpk does not say that a structure's owner
//! may be dropped on any thread, so ownership of its tensors is taken at once, on the thread that has them. What is
//! given to dlpk can be read there as a slice, so that only what has no other owner is given by safe code: a
//! [`TensorMut`](crate::TensorMut).

#[cfg(feature = "dlpk")]
mod dlpk {
    use dlpk::{DLPackTensor, sys};

    use crate::dlpack::{DLManagedTensorVersioned, ExportOptions, Managed};
    use crate::dtype::{DType, Element};
    use crate::error::{Code, Error, Result};
    use crate::session::Session;
    use crate::tensor::{Tensor, TensorMut};

    const _: () = assert!(size_of::<sys::DLManagedTensorVersioned>() == size_of::<DLManagedTensorVersioned>());

    impl Session {
        /// Takes a tensor of the crate dlpk over, as [`from_dlpack`](Session::from_dlpack). Errors are those
        /// of that.
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
        /// # let session = baton::Session::connect()?;
        /// let theirs = dlpk::DLPackTensor::try_from(vec![1i32, 2, 3])?;
        /// assert_eq!(session.from_dlpk(theirs)?.to_vec::<i32>()?, [1, 2, 3]);
        /// # Ok(()) }
        /// ```
        pub fn from_dlpk(&self, t: DLPackTensor) -> Result<Tensor> {
            // Both are the header's structure, at an address that is not null. It is dropped here, by this thread.
            self.from_dlpack(Managed::<DLManagedTensorVersioned>::made(t.into_raw().cast()))
        }
    }

    /// The memory itself, which goes when dlpk's tensor does. `InvalidArgument` for booleans: dlpk reads them as
    /// Rust's `bool`, of which a byte of shared memory need not be a value.
    impl<T: Element> TryFrom<TensorMut<T>> for DLPackTensor {
        type Error = Error;

        fn try_from(t: TensorMut<T>) -> Result<DLPackTensor> {
            let t = t.freeze();
            if t.dtype().code == DType::BOOL.code {
                let remedy = "give the bytes: view_as(DType::UINT8, …)";
                return Err(Error::new(Code::InvalidArgument, remedy, "booleans for dlpk may be neither 0 nor 1"));
            }
            let m = t.to_dlpack(ExportOptions::default())?;
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

    impl Managed<DLManagedTensorVersioned> {
        /// Takes a tensor of the crate dlpark over. Error: `InvalidArgument` for a structure at an impossible address.
        ///
        /// # Safety
        /// Its elements may be read at the address that it gives, as [`from_raw`](Managed::from_raw) says. dlpark asks
        /// that of no maker of one.
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
        /// # let session = baton::Session::connect()?;
        /// use baton::dlpack::{ExportOptions, Managed};
        ///
        /// let x = session.from_slice(&[2], &[1i32, 2])?.freeze();
        /// let theirs: dlpark::Managed<_> = x.to_dlpack(ExportOptions::default())?.try_into()?;
        /// let m = unsafe { Managed::from_dlpark(theirs)? }; // it was made of a tensor just above
        /// assert_eq!(session.from_dlpack(m)?.to_vec::<i32>()?, [1, 2]);
        /// # Ok(()) }
        /// ```
        pub unsafe fn from_dlpark(m: dlpark::Managed<ffi::DLManagedTensorVersioned>) -> Result<Self> {
            // SAFETY: the header's structure, which dlpark owns; for the elements the caller answers.
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
