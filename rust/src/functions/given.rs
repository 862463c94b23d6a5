//! Functions that came with a call or its result: what makes them callable, and for how long.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::error::{Code, Error};
use crate::holding::Opening;
use crate::tensor::Tensor;
use crate::value::{Build, FunctionValue, Value};

/// Whether the call is over with which functions came: they can be called no more.
#[derive(Debug, Default)]
pub(crate) struct Scope(AtomicBool);

impl Scope {
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Ends it. A call of such a function that waits looks again.
    pub(super) fn end(&self, inner: &Opening) {
        // The wait has read its session's bell before it looks, and the bell changes after this.
        self.0.store(true, Ordering::SeqCst);
        inner.waiter.wake();
    }
}

/// The error of a call of a function whose own call is over.
#[cold]
pub(super) fn over() -> Error {
    let what = "the call is over with which the function came";
    Error::new(Code::Closed, "call it while that runs, or register it", what)
}

/// What the calls of a session have in common, as what answers calls and reads their messages knows it.
pub(crate) trait SessionCalls: fmt::Debug + Send + Sync {
    /// Where functions can be called that came with a message: of a call until its scope is over.
    fn home(self: Arc<Self>, inner: &Arc<Opening>, scope: Option<Arc<Scope>>) -> Arc<dyn Any + Send + Sync>;

    /// Leaves private functions whose lender has ended.
    fn sweep(&self);
}

/// Builds values whose functions can be called.
pub(super) struct WithFunctions<'a, B> {
    pub(super) builder: &'a B,
    pub(super) inner: &'a Arc<Opening>,
    pub(super) calls: Option<&'a Weak<dyn SessionCalls>>,
    /// Of arguments: made with the first function.
    pub(super) scope: Option<&'a OnceLock<Arc<Scope>>>,
}

impl<B: Build> Build for WithFunctions<'_, B> {
    type Made = B::Made;
    type Error = B::Error;

    fn function(&self, mut f: FunctionValue) -> std::result::Result<B::Made, B::Error> {
        let scope = self.scope.map(|s| s.get_or_init(Arc::default).clone());
        if scope.is_none() && f.name().is_none() {
            let what = "a result with a function that is not registered";
            return Err(Error::new(Code::Protocol, "update or restart its sender", what).into());
        }
        f.at = self.calls.and_then(Weak::upgrade).map(|calls| calls.home(self.inner, scope));
        self.builder.function(f)
    }

    fn tensor(&self, t: Tensor) -> std::result::Result<B::Made, B::Error> {
        self.builder.tensor(t)
    }

    fn scalar(&self, v: Value) -> std::result::Result<B::Made, B::Error> {
        self.builder.scalar(v)
    }

    fn text(&self, s: &str) -> std::result::Result<B::Made, B::Error> {
        self.builder.text(s)
    }

    fn list(&self, all: Vec<B::Made>) -> std::result::Result<B::Made, B::Error> {
        self.builder.list(all)
    }

    fn tuple(&self, all: Vec<B::Made>) -> std::result::Result<B::Made, B::Error> {
        self.builder.tuple(all)
    }

    fn named_tuple(&self, class: &str, fields: &[String], all: Vec<B::Made>) -> std::result::Result<B::Made, B::Error> {
        self.builder.named_tuple(class, fields, all)
    }

    fn dict(&self, items: Vec<(B::Made, B::Made)>) -> std::result::Result<B::Made, B::Error> {
        self.builder.dict(items)
    }

    fn named(
        &self,
        class: Option<&str>,
        items: Vec<(&str, B::Made)>,
    ) -> std::result::Result<Option<B::Made>, B::Error> {
        self.builder.named(class, items)
    }
}
