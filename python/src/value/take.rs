//! What becomes of the arrays of a value: which are referenced, which are copied or lent.

use baton::{Session, Stream};
use pyo3::prelude::*;

use crate::arrays::room::Room;
use crate::arrays::source::Source;
use crate::base::cuda::alloc_on;
use crate::base::errors::{OrRaise, invalid};

/// What becomes of the tensors of a value.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Take {
    /// Those in shared memory are referenced, the others copied.
    Reference,
    /// Those in the session's shared memory are referenced, the others copied, also those of other sessions.
    Ours,
    /// Those in the session's shared memory are referenced, others refused.
    Shared,
    /// Tensors stay as they are, wherever they lie; arrays are copied.
    AsIs,
    /// All are copied into one storage.
    Copy,
    /// All get room in one storage, to be filled.
    Room(Room),
}

impl Take {
    /// Whether a tensor stays as it is.
    pub(crate) fn keeps(self, py: Python<'_>, session: &Session, t: &baton::Tensor) -> PyResult<bool> {
        Ok(match self {
            Take::AsIs => true,
            Take::Reference => t.is_shared(),
            Take::Ours | Take::Shared => t.is_shared() && t.belongs_to(session).or_raise(py)?,
            Take::Copy | Take::Room(_) => false,
        })
    }

    /// The tensor that an array is; `None` where it has to be made.
    pub(crate) fn in_place(self, py: Python<'_>, session: &Session, s: &Source) -> PyResult<Option<baton::Tensor>> {
        let own = match self {
            Take::Reference | Take::Ours | Take::Shared | Take::AsIs => s.in_place(py, session)?,
            Take::Copy | Take::Room(_) => None,
        };
        if own.is_none() && self == Take::Shared {
            let what = "an array of the value does not lie in shared memory of this session";
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
            Take::Reference | Take::Ours | Take::Shared | Take::AsIs => {
                if let Some(t) = s.in_place(py, session)? {
                    return Ok(t);
                }
                if self == Take::Shared && s.is_tensor() {
                    let what = "the tensor does not lie in memory of this session";
                    return Err(invalid(py, "leave copy=False out", what));
                }
                if self == Take::Shared || s.is_rented(py, session)? {
                    return s.lend(py, session);
                }
            }
        }
        s.copied_on(py, session, &gpu, Stream::LEGACY)
    }
}
