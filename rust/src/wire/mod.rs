//! The control plane: JSON frames with descriptors over a Unix socket (docs/protocol.md, section 2).

mod control;
mod frame;
pub(crate) mod ops;

pub(crate) use control::{Control, Event, Incoming, Keep, NO_DESCRIPTORS, OrphanedReply, Reply, decode};
pub(crate) use frame::Frames;
