//! What bindings for other languages need besides the rest: addresses, types anew, value trees,
//! listings, and waits that answer the interpreter's signals.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bundle::Bundle;
use super::deadline::unlimited;
use super::inner::Inner;
use super::names::{Names, named};
use super::payload::{Payload, Tensors};
use super::tensor::Tensor;
use super::{Builder, Session};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};

impl Builder {
    /// The language shown in listings. Default: `rust`.
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
    pub fn interrupted(mut self, look: fn() -> bool) -> Builder {
        self.0.interrupted = Some(look);
        self
    }

    /// What tells, where `BATON_TRACE=1` is set, which line of the program asks for memory, as `file:line`; none:
    /// what a backtrace of the thread shows. It is called on the thread that asks, without any lock of this crate.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// let builder = baton::Session::builder().language("python").place(|| Some("train.py:12".into()));
    /// builder.connect()?.zeros::<f32>(&[2])?;
    /// # Ok(()) }
    /// ```
    pub fn place(mut self, place: fn() -> Option<String>) -> Builder {
        self.0.place = Some(place);
        self
    }
}

impl Error {
    /// The error of a use of what the program itself has closed.
    pub fn closed_here(what: &str) -> Error {
        Error::new(Code::Closed, "open a new one", format!("{what} was closed"))
    }
}

pub(crate) use crate::error::interrupted;

impl Payload {
    /// Tensors under the names that they have in the protocol (paths with their escapes), and the
    /// JSON of the tree that numbers them; empty: one unnamed tensor is the value, or a flat dict.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::{Bundle, Names, Payload, Value};
    ///
    /// let x = session.zeros::<u8>(&[1])?.freeze();
    /// let tree = br#"{"a/b":{"$":"tensor","i":0}}"#;
    /// let path = Names::escaped("a/b"); // a~1b: a key, not two
    /// let value = Payload::with_tree(vec![(path.to_string(), x.clone())], tree.to_vec());
    /// session.set("tree", value)?;
    /// let bundle = session.get("tree", None)?;
    /// assert_eq!((bundle.tree(), bundle.is_empty(), bundle.is_live()), (&tree[..], false, false));
    /// assert!(bundle.value()?.get("a/b").is_some_and(|v| v.tensor().is_some()));
    ///
    /// let mut names = Names::default();
    /// names.push("gone");
    /// names.clear();
    /// names.push("x");
    /// let flat = Payload::of_names(names.paths(), vec![x.clone()], Vec::new());
    /// assert_eq!(flat.into_tensors().count(), 1);
    /// let again = Bundle::of_parts(vec![("x".to_owned(), x)], Vec::new(), b"7".to_vec(), 3, false);
    /// assert_eq!((again.revision(), again.meta()), (3, &b"7"[..]));
    /// # Ok(()) }
    /// ```
    pub fn with_tree(tensors: Vec<(String, Tensor)>, tree: Vec<u8>) -> Payload {
        Payload::of(tensors.into_iter().collect(), tree)
    }

    /// As `with_tree`, of as many names as tensors.
    pub fn of_names(names: Names, tensors: Vec<Tensor>, tree: Vec<u8>) -> Payload {
        Payload::of(Tensors::Named(names, tensors.into()), tree)
    }

    /// The tensors, in their order.
    pub fn into_tensors(self) -> impl Iterator<Item = Tensor> {
        Arc::unwrap_or_clone(self.tensors.into_named().1).into_iter()
    }
}

impl From<Payload> for Bundle {
    /// What a receiver of the payload would see.
    fn from(p: Payload) -> Bundle {
        let (names, tensors) = p.tensors.into_named();
        let names = if p.tree.is_empty() { names.keys() } else { names };
        Bundle { names, tensors, tree: p.tree, ..Bundle::default() }
    }
}

impl Bundle {
    /// A revision of a name that was taken apart, as by pickling: names as the bundle has them.
    pub fn of_parts(tensors: Vec<(String, Tensor)>, tree: Vec<u8>, meta: Vec<u8>, revision: u64, live: bool) -> Bundle {
        let (names, tensors) = named(tensors);
        Bundle { names, tensors: tensors.into(), tree, meta, revision, live }
    }
}

impl Tensor {
    /// The address of the first element, to be read; dangling without elements. It is valid as long
    /// as this tensor or a clone lives. Others may write there.
    pub fn as_ptr(&self) -> Result<*const u8> {
        self.address(false).map(<*mut u8>::cast_const)
    }

    /// The writable file that its storage lies in, the bytes of that, and where in it this tensor begins;
    /// `None` without elements. Whoever maps it counts no reference: he keeps this tensor. `ReadOnly`
    /// when the tensor must not be written.
    ///
    /// # Safety
    /// The file holds other tensors too, those of this process's `TensorMut`s among them: nothing outside
    /// of this tensor is written through it, by any process that it is given to.
    pub unsafe fn file(&self) -> Result<Option<(Arc<OwnedFd>, u64, u64)>> {
        self.check_shared()?;
        self.address(true)?;
        let Some(h) = self.storage() else { return Ok(None) };
        let s = self.held.segment(h, true)?;
        self.held.inner().open_file(&s, true)?;
        Ok(s.fd().map(|fd| (fd, s.bytes, h.offset + self.view().offset)))
    }

    /// The session that it was allocated or received in.
    pub fn session(&self) -> Session {
        Session::of(self.held.inner().clone())
    }

    /// The address of the first element, to be written. `ReadOnly` when it must not be.
    pub fn as_mut_ptr(&self) -> Result<*mut u8> {
        self.address(true)
    }

    /// The view of another type, shape and strides (in elements of that type, `None` for
    /// C-contiguous), `offset` bytes from this one's first element. `InvalidArgument` when it reaches
    /// past the storage or is not aligned.
    pub fn view_as(&self, dtype: DType, shape: &[i64], strides: Option<&[i64]>, offset: u64) -> Result<Tensor> {
        let Some(at) = self.view().offset.checked_add(offset) else {
            let what = format!("view at byte {offset} of {}{:?}", self.dtype(), self.shape());
            return Err(Error::new(Code::InvalidArgument, "use an offset inside the storage", what));
        };
        self.viewed(dtype, shape, strides, at)
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
    pub fn check_name(name: &str) -> Result<()> {
        super::check_name(name)
    }

    /// The names that are set, of this session's namespace. In a pattern `*` stands for any run of
    /// characters; an empty one matches all.
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
        self.inner.close(true);
    }

    /// The error of every call of the session, where a broker has said that it is over.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// let session = baton::Session::connect()?;
    /// assert!(session.why_lost().is_none());
    /// # Ok(()) }
    /// ```
    pub fn why_lost(&self) -> Option<Error> {
        self.inner.lost.get().cloned()
    }

    /// Whether it was ended, is lost, or came into this process by a fork that the C library was not asked for.
    pub fn is_ended(&self) -> bool {
        self.inner.is_ended()
    }
}

impl Inner {
    /// Whether the program's hook wants waits of this thread to end.
    pub(crate) fn interrupted(&self) -> bool {
        self.options.interrupted.is_some_and(unlimited)
    }

    /// Ends a wait of this thread where the program's hook wants that.
    pub(crate) fn check_interrupted(&self) -> Result<()> {
        if self.interrupted() { Err(interrupted()) } else { Ok(()) }
    }
}
