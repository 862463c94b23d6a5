//! A message of a call or of its reply, whose record was checked.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock, Weak};

use super::given::{Scope, SessionCalls, WithFunctions};
use super::record::{Arg, Head, Is, Link, Record, malformed};
use crate::dtype::DType;
use crate::error::Result;
use crate::lanes::Message;
use crate::tensor::Tensor;
use crate::value::{Build, Value, Values, of_parts};

/// Where functions of a message come from.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) calls: Option<&'a Weak<dyn SessionCalls>>,
    pub(super) scope: Option<&'a OnceLock<Arc<Scope>>>,
}

impl Origin<'static> {
    /// Of a message without functions.
    const NOTHING: Origin<'static> = Origin { calls: None, scope: None };
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

/// The fixed part of the record of a message, if it has one.
pub(super) fn head_of(message: &Message) -> Option<Head> {
    Some(Record::cut(message.texts().ok()?.meta).ok()?.head)
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
        let b = WithFunctions { builder: b, inner, calls: from.calls, scope: from.scope };
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
    pub(super) fn value(&self, is: Is<'_>, from: Origin<'_>) -> Result<Value> {
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

    /// The Arg of a reply.
    #[inline]
    pub(super) fn only(&self) -> Result<Arg<'_>> {
        self.record()?.only().ok_or_else(|| malformed("no result, or more than one"))
    }

    /// The value of the only Arg: the result.
    #[inline]
    pub(super) fn result(&self, calls: &Arc<impl SessionCalls + 'static>) -> Result<Value> {
        match self.only()?.is {
            Is::Tree(n) => {
                let calls = Arc::downgrade(calls) as Weak<dyn SessionCalls>;
                self.item(n, Origin { calls: Some(&calls), scope: None })
            }
            is => self.value(is, Origin::NOTHING),
        }
    }

    /// The value of a name; `None` where there is none.
    pub(super) fn named(&self, name: &str) -> Result<Option<Value>> {
        let found = self.record()?.find(name);
        found.map(|a| self.value(a.is, Origin::NOTHING)).transpose()
    }
}
