//! What waits for a session's bell in the place of threads: poll loops and tasks.

use std::sync::{Arc, OnceLock};

use super::PollFd;
#[cfg(feature = "tokio")]
use super::Tasks;

/// The sleepers of one opening, made when they are first asked for.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    pub(crate) poll: OnceLock<Arc<PollFd>>,
    #[cfg(feature = "tokio")]
    pub(crate) tasks: OnceLock<Arc<Tasks>>,
}

impl Watchers {
    /// Whether a poll loop or a task has announced that it waits: what it looks at is to ring.
    pub(crate) fn are_armed(&self) -> bool {
        let armed = self.poll.get().is_some_and(|p| p.is_armed());
        #[cfg(feature = "tokio")]
        let armed = armed || self.tasks.get().is_some_and(|t| t.is_armed());
        armed
    }

    /// Lets a program that polls, and tasks, see that the session has ended.
    pub(crate) fn end(&self) {
        if let Some(p) = self.poll.get() {
            p.end();
        }
        #[cfg(feature = "tokio")]
        if let Some(t) = self.tasks.get() {
            t.end();
        }
    }
}
