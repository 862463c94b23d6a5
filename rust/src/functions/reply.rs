//! The result of a call as bindings see it.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::calls::Calls;
use super::given::SessionCalls;
use super::received::{Origin, Received};
use super::record::malformed;
use crate::deadline::by;
use crate::value::Build;

/// What a function has returned, for bindings, which make objects of it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Reply {
    pub(super) received: Received,
    pub(super) calls: Arc<Calls>,
    /// The deadline of the call: what is opened for the result is waited for until then.
    pub(super) until: Option<Instant>,
}

impl Reply {
    /// As `Args::build`, of the result alone.
    pub fn build<B: Build>(
        &self,
        b: &B,
        item: impl Fn(&B::Made, usize) -> std::result::Result<B::Made, B::Error>,
    ) -> std::result::Result<B::Made, B::Error> {
        self.received.only()?;
        let mut made = None;
        let calls = Arc::downgrade(&self.calls) as Weak<dyn SessionCalls>;
        let from = Origin { calls: Some(&calls), scope: None };
        let take = |_: &str, m| {
            made = Some(m);
            Ok(())
        };
        by(self.until, || self.received.build(b, from, item, take))?;
        made.ok_or_else(|| malformed("no result").into())
    }
}
