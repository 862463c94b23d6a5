//! Openings for tests of this layer and of higher ones.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Above, Heirs, Opening};
use crate::link::fixture::Broker;
use crate::memory::fixture::{self, Files};

/// What a test has above an opening: parts of its layer, and how often the opening came to be of no use.
#[derive(Default)]
pub(crate) struct Parts {
    part: Option<Box<dyn Any + Send + Sync>>,
    pub(super) unused: Arc<AtomicUsize>,
}

impl Parts {
    /// With the part of one layer.
    pub(crate) fn of<T: Any + Send + Sync>(part: T) -> Parts {
        Parts { part: Some(Box::new(part)), ..Parts::default() }
    }
}

impl Above for Parts {
    fn withdraw_done(&self) {}

    fn unused(&self, _: &Opening) {
        self.unused.fetch_add(1, Ordering::Relaxed);
    }

    fn part(&self, of: TypeId) -> Option<&(dyn Any + Send + Sync)> {
        self.part.as_deref().filter(|p| (*p).type_id() == of)
    }
}

/// An opening with these parts above it.
pub(crate) fn opening(parts: Parts) -> (Arc<Opening>, Broker, Files) {
    let (access, broker, files) = fixture::access();
    (Opening::new(access, Arc::new(Heirs::new()), Box::new(parts)), broker, files)
}
