//! The arguments of a call as its provider sees them, and the result as its caller does.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock, Weak};

use super::answers::Answers;
use super::convert::{FromValue, refused};
use super::given::{Calling, Scope};
use super::known::Calls;
use super::record::{Head, Is, Link, Record};
use super::signature::By;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::lanes::Message;
use crate::tensor::Tensor;
use crate::value::{Build, Value, Values, of_parts};

/// Where functions of a message come from.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    calls: &'a Weak<Calls>,
    scope: Option<&'a OnceLock<Arc<Scope>>>,
}

impl Origin<'static> {
    /// Of a message without functions.
    const NOTHING: Origin<'static> = Origin { calls: &Weak::new(), scope: None };
}

/// A message with the record of a call, which was checked.
#[derive(Debug)]
pub(super) struct Received {
    message: Message,
    pub(super) head: Head,
    /// All of its tensors, once one behind the first was asked for.
    tensors: OnceLock<Vec<Tensor>>,
    /// The items of its tree, once one was asked for.
    tree: OnceLock<Vec<Value>>,
}

impl Received {
    /// Reads the record of a message.
    pub(super) fn of(message: Message) -> Result<Received> {
        let texts = message.texts()?;
        let head = Record::parse(texts.meta, texts.tensors)?.head;
        Ok(Received { message, head, tensors: OnceLock::new(), tree: OnceLock::new() })
    }

    pub(super) fn message(&self) -> &Message {
        &self.message
    }

    pub(super) fn record(&self) -> Result<Record<'_>> {
        Record::cut(self.message.texts()?.meta) // it was checked
    }

    pub(super) fn chain(&self) -> Vec<Link> {
        self.record().map_or_else(|_| Vec::new(), |r| r.chain().collect())
    }

    fn tensor(&self, n: u32) -> Result<Tensor> {
        if n == 0 && self.tensors.get().is_none() {
            return self.message.tensor();
        }
        self.tensors()?.get(n as usize).cloned().ok_or_else(|| malformed("a tensor that is not there"))
    }

    fn tensors(&self) -> Result<&Vec<Tensor>> {
        if let Some(all) = self.tensors.get() {
            return Ok(all);
        }
        let all = self.message.contents()?.tensors.map(|t| t.map(|(_, t)| t)).collect::<Result<Vec<_>>>()?;
        Ok(self.tensors.get_or_init(|| all))
    }

    fn item(&self, n: u32, calls: Origin<'_>) -> Result<Value> {
        let all = match self.tree.get() {
            Some(all) => all,
            None => {
                let Value::List(all) = self.build_tree(&Values, calls)? else {
                    return Err(malformed("a tree that is no list"));
                };
                self.tree.get_or_init(|| all)
            }
        };
        all.get(n as usize).cloned().ok_or_else(|| malformed("an item that the tree does not have"))
    }

    /// What a builder makes of the whole tree.
    fn build_tree<B: Build>(&self, b: &B, from: Origin<'_>) -> std::result::Result<B::Made, B::Error> {
        let texts = self.message.texts()?;
        if texts.tree.is_empty() {
            return Err(malformed("an item of a tree that is not there").into());
        }
        let made = self.tensors()?.iter().map(|t| b.tensor(t.clone())).collect::<std::result::Result<_, _>>()?;
        let inner = self.message.held.inner();
        let b = Calling { builder: b, inner, calls: from.calls, scope: from.scope };
        of_parts(&b, Vec::<Cow<'_, str>>::new(), made, texts.tree)
    }

    /// Gives each Arg, as a builder makes it, with its name. `item` takes one out of the list that the tree is.
    pub(super) fn build<B: Build>(
        &self,
        b: &B,
        from: Origin<'_>,
        item: impl Fn(&B::Made, usize) -> std::result::Result<B::Made, B::Error>,
        mut take: impl FnMut(&str, B::Made) -> std::result::Result<(), B::Error>,
    ) -> std::result::Result<(), B::Error> {
        let mut tree = None;
        for a in self.record()?.each() {
            let made = match a.is {
                Is::Tensor(n) => b.tensor(self.tensor(n)?)?,
                Is::Text(s) => b.text(s)?,
                Is::Tree(n) => {
                    let whole = match tree.take() {
                        Some(whole) => whole,
                        None => self.build_tree(b, from)?,
                    };
                    let made = item(&whole, n as usize)?;
                    tree = Some(whole);
                    made
                }
                plain => b.scalar(self.value(plain, from)?)?,
            };
            take(a.name, made)?;
        }
        Ok(())
    }

    /// What an Arg is.
    #[inline]
    fn value(&self, is: Is<'_>, from: Origin<'_>) -> Result<Value> {
        Ok(match is {
            Is::None => Value::Null,
            Is::Int(n) => Value::Int(n),
            Is::Bool(b) => Value::Bool(b),
            Is::Float(f) => Value::Float(f),
            Is::Tensor(n) => Value::Tensor(self.tensor(n)?),
            Is::Tree(n) => self.item(n, from)?,
            Is::Text(s) => s.into(),
            Is::Bytes(b) => b.into(),
            Is::DType(code, bits, lanes) => Value::DType(DType { code, bits, lanes }),
            Is::Device(kind, number) => Value::Device(kind, number),
        })
    }

    /// The value of the first Arg: the result.
    #[inline]
    pub(super) fn result(&self, calls: &Arc<Calls>) -> Result<Value> {
        let Some(first) = self.record()?.nth(0) else { return Err(malformed("no result")) };
        match first.is {
            Is::Tree(n) => self.item(n, Origin { calls: &Arc::downgrade(calls), scope: None }),
            is => self.value(is, Origin::NOTHING),
        }
    }

    /// The value of a name; `None` where there is none.
    pub(super) fn named(&self, name: &str) -> Result<Option<Value>> {
        let found = self.record()?.find(name);
        found.map(|a| self.value(a.is, Origin::NOTHING)).transpose()
    }
}

#[cold]
pub(super) fn malformed(what: &str) -> Error {
    Error::new(
        Code::Protocol,
        "its sender wrote what is not a call of Baton: update or restart it",
        format!("a call with {what}"),
    )
}

/// The arguments of a call. They hold the tensors that came with it; one that is kept beyond the call holds its memory
/// on. Tensors can be written where the caller's can.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use baton::Tensor;
///
/// let _fill = session.function("fill", |args, _| {
///     let (mut x, by): (Tensor, f32) = (args.get(0)?, args.get(1)?);
///     // The caller waits, and nothing else has the tensor.
///     unsafe { x.as_mut_slice::<f32>()? }.fill(by);
///     assert!(args.find_as::<i64>("seed")?.is_none() && !args.is_empty());
///     Ok(args.len())
/// })?;
/// let x = session.zeros::<f32>(&[3])?.freeze();
/// assert_eq!(session.call::<usize>("fill", (&x, 2.5))?, 2);
/// assert_eq!(x.to_vec::<f32>()?, [2.5; 3]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Args {
    of: Received,
    answers: Arc<Answers>,
    /// Of the functions among them, once one was looked at.
    scope: OnceLock<Arc<Scope>>,
}

impl Drop for Args {
    fn drop(&mut self) {
        if let Some(scope) = self.scope.get()
            && !self.answers.inner().is_foreign()
        {
            scope.end(self.answers.inner());
        }
    }
}

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
        let mut made = None;
        let from = Origin { calls: &Arc::downgrade(&self.1), scope: None };
        self.0.build(b, from, item, |_, m| {
            made.get_or_insert(m);
            Ok(())
        })?;
        made.ok_or_else(|| malformed("no result").into())
    }
}

/// Which argument: by its position, or by its name.
pub trait Which {
    /// The position, or the name.
    fn which(&self) -> std::result::Result<usize, &str>;
}

impl Which for usize {
    fn which(&self) -> std::result::Result<usize, &str> {
        Ok(*self)
    }
}

impl Which for &str {
    fn which(&self) -> std::result::Result<usize, &str> {
        Err(self)
    }
}

impl Args {
    pub(super) fn new(of: Received, answers: Arc<Answers>) -> Args {
        Args { of, answers, scope: OnceLock::new() }
    }

    fn from(&self) -> Origin<'_> {
        Origin { calls: &self.answers.calls, scope: Some(&self.scope) }
    }

    /// How many were given.
    pub fn len(&self) -> usize {
        self.of.record().map_or(0, |r| r.len())
    }

    /// Whether none was given.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One argument, by its position or its name. A function that was registered with its parameters finds an argument
    /// by both, however it was given, and has the default of one that was not. `InvalidArgument` where there is none,
    /// or it cannot be read so.
    #[inline]
    pub fn get<T: FromValue>(&self, which: impl Which) -> Result<T> {
        let Some(v) = self.find(which.which())? else { return Err(self.missing(which.which())) };
        T::from_value(v).map_err(|e| self.about(which.which(), &e))
    }

    /// As [`get`](Args::get); `None` where it was not given and has no default.
    pub fn find_as<T: FromValue>(&self, which: impl Which) -> Result<Option<T>> {
        let found = self.find(which.which())?;
        found.map(T::from_value).transpose().map_err(|e| self.about(which.which(), &e))
    }

    /// All of them as they were given, each with its name, which is empty of one that was given by its position.
    pub fn all(&self) -> Result<Vec<(String, Value)>> {
        self.of.record()?.each().map(|a| Ok((a.name.to_owned(), self.of.value(a.is, self.from())?))).collect()
    }

    /// Gives each as a builder makes it, in their order, with its name, which is empty of one by position. `item` takes one
    /// out of a list.
    #[doc(hidden)]
    pub fn build<B: Build>(
        &self,
        b: &B,
        item: impl Fn(&B::Made, usize) -> std::result::Result<B::Made, B::Error>,
        take: impl FnMut(&str, B::Made) -> std::result::Result<(), B::Error>,
    ) -> std::result::Result<(), B::Error> {
        self.of.build(b, self.from(), item, take)
    }

    fn find(&self, which: std::result::Result<usize, &str>) -> Result<Option<Value>> {
        let record = self.of.record()?;
        let parameters = self.answers.signature.parameters();
        let place = match which {
            Ok(i) => Some(i),
            Err(name) => parameters.iter().filter(|p| p.by != By::Name).position(|p| *p.name == *name && !p.many),
        };
        if let Some(i) = place
            && let Some(a) = record.nth(i).filter(|a| a.name.is_empty())
        {
            return self.of.value(a.is, self.from()).map(Some);
        }
        let parameter = match which {
            Ok(i) => parameters.get(i),
            Err(name) => parameters.iter().find(|p| *p.name == *name),
        };
        let name = which.err().or(parameter.map(|p| &*p.name));
        if let Some(name) = name
            && let Some(a) = record.find(name)
        {
            return self.of.value(a.is, self.from()).map(Some);
        }
        let default = parameter.and_then(|p| p.default.as_deref());
        default.map(|tree| of_parts(&Values, Vec::new(), Vec::new(), tree.as_bytes())).transpose()
    }

    #[cold]
    fn missing(&self, which: std::result::Result<usize, &str>) -> Error {
        refused(format!("{} is not given", self.name_of(which)))
    }

    #[cold]
    fn about(&self, which: std::result::Result<usize, &str>, e: &Error) -> Error {
        Error::new(e.code(), e.remedy(), format!("{}: {}", self.name_of(which), e.message()))
    }

    fn name_of(&self, which: std::result::Result<usize, &str>) -> String {
        match which {
            Err(name) => format!("the argument {name}"),
            Ok(i) => match self.answers.signature.parameters().get(i) {
                Some(p) => format!("the argument {}", p.name),
                None => format!("the argument {i}"),
            },
        }
    }
}
