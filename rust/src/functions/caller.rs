//! A function as its callers have it.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::{Arguments, IntoArguments};
use super::calls::{Calls, Home};
use super::convert::{FromValue, refused};
use super::given::{Scope, over};
use super::known::{Known, Times};
use super::name::check_function;
use super::parts::Parts;
use super::pending::Pending;
use super::reply::Reply;
use super::sending::Sending;
use super::signature::By;
use super::target::{LentTo, Limits, Target, await_anew};
use crate::deadline::{by, deadline, is_past};
use crate::error::{Error, Result, closed};
use crate::holding::Opening;
use crate::value::{FunctionIs, FunctionValue, Lent, Value, token_bytes};

/// Parts that a provider may have sent and the caller has not taken: mostly, and at most.
const AHEAD: u32 = 16;
const MOST_AHEAD: u32 = 63;

/// Refuses a number of parts that none can be ahead.
#[doc(hidden)]
pub fn check_ahead(parts: impl TryInto<u32> + Copy + fmt::Display) -> Result<()> {
    match parts.try_into() {
        Ok(1..=MOST_AHEAD) => Ok(()),
        _ => Err(refused(format!("{parts} parts ahead are not 1 to {MOST_AHEAD}"))),
    }
}

/// The times of a call that has begun, before its arguments are made.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Begun {
    times: Times,
}

impl Begun {
    /// Makes what the call is given: a broker that is asked for memory is waited for until the deadline.
    #[doc(hidden)]
    #[inline]
    pub fn making<T>(self, part: impl FnOnce() -> T) -> T {
        by(self.times.0, part)
    }
}

/// A function that processes provide, to be called. Clones are the same one.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use std::time::Duration;
/// use baton::{Code, Tensor};
///
/// let doubles = session.provide("vision/scale")?.parameter("x", "tensor").optional("by", "float", 2.0);
/// let _doubles = doubles.result("tensor").doc("Scales.").serve(|args, _| {
///     let (mut x, by): (Tensor, f32) = (args.get("x")?, args.get("by")?);
///     // The caller waits, and nothing else has the tensor.
///     unsafe { x.as_mut_slice::<f32>()? }.iter_mut().for_each(|x| *x *= by);
///     Ok(x)
/// })?;
///
/// let scale = session.get_function("vision/scale")?;
/// assert_eq!((scale.doc(), scale.providers()), ("Scales.".to_owned(), 1));
/// assert_eq!(scale.signature(), "(x: tensor, by: float = 2.0) -> tensor");
/// let x = session.from_slice(&[2], &[1f32, 2.0])?.freeze();
/// let y: Tensor = scale.call((&x,))?; // a handle goes there and back
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0]);
/// let e = scale.call::<Tensor>(("text",)).unwrap_err(); // before anything is sent
/// assert_eq!(e.code(), Code::InvalidArgument);
/// scale.timeout(Duration::from_secs(5)).call::<Tensor>((&x, 0.5))?; // at most so long
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Function {
    inner: Arc<Opening>,
    calls: Arc<Calls>,
    known: Arc<Known>,
    limits: Limits,
    /// Of one that came as an argument.
    lent: Option<LentTo>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Function {
    /// Opens the function of a name; waits for one, and for a provider, where that is given.
    pub(crate) fn open(
        inner: &Arc<Opening>,
        calls: &Arc<Calls>,
        name: &str,
        wait: Option<Duration>,
    ) -> Result<Function> {
        let until = deadline(wait);
        let mut known = calls.function(inner, name, wait)?;
        while wait.is_some() && !known.has_provider() {
            known = await_anew(inner, calls, known, (None, until))?;
        }
        let limits = Limits { wait, ..Limits::default() };
        Ok(Function { inner: inner.clone(), calls: calls.clone(), known, limits, lent: None })
    }

    /// Opens the function of a name to be called at once.
    pub(crate) fn open_to_call(inner: &Arc<Opening>, calls: &Arc<Calls>, name: &str) -> Result<Function> {
        let limits = Limits { by_name: true, ..Limits::default() };
        let known = calls.function_to_call(inner, name, limits.times().0, None)?;
        Ok(Function { inner: inner.clone(), calls: calls.clone(), known, limits, lent: None })
    }

    /// A function that came as an argument of a call.
    pub(super) fn lent(inner: &Arc<Opening>, calls: &Arc<Calls>, lent: Lent, scope: &Arc<Scope>) -> Result<Function> {
        if inner.is_foreign() || scope.is_over() {
            return Err(over());
        }
        let known = calls.lent(inner, &lent.token)?;
        let lent = Some(LentTo { object: lent.object, scope: scope.clone() });
        Ok(Function { inner: inner.clone(), calls: calls.clone(), known, limits: Limits::default(), lent })
    }

    /// As an argument: by its name. One that came as an argument is its receiver's alone, which is said where it is sent.
    #[doc(hidden)]
    pub fn value(&self) -> FunctionValue {
        let lent = self.lent.as_ref().zip(token_bytes(&self.known.topic.info.token));
        FunctionValue::of(match lent {
            Some((lent, token)) => FunctionIs::Lent(Lent { token, object: lent.object }),
            None => FunctionIs::Named(self.name().into()),
        })
    }

    /// Whether it came as an argument of a call, and can be called until that ends.
    pub fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Its name, with its version.
    pub fn name(&self) -> &str {
        self.known.name()
    }

    /// What it does, as its provider says.
    pub fn doc(&self) -> String {
        self.known.described().doc
    }

    /// What it takes and gives, as its provider says.
    pub fn signature(&self) -> String {
        self.known.described().to_text()
    }

    /// How many sessions provide it now.
    pub fn providers(&self) -> u32 {
        self.known.record.registered().providers
    }

    /// The same function, whose calls take so long at most: `Timeout`. The provider is told that the caller does not
    /// wait any more.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Function {
        self.limits.timeout = Some(timeout);
        self
    }

    /// The same function, whose calls wait so long for a provider if there is none.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Function {
        self.limits.wait = Some(wait);
        self
    }

    /// The same function, whose calls let so many parts be ahead of what is taken of them, 1 to 63 (default 16); any
    /// other number is `InvalidArgument` where it is called.
    #[must_use]
    pub fn ahead(mut self, parts: u32) -> Function {
        self.limits.ahead = Some(parts);
        self
    }

    /// Calls the function and waits for what it returns. It ends once: with the result, with the function's own error
    /// (`Remote`), or with `NoProvider`, `ProviderDied`, `Timeout`, `Closed`, `BrokerLost`; within another call
    /// also with `Cancelled`. Arguments that do not fit are `InvalidArgument`, before anything is sent.
    #[inline]
    pub fn call<R: FromValue>(&self, args: impl IntoArguments) -> Result<R> {
        R::from_value(self.invoke(args.into_arguments())?)
    }

    #[inline]
    fn invoke(&self, args: Arguments) -> Result<Value> {
        let (inner, known) = self.here()?;
        let target = Target { inner, calls: &self.calls, known: &known, lent: self.lent.as_ref() };
        target.invoke(args, self.limits, self.limits.times())?.result(&self.calls)
    }

    /// Begins a call whose arguments are made yet, for bindings: its times count from now on.
    #[doc(hidden)]
    #[inline]
    pub fn begin(&self) -> Begun {
        Begun { times: self.limits.times() }
    }

    /// The error of a call whose deadline has passed before it could be made.
    #[doc(hidden)]
    pub fn is_late(&self, begun: Begun) -> Option<Error> {
        is_past(begun.times.0).then(|| self.known.late())
    }

    /// A call that is to be sent, and waited for later. What does not fit is refused at once.
    #[doc(hidden)]
    pub fn sending(&self, begun: Begun, args: Arguments) -> Result<Sending> {
        self.to_send(begun, args, 0)
    }

    /// As `sending`, of a function that gives parts.
    #[doc(hidden)]
    pub fn sending_for_parts(&self, begun: Begun, args: Arguments) -> Result<Sending> {
        let ahead = self.limits.ahead.unwrap_or(AHEAD);
        check_ahead(ahead)?;
        self.to_send(begun, args, ahead)
    }

    fn to_send(&self, begun: Begun, args: Arguments, window: u32) -> Result<Sending> {
        let (inner, known) = self.here()?;
        let known = known.into_owned();
        let target = Target { inner, calls: &self.calls, known: &known, lent: self.lent.as_ref() };
        Sending::new(&target, known.clone(), self.limits, begun.times, window, args)
    }

    /// The name of the parameter that is given at a position, if its provider says, for bindings.
    #[doc(hidden)]
    pub fn parameter(&self, i: usize) -> Option<String> {
        let described = self.known.described();
        described.parameters().iter().filter(|p| p.by != By::Name).nth(i).map(|p| p.name.to_string())
    }

    /// As `call`, for bindings.
    #[inline]
    #[doc(hidden)]
    pub fn reply(&self, begun: Begun, args: Arguments) -> Result<Reply> {
        let (inner, known) = self.here()?;
        let target = Target { inner, calls: &self.calls, known: &known, lent: self.lent.as_ref() };
        let (times, until) = (begun.times, begun.times.0);
        target.invoke(args, self.limits, times).map(|received| Reply { received, calls: self.calls.clone(), until })
    }

    /// The session and the function to use in this process: in the child of a fork those of its own.
    #[inline]
    fn here(&self) -> Result<(&Arc<Opening>, Cow<'_, Arc<Known>>)> {
        let inner = self.inner.here()?;
        let known = match self.known.topic.inner.is_foreign() {
            false => Cow::Borrowed(&self.known),
            true if self.lent.is_some() => return Err(over()), // the parent's
            true => Cow::Owned(self.calls.function(inner, self.known.name(), None)?),
        };
        Ok((inner, known))
    }

    /// As [`call`](Function::call), without waiting for what it returns: for the arguments to have room it
    /// waits. Each call that is under way so has a topic for its reply. Errors as of
    /// [`call`](Function::call); those of the call itself come when it is waited for.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    ///
    /// let _square = session.provide("square")?.concurrency(2).serve(|args, _| Ok(args.get::<i64>(0)?.pow(2)))?;
    /// let square = session.get_function("square")?;
    /// let pending = (0..4).map(|i| square.submit((i,))).collect::<Result<Vec<_>, _>>()?;
    /// let sum: i64 = pending.into_iter().map(|p| p.wait::<i64>()).sum::<Result<_, _>>()?;
    /// assert_eq!(sum, 14);
    /// let mut one = square.submit((3,))?;
    /// while !one.wait_for(Duration::from_millis(10)) {} // meanwhile other things
    /// assert!(one.is_over());
    /// assert_eq!(one.wait::<i64>()?, 9);
    /// square.submit((4,))?.cancel(); // wanted no more, as where it is dropped
    /// # Ok(()) }
    /// ```
    pub fn submit(&self, args: impl IntoArguments) -> Result<Pending> {
        let mut sending = self.sending(self.begin(), args.into_arguments())?;
        sending.wait()?;
        sending.pending()
    }

    /// Calls a function that gives parts, one after the other: an iterator of them. The function runs ahead of what is
    /// taken, as far as [`ahead`](Function::ahead) says. `InvalidArgument` of a function that gives no parts.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let _squares = session.provide("squares")?.serve_parts(|_, _, parts| {
    ///     (0..).try_for_each(|i: i64| parts.send(i * i)) // until the caller wants no more
    /// })?;
    /// let squares = session.get_function("squares")?.ahead(4);
    /// let below_100: Vec<i64> = squares.stream(())?.map_while(Result::ok).take_while(|n| *n < 100).collect();
    /// assert_eq!(below_100.len(), 10);
    /// assert_eq!(squares.call::<()>(()).unwrap_err().code(), baton::Code::InvalidArgument);
    /// # Ok(()) }
    /// ```
    pub fn stream<T: FromValue>(&self, args: impl IntoArguments) -> Result<Parts<T>> {
        let mut sending = self.sending_for_parts(self.begin(), args.into_arguments())?;
        sending.wait()?;
        sending.parts()
    }

    /// As [`call`](Function::call), for async tasks: the thread is free for others meanwhile. Dropped, as by
    /// `select!`, it cancels the call. Errors as of [`call`](Function::call).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let _add = session.function("add", |args, _| Ok(args.get::<i64>(0)? + args.get::<i64>(1)?))?;
    /// let add = session.get_function("add")?;
    /// assert_eq!(add.call_async::<i64>((1, 2)).await?, 3);
    /// # Ok(()) }) }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn call_async<R: FromValue>(&self, args: impl IntoArguments) -> Result<R> {
        let mut sending = self.sending(self.begin(), args.into_arguments())?;
        sending.wait_async().await?;
        sending.pending()?.wait_async().await
    }

    /// As [`stream`](Function::stream), for async tasks: also while it waits for room or for a provider the
    /// thread is free for others. The parts come by [`next_async`](Parts::next_async). Errors as of
    /// [`stream`](Function::stream).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let session = baton::Session::connect()?;
    /// let _count = session.provide("count")?.serve_parts(|_, _, parts| (0..3).try_for_each(|i| parts.send(i)))?;
    /// let mut parts = session.get_function("count")?.stream_async::<i64>(()).await?;
    /// assert_eq!(parts.next_async().await.transpose()?, Some(0));
    /// # Ok(()) }) }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn stream_async<T: FromValue>(&self, args: impl IntoArguments) -> Result<Parts<T>> {
        let mut sending = self.sending_for_parts(self.begin(), args.into_arguments())?;
        sending.wait_async().await?;
        sending.parts()
    }
}

/// A call by name that is to be made; see [`Session::calling`](crate::Session::calling).
#[derive(Debug, Clone)]
#[must_use = "call it"]
pub struct Calling<'a> {
    inner: &'a Arc<Opening>,
    calls: &'a Arc<Calls>,
    name: &'a str,
    limits: Limits,
}

impl<'a> Calling<'a> {
    pub(crate) fn new(inner: &'a Arc<Opening>, calls: &'a Arc<Calls>, name: &'a str) -> Calling<'a> {
        Calling { inner, calls, name, limits: Limits { by_name: true, ..Limits::default() } }
    }

    /// As [`Function::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Calling<'a> {
        self.limits.timeout = Some(timeout);
        self
    }

    /// As [`Function::wait`], also for the function itself.
    pub fn wait(mut self, wait: Duration) -> Calling<'a> {
        self.limits.wait = Some(wait);
        self
    }

    /// As [`Function::call`]; `NotFound` if there is no such function.
    #[inline]
    pub fn call<R: FromValue>(&self, args: impl IntoArguments) -> Result<R> {
        let times = self.limits.times();
        let known = self.calls.function_to_call(self.inner, self.name, times.0, self.limits.wait)?;
        let target = Target { inner: self.inner, calls: self.calls, known: &known, lent: None };
        R::from_value(target.invoke(args.into_arguments(), self.limits, times)?.result(self.calls)?)
    }
}

impl FromValue for Function {
    /// Of a function that came with a call, or its result.
    fn from_value(v: Value) -> Result<Function> {
        FunctionValue::from_value(v)?.function()
    }
}

impl FunctionValue {
    /// A function that processes provide, or will.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no name.
    pub fn named(name: &str) -> Result<FunctionValue> {
        check_function(name)?;
        Ok(FunctionValue::of(FunctionIs::Named(name.into())))
    }

    /// The function, to be called: of one that came with a call, or its result. One that the caller has lent can be
    /// called until that call ends, and is `Closed` after it.
    ///
    /// # Errors
    /// Those of [`Session::get_function`](crate::Session::get_function); `InvalidArgument` of one that came with no
    /// call.
    pub fn function(&self) -> Result<Function> {
        let at: Option<&(dyn Any + Send + Sync)> = self.at.as_deref();
        let Some(home) = at.and_then(|at| at.downcast_ref::<Home>()) else {
            return Err(refused("the function came with no call: get it by its name from a session".to_owned()));
        };
        let calls = home.calls.upgrade().ok_or_else(|| closed("the session"))?;
        match (&self.is, &home.scope) {
            (FunctionIs::Named(name), _) => Function::open(home.inner.here()?, &calls, name, None),
            (FunctionIs::Lent(lent), Some(scope)) => Function::lent(&home.inner, &calls, *lent, scope),
            _ => Err(refused("a function of this process cannot be called here".to_owned())),
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
