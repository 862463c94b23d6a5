//! The notice that a [`Sleeper`] gives to async tasks.

use tokio::sync::Notify;

use super::sleeper::{Alarm, Sleeper};

/// The thread that sleeps for the tasks.
pub(crate) type Tasks = Sleeper<Notify>;

impl Alarm for Notify {
    fn raise(&self) {
        self.notify_waiters();
    }
}
