//! Topics, queues and names: their members, the session's own lane, cursors over the lanes of others, and the messages that are
//! sent and taken there.
//!
//! [`Lanes`] is what one session has, whichever opening made it; [`Topics`] what one opening has open.

mod any;
mod call_reader;
mod calls;
mod channel;
mod closable;
mod closer;
mod counted;
mod cursor;
mod got;
mod joined;
mod late;
mod leave;
mod members;
mod message;
mod name;
mod options;
mod own;
mod provided;
mod queue;
mod quick;
mod reader;
mod send;
mod space;
mod stamps;
#[cfg(feature = "tokio")]
mod tasks;
#[cfg(test)]
mod tests;
mod token;
mod topic;
mod unwanted;
mod view;

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};

pub use any::{Waitable, wait_any};
pub(crate) use calls::{CanBegin, Claimed, FunctionRecord, Sent, Wanted};
pub use channel::Topic;
pub use closable::Closable;
pub use closer::Closer;
pub(crate) use got::Got;
pub(crate) use late::Unawaited;
pub use message::Message;
pub use name::Watch;
pub(crate) use name::bundle_of;
pub use options::{NameOptions, QueueOptions, TopicOptions};
pub(crate) use provided::Counts;
pub use queue::Queue;
pub use reader::{Reader, Start};
pub(crate) use token::{check_name, check_token};
pub(crate) use topic::{FUNCTION, TopicState, Topics};

use counted::Counting;
use joined::Joining;
use late::Late;
use space::LaneSpace;

/// What one session has to do with lanes.
#[derive(Debug)]
pub(crate) struct Lanes {
    space: Mutex<LaneSpace>,
    /// The number that the next reader has.
    readers: AtomicU64,
    counting: Counting,
    /// The number that the next opening of a topic has.
    next_opening: AtomicU64,
    pub(crate) joining: Joining,
    pub(crate) late: Late,
}

impl Lanes {
    pub(crate) fn new() -> Lanes {
        Lanes {
            space: Mutex::new(LaneSpace::new()),
            readers: AtomicU64::new(1),
            counting: Counting::default(),
            next_opening: AtomicU64::new(1),
            joining: Joining::default(),
            late: Late::default(),
        }
    }

    /// The space of the session's own file for lanes.
    fn space(&self) -> MutexGuard<'_, LaneSpace> {
        self.space.lock().unwrap_or_else(|p| p.into_inner())
    }
}
