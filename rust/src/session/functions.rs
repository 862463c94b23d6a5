//! Providing and calling functions.

use std::time::Duration;

use super::Session;
use crate::error::Result;
use crate::functions::{
    Args, Call, Calling, FromValue, Function, FunctionInfo, IntoArguments, Provide, Provided, check_function, list,
};
use crate::value::Value;
use crate::wire::ops::{FunctionRemoved, NameRef};

impl Session {
    /// Provides a function under a name, with the defaults: one call at a time, whatever is given. It is called by any
    /// process, in any language, as long as what is returned lives. A panic of the function is an error of the call. For
    /// options see [`provide`](Session::provide), also for the errors.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let _greets = session.function("greet", |args, _| Ok(format!("hello, {}", args.get::<String>(0)?)))?;
    /// assert_eq!(session.call::<String>("greet", ("world",))?, "hello, world");
    /// # Ok(()) }
    /// ```
    pub fn function<R, F>(&self, name: &str, handler: F) -> Result<Provided>
    where
        R: Into<Value>,
        F: Fn(&Args, &Call) -> Result<R> + Send + Sync + 'static,
    {
        self.provide(name)?.serve(handler)
    }

    /// Settings of a function that is to be provided. A version may follow the name: `name@1.2`.
    ///
    /// # Errors
    /// Those of a session that has ended.
    ///
    /// # Example
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let _sum = session.provide("sum@1")?.concurrency(2).idempotent(true).no_parameters().serve(|_, call| {
    ///     Ok(i64::from(call.attempt()))
    /// })?;
    /// assert_eq!(session.call::<i64>("sum", ())?, 1);
    /// # Ok(()) }
    /// ```
    pub fn provide(&self, name: &str) -> Result<Provide> {
        Ok(Provide::new(self.inner()?, self.calls.clone(), name))
    }

    /// Calls the function of a name, without a version the newest one, and waits for its result. A function that was
    /// called stays open: the next call asks no broker.
    ///
    /// # Errors
    /// `NotFound`, and those of [`Function::call`].
    ///
    /// # Example
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let _fails = session.function("fail", |_, _| Err::<(), _>(baton::Error::of_kind("ValueError", "bad value 3")))?;
    /// let e = session.call::<()>("fail", ()).unwrap_err();
    /// assert_eq!((e.code(), e.detail()["kind"].as_str()), (baton::Code::Remote, Some("ValueError")));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn call<R: FromValue>(&self, name: &str, args: impl IntoArguments) -> Result<R> {
        self.calling(name)?.call(args)
    }

    /// As `get_function`, of one that is called at once, for bindings: a broker that does not answer is waited for as by
    /// a call.
    #[doc(hidden)]
    pub fn function_to_call(&self, name: &str) -> Result<Function> {
        Function::open_to_call(self.inner()?, &self.calls, name)
    }

    /// A call by name with a timeout, or that waits for a provider. `Closed` if the session was closed;
    /// the call has the others.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    ///
    /// let _waits = session.function("wait", |_, call| call.wait_cancelled(None))?;
    /// let e = session.calling("wait")?.timeout(Duration::from_millis(10)).call::<bool>(()).unwrap_err();
    /// assert_eq!(e.code(), baton::Code::Timeout);
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn calling<'a>(&'a self, name: &'a str) -> Result<Calling<'a>> {
        Ok(Calling::new(self.inner()?, &self.calls, name))
    }

    /// A function to be called again and again. `NotFound` names similar ones.
    pub fn get_function(&self, name: &str) -> Result<Function> {
        Function::open(self.inner()?, &self.calls, name, None)
    }

    /// As [`get_function`](Session::get_function), waiting until some process provides it: `NotFound` or `NoProvider`
    /// after that time. Calls of it wait as long.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use std::time::Duration;
    ///
    /// let f = session.function("f", |_, _| Ok(()))?;
    /// let known = session.await_function("f", Duration::from_secs(5))?;
    /// drop(f);
    /// let e = known.wait(Duration::from_millis(1)).call::<()>(()).unwrap_err(); // no process provides it
    /// assert_eq!(e.code(), baton::Code::NoProvider);
    /// let e = session.calling("g")?.wait(Duration::from_millis(1)).call::<()>(()).unwrap_err();
    /// assert_eq!(e.code(), baton::Code::NotFound);
    /// # Ok(()) }
    /// ```
    pub fn await_function(&self, name: &str, wait: Duration) -> Result<Function> {
        Function::open(self.inner()?, &self.calls, name, Some(wait))
    }

    /// The functions that are registered in this session's namespace. In a pattern `*` stands for any run of
    /// characters; an empty one matches all. Only the errors of every call occur.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let _f = session.provide("vision/blur")?.parameter("x", "tensor").serve(|_, _| Ok(()))?;
    /// let all = session.functions("vision/*")?;
    /// assert_eq!((&*all[0].name, &*all[0].signature), ("vision/blur", "(x: tensor)"));
    /// assert_eq!((all[0].providers[0].pid, all[0].running), (std::process::id(), 0));
    /// # Ok(()) }
    /// ```
    pub fn functions(&self, pattern: &str) -> Result<Vec<FunctionInfo>> {
        list(self.inner()?, pattern)
    }

    /// Ends all registrations of a function, also those of other processes of this user: they take no more calls. How
    /// many sessions provided it. `NotFound`, `PermissionDenied`.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let f = session.function("f", |_, _| Ok(()))?;
    /// assert_eq!(session.remove_function("f")?, 1);
    /// f.join()?; // at once: nothing comes any more
    /// assert_eq!(session.call::<()>("f", ()).unwrap_err().code(), baton::Code::NotFound);
    /// # Ok(()) }
    /// ```
    pub fn remove_function(&self, name: &str) -> Result<u32> {
        check_function(name)?;
        let ok: FunctionRemoved = self.inner()?.call("function.remove", &NameRef { name })?;
        Ok(ok.providers)
    }
}
