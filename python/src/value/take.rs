//! What becomes of the arrays of a value: which are referenced, which are copied or lent.

use baton::{Session, Stream};
use pyo3::prelude::*;

use crate::arrays::room::Room;
use crate::arrays::source::Source;
use crate::base::cuda::alloc_on;
use crate::base::errors::invalid;

/// What becomes of the tensors of a value.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Take {
    /// Those in shared memory are referenced, the others copied.
    Reference,
    /// Those in shared memory are referenced, others refused.
    Shared,
    /// Tensors stay as they are, wherever they lie; arrays are copied.
    AsIs,
    /// All are copied into one storage.
    Copy,
    /// All get room in one storage, to be filled.
    Room(Room),
}

impl Take {
    /// The tensor that an array is; `None` where it has to be made.
    pub(super) fn in_place(self, py: Python<'_>, session: &Session, s: &Source) -> PyResult<Option<baton::Tensor>> {
        let own = match self {
            Take::Reference | Take::Shared | Take::AsIs => s.in_place(py, session)?,
            Take::Copy | Take::Room(_) => None,
        };
        if own.is_none() && self == Take::Shared {
            let what = "an array of the value does not lie in shared memory";
            return Err(invalid(py, "leave copy=False out", what));
        }
        Ok(own)
    }

    /// The tensor of an array on a GPU, which stays on it: lent where that is asked for, and where a copy
    /// can be spared.
    pub(crate) fn on_gpu(self, py: Python<'_>, session: &Session, s: Source) -> PyResult<baton::Tensor> {
        let gpu = s.gpu().unwrap_or_default();
        match self {
            Take::Room(Room { pages: Some(_), .. }) => {
                return Err(invalid(py, "leave pages= out", format!("memory on {gpu} has no huge pages")));
            }
            Take::Room(Room { timeout, .. }) => return alloc_on(py, session, &gpu, s.dtype(), &s.shape(), timeout),
            Take::Copy => {}
            Take::Reference | Take::Shared | Take::AsIs => {
                if let Some(t) = s.in_place(py, session)? {
                    return Ok(t);
                }
                if self == Take::Shared || s.is_rented(py, session)? {
                    return s.lend(py, session);
                }
            }
        }
        s.copied_on(py, session, &gpu, Stream::LEGACY)
    }
}
