//! The arguments of a call as its provider sees them.

use std::sync::{Arc, OnceLock};

use super::answers::Answers;
use super::convert::{FromValue, refused};
use super::given::Scope;
use super::received::{Origin, Received};
use super::signature::By;
use crate::error::{Error, Result};
use crate::value::{Build, Value, Values, of_parts};

/// The arguments of a call. They hold the tensors that came with it; one that is kept beyond the call holds its memory
/// on. Tensors can be written if the caller's can.
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
        Origin { calls: Some(&self.answers.calls), scope: Some(&self.scope) }
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
    /// by both, however it was given, and has the default of one that was not. `InvalidArgument` if there is none,
    /// or it cannot be read so.
    #[inline]
    pub fn get<T: FromValue>(&self, which: impl Which) -> Result<T> {
        let Some(v) = self.find(which.which())? else { return Err(self.missing(which.which())) };
        T::from_value(v).map_err(|e| self.about(which.which(), &e))
    }

    /// As [`get`](Args::get); `None` if it was not given and has no default. `InvalidArgument` if it
    /// cannot be read so.
    pub fn find_as<T: FromValue>(&self, which: impl Which) -> Result<Option<T>> {
        let found = self.find(which.which())?;
        found.map(T::from_value).transpose().map_err(|e| self.about(which.which(), &e))
    }

    /// All of them as they were given, each with its name, which is empty of one that was given by its
    /// position. `Protocol` if the caller has described them wrongly.
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
