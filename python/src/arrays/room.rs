//! Memory for tensors.

use std::time::Duration;

use baton::{DType, HugePages, Session};
use pyo3::prelude::*;

use crate::base::errors::OrRaise;
use crate::base::wait::{timeout as seconds, wait};

/// Where memory is full an allocation says so at once.
pub(crate) const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

/// How room is made: how long that may wait where memory is full (`None`: no limit), and in pages of
/// which size.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Room {
    pub(crate) timeout: Option<Duration>,
    pub(crate) pages: Option<HugePages>,
}

impl Room {
    /// As Python says it: seconds, and huge pages of "2M" or "1G".
    pub(crate) fn of(py: Python<'_>, timeout: Option<f64>, pages: Option<&str>) -> PyResult<Room> {
        Ok(Room { timeout: seconds(py, timeout)?, pages: pages.map(str::parse).transpose().or_raise(py)? })
    }
}

/// Memory for a compact tensor: what is at hand, else without the interpreter, since the broker may have to
/// grant it.
pub(crate) fn alloc(
    py: Python<'_>,
    s: &Session,
    d: DType,
    shape: &[i64],
    timeout: Option<Duration>,
) -> PyResult<baton::Tensor> {
    match s.alloc_at_hand(d, shape).or_raise(py)? {
        Some(t) => Ok(t),
        None => wait(py, || s.allocation(shape).timeout(timeout).raw(d).map(baton::TensorMut::freeze)),
    }
}

/// As `alloc`, in huge pages if their size is given.
pub(crate) fn alloc_room(py: Python<'_>, s: &Session, d: DType, shape: &[i64], room: Room) -> PyResult<baton::Tensor> {
    match room.pages {
        None => alloc(py, s, d, shape, room.timeout),
        Some(p) => wait(py, || s.allocation(shape).timeout(room.timeout).pages(p).raw(d).map(baton::TensorMut::freeze)),
    }
}
