//! Functions that came with a call or its result, and can be called.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::caller::Function;
use super::convert::refused;
use super::known::Calls;
use super::name::check_function;
use crate::error::{Code, Error, Result, closed};
use crate::holding::Opening;
use crate::tensor::Tensor;
use crate::value::{Build, FunctionIs, FunctionValue, Value};

/// Whether the call is over with which functions came: they can be called no more.
#[derive(Debug, Default)]
pub(super) struct Scope(AtomicBool);

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

/// Where functions can be called that came with a message.
#[derive(Debug)]
pub(super) struct Home {
    inner: Arc<Opening>,
    calls: Weak<Calls>,
    /// Of the call that they came with; a result has registered functions alone.
    scope: Option<Arc<Scope>>,
}

/// Builds values whose functions can be called.
pub(super) struct Calling<'a, B> {
    pub(super) builder: &'a B,
    pub(super) inner: &'a Arc<Opening>,
    pub(super) calls: &'a Weak<Calls>,
    /// Of arguments: made with the first function.
    pub(super) scope: Option<&'a OnceLock<Arc<Scope>>>,
}

impl<B: Build> Build for Calling<'_, B> {
    type Made = B::Made;
    type Error = B::Error;

    fn function(&self, mut f: FunctionValue) -> std::result::Result<B::Made, B::Error> {
        let scope = self.scope.map(|s| s.get_or_init(Arc::default).clone());
        if scope.is_none() && f.name().is_none() {
            let what = "a result with a function that is not registered";
            return Err(Error::new(Code::Protocol, "its sender is at fault", what).into());
        }
        f.at = Some(Arc::new(Home { inner: self.inner.clone(), calls: self.calls.clone(), scope }));
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

impl FunctionValue {
    /// A function that processes provide, or will. Errors: `InvalidArgument` for what is no name.
    pub fn named(name: &str) -> Result<FunctionValue> {
        check_function(name)?;
        Ok(FunctionValue::of(FunctionIs::Named(name.into())))
    }

    /// The function, to be called: of one that came with a call, or its result. One that the caller has lent can be
    /// called until that call ends, and is `Closed` behind it. Errors: those of
    /// [`Session::get_function`](crate::Session::get_function); `InvalidArgument` of one that came with no call.
    pub fn function(&self) -> Result<Function> {
        let at: Option<&(dyn Any + Send + Sync)> = self.at.as_deref();
        let Some(home) = at.and_then(|at| at.downcast_ref::<Home>()) else {
            return Err(refused("the function came with no call: get it by its name from a session".to_owned()));
        };
        let calls = home.calls.upgrade().ok_or_else(|| closed("the session"))?;
        match (&self.is, &home.scope) {
            (FunctionIs::Named(name), _) => Function::open(home.inner.here()?, &calls, name, None),
            (FunctionIs::Lent(lent), Some(scope)) => Function::lent(&home.inner, &calls, *lent, scope),
            _ => Err(refused("the function is one of this process".to_owned())),
        }
    }
}

impl From<&FunctionValue> for Value {
    fn from(f: &FunctionValue) -> Value {
        f.clone().into()
    }
}

impl From<&Function> for Value {
    /// The function by its name, for the receiver to call.
    fn from(f: &Function) -> Value {
        f.value().into()
    }
}
