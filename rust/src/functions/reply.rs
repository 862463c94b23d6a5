//! The result of a call as bindings see it.

use std::sync::{Arc, Weak};

use super::calls::Calls;
use super::given::SessionCalls;
use super::received::{Origin, Received};
use super::record::malformed;
use crate::value::Build;

/// What a function has returned, for bindings, which make objects of it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Reply(pub(super) Received, pub(super) Arc<Calls>);

impl Reply {
    /// As `Args::build`, of the result alone.
    pub fn build<B: Build>(
        &self,
        b: &B,
        item: impl Fn(&B::Made, usize) -> std::result::Result<B::Made, B::Error>,
    ) -> std::result::Result<B::Made, B::Error> {
        self.0.only()?;
        let mut made = None;
        let calls = Arc::downgrade(&self.1) as Weak<dyn SessionCalls>;
        let from = Origin { calls: Some(&calls), scope: None };
        self.0.build(b, from, item, |_, m| {
            made = Some(m);
            Ok(())
        })?;
        made.ok_or_else(|| malformed("no result").into())
    }
}
