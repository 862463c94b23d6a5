//! What values are made into: [`Value`], or objects of another language.

use std::collections::HashSet;

use super::{FunctionValue, Value};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Makes the parts of a value, innermost first, of what a sender wrote and the crate has checked.
pub trait Build {
    /// What a value becomes.
    type Made: Clone;
    /// What can go wrong besides.
    type Error: From<Error>;

    /// A tensor.
    fn tensor(&self, t: Tensor) -> std::result::Result<Self::Made, Self::Error>;
    /// What is neither a tensor nor text and holds nothing.
    fn scalar(&self, v: Value) -> std::result::Result<Self::Made, Self::Error>;
    /// Text.
    fn text(&self, s: &str) -> std::result::Result<Self::Made, Self::Error>;
    /// A function, which stands in calls alone.
    fn function(&self, f: FunctionValue) -> std::result::Result<Self::Made, Self::Error>;
    /// A list.
    fn list(&self, all: Vec<Self::Made>) -> std::result::Result<Self::Made, Self::Error>;
    /// A tuple.
    fn tuple(&self, all: Vec<Self::Made>) -> std::result::Result<Self::Made, Self::Error>;
    /// A tuple of a class of Python's, named `module:qualname`, that names its items.
    fn named_tuple(
        &self,
        _class: &str,
        _fields: &[String],
        all: Vec<Self::Made>,
    ) -> std::result::Result<Self::Made, Self::Error> {
        self.tuple(all)
    }
    /// A dict with keys of any kind, each of which stands once.
    fn dict(&self, items: Vec<(Self::Made, Self::Made)>) -> std::result::Result<Self::Made, Self::Error>;
    /// A dict with keys of text, or the fields of the dataclass of a name; `None` when a key stands twice.
    fn named(
        &self,
        class: Option<&str>,
        items: Vec<(&str, Self::Made)>,
    ) -> std::result::Result<Option<Self::Made>, Self::Error>;
}

/// Makes values of this crate.
pub(crate) struct Values;

impl Build for Values {
    type Made = Value;
    type Error = Error;

    fn tensor(&self, t: Tensor) -> Result<Value> {
        Ok(t.into())
    }

    fn scalar(&self, v: Value) -> Result<Value> {
        Ok(v)
    }

    fn text(&self, s: &str) -> Result<Value> {
        Ok(s.into())
    }

    fn function(&self, f: FunctionValue) -> Result<Value> {
        Ok(f.into())
    }

    fn list(&self, all: Vec<Value>) -> Result<Value> {
        Ok(Value::List(all))
    }

    fn tuple(&self, all: Vec<Value>) -> Result<Value> {
        Ok(Value::Tuple(all))
    }

    fn dict(&self, items: Vec<(Value, Value)>) -> Result<Value> {
        Ok(Value::Dict(items))
    }

    fn named(&self, class: Option<&str>, items: Vec<(&str, Value)>) -> Result<Option<Value>> {
        let mut seen = HashSet::new();
        if !items.iter().all(|(key, _)| seen.insert(*key)) {
            return Ok(None);
        }
        let items = items.into_iter().map(|(key, v)| (key.to_owned(), v));
        Ok(Some(match class {
            Some(name) => Value::Dataclass(name.to_owned(), items.collect()),
            None => Value::dict(items),
        }))
    }
}
