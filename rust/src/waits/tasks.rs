//! The notice that a [`Sleeper`] gives to async tasks.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use tokio::sync::Notify;

use super::sleeper::{Alarm, Sleeper};
use crate::panics::caught;

/// The thread that sleeps for the tasks.
pub(crate) type Tasks = Sleeper<Notify>;

impl Alarm for Notify {
    fn raise(&self) {
        self.notify_waiters();
    }
}

/// Waits for the next notice. A waker is the program's: what panics in one ends neither the thread that gives the notice
/// nor the notice of other tasks.
pub(crate) async fn noticed(mut notice: Pin<&mut impl Future<Output = ()>>) {
    poll_fn(|context| {
        let waker = Waker::from(Arc::new(Caught(context.waker().clone())));
        notice.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await;
}

struct Caught(Waker);

impl Wake for Caught {
    fn wake(self: Arc<Self>) {
        let _ = caught(|| self.0.wake_by_ref());
    }
}
