//! What bindings for other languages need besides the rest: addresses, types anew, value trees,
//! listings, and waits that answer the interpreter's signals.

use serde::{Deserialize, Serialize};

use super::close::close;
use super::{Builder, Session};
use crate::error::{Error, Result};
use crate::functions::check_function;
use crate::lanes::check_name;

impl Builder {
    /// The language shown in listings. Default: `rust`.
    #[doc(hidden)]
    pub fn language(mut self, language: &'static str) -> Builder {
        self.0.language = language;
        self
    }

    /// What a thread calls when a signal, or nothing, has ended its sleep in a wait: true gives the
    /// wait up, with the error `Timeout`. It is called without any lock of this crate that others
    /// need to be interrupted themselves.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// fn signalled() -> bool {
    ///     false // whether the interpreter has a signal for the program
    /// }
    /// let builder = baton::Session::builder().language("python").interrupted(signalled);
    /// assert!(builder.connect()?.topic("t")?.reader(baton::Start::New)?.try_recv()?.is_none());
    /// # Ok(()) }
    /// ```
    #[doc(hidden)]
    pub fn interrupted(mut self, look: fn() -> bool) -> Builder {
        self.0.interrupted = Some(look);
        self
    }

    /// What tells, if `BATON_TRACE=1` is set, which line of the program asks for memory, as `file:line`; none:
    /// what a backtrace of the thread shows. It is called on the thread that asks, without any lock of this crate.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// let builder = baton::Session::builder().language("python").place(|| Some("train.py:12".into()));
    /// builder.connect()?.zeros::<f32>(&[2])?;
    /// # Ok(()) }
    /// ```
    #[doc(hidden)]
    pub fn place(mut self, place: fn() -> Option<String>) -> Builder {
        self.0.place = Some(place);
        self
    }
}

#[derive(Serialize)]
struct ListRequest<'a> {
    what: &'a str,
    pattern: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cursor: String,
}

#[derive(Deserialize)]
struct ListReply {
    rows: Vec<NameRow>,
    #[serde(default)]
    cursor: String,
}

#[derive(Deserialize)]
struct NameRow {
    name: String,
}

impl Session {
    /// Refuses what is no name, for bindings that are given one before they use it. Error: `InvalidArgument`.
    ///
    /// ```
    /// baton::Session::check_name("weights/actor")?;
    /// assert_eq!(baton::Session::check_name("a b").unwrap_err().code(), baton::Code::InvalidArgument);
    /// # Ok::<(), baton::Error>(())
    /// ```
    #[doc(hidden)]
    pub fn check_name(name: &str) -> Result<()> {
        check_name(name)
    }

    /// As [`check_name`](Session::check_name), of the name of a function, with a version or without.
    ///
    /// ```
    /// baton::Session::check_function("vision/scale@1.2")?;
    /// assert_eq!(baton::Session::check_function("scale@").unwrap_err().code(), baton::Code::InvalidArgument);
    /// # Ok::<(), baton::Error>(())
    /// ```
    #[doc(hidden)]
    pub fn check_function(name: &str) -> Result<()> {
        check_function(name)
    }

    /// The names that are set, of this session's namespace. In a pattern `*` stands for any run of
    /// characters; an empty one matches all. Only the errors of every call occur.
    pub fn names(&self, pattern: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut cursor = String::new();
        loop {
            let request = ListRequest { what: "names", pattern, cursor };
            let page: ListReply = self.inner()?.call("list", &request)?;
            names.extend(page.rows.into_iter().map(|r| r.name));
            if page.cursor.is_empty() {
                return Ok(names);
            }
            cursor = page.cursor;
        }
    }

    /// Ends the session as [`close`](Session::close) does, for a program that keeps the value.
    pub fn end(&self) {
        close(&self.inner, true);
    }

    /// Asks the broker whether the session goes on: the error of every call of it, if it is lost.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// baton::Session::connect()?.check_lost()?;
    /// # Ok(()) }
    /// ```
    pub fn check_lost(&self) -> Result<()> {
        self.inner.check_lost()
    }

    /// The error of every call of the session, if a broker has said that it is over.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// let session = baton::Session::connect()?;
    /// assert!(session.why_lost().is_none());
    /// # Ok(()) }
    /// ```
    pub fn why_lost(&self) -> Option<Error> {
        self.inner.why_lost().cloned()
    }

    /// Whether it was ended, is lost, or came into this process by a fork that the C library was not asked for.
    pub fn is_ended(&self) -> bool {
        self.inner.is_ended()
    }
}
