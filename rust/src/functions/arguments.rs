//! The arguments of a call, as its caller gives them, and the result of one: the table of the call's record, and what
//! stands beside it.

use std::cell::Cell;
use std::sync::Arc;

use super::convert::{float_of_digits, kind_of, number, refused};
use super::record::{self, ARG, HEAD, Head, Link, code};
use super::signature::{By, Parameter, Signature, Types};
use crate::error::{Error, Result};
use crate::layout::arg as at;
use crate::tensor::Tensor;
use crate::value::{FunctionValue, Lend, Names, Payload, Tensors, Value, encode_items};

thread_local! {
    /// The buffer of the last record, for the next.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes of texts that a call with names mostly has.
const USUAL_TEXTS: usize = 128;

/// Buffers that are kept are no larger than this.
const MOST_SPARE: usize = 4096;

/// The arguments of a call: by position, then by name.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use baton::Arguments;
///
/// let _scale = session.function("scale", |args, _| Ok(args.get::<f64>(0)? * args.get::<f64>("by")?))?;
/// let args = Arguments::new().arg(3).named("by", 0.5);
/// assert_eq!(session.call::<f64>("scale", args)?, 1.5);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Arguments {
    /// Room for the head, then the Args.
    record: Vec<u8>,
    texts: Vec<u8>,
    first: Option<Tensor>,
    more: Vec<Tensor>,
    nested: Vec<Nested>,
    /// The tensors of trees that a binding has written, under their paths.
    within: Vec<(String, Tensor)>,
    named: bool,
    fault: Option<Box<Error>>,
    /// Args that were replaced, as they were given.
    fitted: Vec<(usize, [u8; ARG])>,
    /// Of what is in a message: how many Args there are, and tensors beside those of trees.
    count: usize,
    unnamed: usize,
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments::new()
    }
}

/// The JSON of a tree, and its tensors under their paths.
type Tree = (Vec<u8>, Vec<(String, Tensor)>);

/// A value of the tree.
#[derive(Debug)]
enum Nested {
    Value(Value),
    /// Written already, by a binding: of what type it is, its JSON, and the functions that are to be written at places
    /// of it.
    Tree(Types, Vec<u8>, Vec<(usize, FunctionValue)>),
}

impl Nested {
    fn types(&self) -> Types {
        match self {
            Nested::Value(Value::BigInt(_)) => Types::INT,
            Nested::Value(Value::List(_)) => Types::LIST,
            Nested::Value(Value::Tuple(_)) => Types::TUPLE,
            Nested::Value(Value::Dict(_)) => Types::DICT,
            Nested::Value(Value::Function(_)) => Types::FUNCTION,
            Nested::Value(_) => Types::ANY,
            Nested::Tree(types, ..) => *types,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Nested::Value(v) => kind_of(v),
            Nested::Tree(types, ..) => types.name(),
        }
    }

    fn write(&self, tree: &mut Vec<u8>, lend: &mut Lend<'_>) -> Result<()> {
        match self {
            Nested::Value(v) => {
                let (list, _) = encode_items(std::slice::from_ref(v), 0, lend)?;
                tree.extend_from_slice(&list[1..list.len() - 1]);
            }
            Nested::Tree(_, text, functions) => {
                let mut written = 0;
                for (at, f) in functions {
                    tree.extend_from_slice(&text[written..*at]);
                    written = *at;
                    let (list, _) = encode_items(&[f.clone().into()], 0, lend)?;
                    tree.extend_from_slice(&list[1..list.len() - 1]);
                }
                tree.extend_from_slice(&text[written..]);
            }
        }
        Ok(())
    }
}

/// What can be the arguments of a call: tuples of up to eight values, slices and vectors of [`Value`], and
/// [`Arguments`]. A call with one argument has a tuple of one: `(x,)`.
pub trait IntoArguments {
    /// The arguments.
    fn into_arguments(self) -> Arguments;
}

impl IntoArguments for Arguments {
    fn into_arguments(self) -> Arguments {
        self
    }
}

impl IntoArguments for () {
    #[inline]
    fn into_arguments(self) -> Arguments {
        Arguments::new()
    }
}

impl IntoArguments for Vec<Value> {
    fn into_arguments(self) -> Arguments {
        self.into_iter().fold(Arguments::new(), Arguments::arg)
    }
}

impl IntoArguments for &[Value] {
    fn into_arguments(self) -> Arguments {
        self.iter().cloned().fold(Arguments::new(), Arguments::arg)
    }
}

macro_rules! tuples {
    ($($($t:ident)*;)*) => { $(
        impl<$($t: Into<Value>),*> IntoArguments for ($($t,)*) {
            #[inline]
            #[allow(non_snake_case)]
            fn into_arguments(self) -> Arguments {
                let ($($t,)*) = self;
                let mut args = Arguments::new();
                $(args.put("", $t.into());)*
                args
            }
        }
    )* };
}

tuples! { A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H; }

impl Arguments {
    /// None.
    #[inline]
    pub fn new() -> Arguments {
        let mut record = SPARE.try_with(Cell::take).unwrap_or_default(); // the thread may be ending
        record.clear();
        record.resize(HEAD, 0);
        let (texts, more, nested, within) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (first, named, fault, fitted) = (None, false, None, Vec::new());
        Arguments { record, texts, first, more, nested, within, named, fault, fitted, count: 0, unnamed: 0 }
    }

    /// Adds one by its position.
    #[inline]
    #[must_use]
    pub fn arg(mut self, value: impl Into<Value>) -> Arguments {
        self.put("", value.into());
        self
    }

    /// Adds one by its name.
    #[must_use]
    pub fn named(mut self, name: &str, value: impl Into<Value>) -> Arguments {
        if name.is_empty() {
            self.fail("an argument has an empty name".to_owned());
        }
        self.put(name, value.into());
        self
    }

    #[cold]
    fn fail(&mut self, what: String) {
        self.fault.get_or_insert_with(|| Box::new(refused(what)));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        (self.record.len() - HEAD) / ARG
    }

    fn tensors(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    #[inline]
    pub(super) fn put(&mut self, name: &str, v: Value) {
        let mut n = 0;
        if !name.is_empty() || self.named {
            n = self.put_name(name);
        }
        let r = &mut self.record;
        match v {
            Value::Null => record::push(r, code::NONE, n, 0, 0),
            Value::Bool(b) => record::push(r, code::BOOL, n, 0, b.into()),
            Value::Int(i) => record::push(r, code::INT, n, 0, i as u64),
            Value::Float(f) => record::push(r, code::FLOAT, n, 0, f.to_bits()),
            Value::Tensor(t) => {
                let which = usize::from(self.first.is_some()) + self.more.len();
                record::push(r, code::TENSOR, n, which as u32, 0);
                if self.first.is_none() {
                    self.first = Some(t);
                } else {
                    self.more.push(t);
                }
            }
            v => self.put_other(n, v),
        }
    }

    fn put_name(&mut self, name: &str) -> u16 {
        if self.named && name.is_empty() {
            self.fail("an argument by position comes behind one by name".to_owned());
        }
        self.named = true;
        if self.texts.capacity() == 0 {
            self.texts.reserve(USUAL_TEXTS);
        }
        let n = u16::try_from(name.len()).unwrap_or_else(|_| {
            self.fail(format!("an argument has a name of {} bytes", name.len()));
            0
        });
        self.texts.extend_from_slice(&name.as_bytes()[..usize::from(n)]);
        n
    }

    fn put_other(&mut self, name: u16, v: Value) {
        let r = &mut self.record;
        let (code, bytes) = match &v {
            Value::Text(s) => (code::TEXT, s.as_bytes()),
            Value::Bytes(b) => (code::BYTES, &b[..]),
            Value::DType(d) => {
                let value = u64::from(d.code) | u64::from(d.bits) << 8 | u64::from(d.lanes) << 16;
                return record::push(r, code::DTYPE, name, 0, value);
            }
            Value::Device(kind, number) => {
                let value = u64::from(*kind as u32) | u64::from(*number as u32) << 32;
                return record::push(r, code::DEVICE, name, 0, value);
            }
            _ => {
                record::push(r, code::TREE, name, self.nested.len() as u32, 0);
                return self.nested.push(Nested::Value(v));
            }
        };
        let Ok(n) = u32::try_from(bytes.len()) else {
            return self.fail("put a text of that size into a tensor".into());
        };
        record::push(r, code, name, n, 0);
        self.texts.extend_from_slice(bytes);
    }

    /// The message of them: with its head, and within a chain of calls. `lend` gives functions of this process. What they
    /// are is in the message alone, until `take_back`.
    pub(super) fn payload(
        &mut self,
        head: &Head,
        chain: impl ExactSizeIterator<Item = Link>,
        lend: &mut Lend<'_>,
    ) -> Result<Payload> {
        if let Some(e) = self.fault.take() {
            return Err(*e);
        }
        self.count = self.len();
        record::finish(&mut self.record, head, chain, &self.texts)?;
        let record = std::mem::take(&mut self.record);
        let (mut tree, mut named) = (Vec::new(), Vec::new());
        if !self.nested.is_empty() {
            (tree, named) = self.tree(lend)?;
        }
        self.unnamed = self.tensors();
        let tensors = match (self.first.take(), &self.more[..], &named[..]) {
            (Some(one), [], []) => Tensors::One(one),
            (first, _, []) => Tensors::Numbered(first.into_iter().chain(std::mem::take(&mut self.more)).collect()),
            (first, ..) => {
                let unnamed = first.into_iter().chain(std::mem::take(&mut self.more)).map(|t| (String::new(), t));
                let (names, all): (Vec<_>, Vec<_>) = unnamed.chain(named).unzip();
                let names: Names = names.iter().collect();
                Tensors::Named(names, all.into())
            }
        };
        Ok(Payload::of_call(tensors, tree, record))
    }

    /// Takes back what a message has that was not received, for another one, as it was given.
    #[cold]
    pub(super) fn take_back(&mut self, mut payload: Payload) {
        self.record = payload.take_record();
        self.record.truncate(HEAD + ARG * self.count);
        for (i, arg) in self.fitted.drain(..).rev() {
            self.record[HEAD + ARG * i..][..ARG].copy_from_slice(&arg);
        }
        let written = self.nested.iter().any(|n| matches!(n, Nested::Tree(..)));
        let (names, tensors) = payload.tensors.into_named();
        let all = Arc::try_unwrap(tensors).unwrap_or_else(|all| all.to_vec());
        let mut all: Vec<_> = names.iter().map(str::to_owned).zip(all).collect();
        let within = all.split_off(self.unnamed.min(all.len()));
        let mut all = all.into_iter().map(|(_, t)| t);
        (self.first, self.more) = (all.next(), all.collect());
        self.within = if written { within } else { Vec::new() }; // else they are in the values
    }
}

impl Arguments {
    /// The tree of the nested values, which stay, and its tensors, which are numbered behind the others.
    fn tree(&mut self, lend: &mut Lend<'_>) -> Result<Tree> {
        if !self.nested.iter().any(|n| matches!(n, Nested::Tree(..))) {
            let nested = std::mem::take(&mut self.nested);
            let values = nested.into_iter().filter_map(|n| if let Nested::Value(v) = n { Some(v) } else { None });
            let values: Vec<_> = values.collect();
            let encoded = encode_items(&values, self.tensors(), lend);
            self.nested = values.into_iter().map(Nested::Value).collect();
            return encoded;
        }
        let mut tree = vec![b'['];
        for (i, n) in self.nested.iter().enumerate() {
            if i > 0 {
                tree.push(b',');
            }
            n.write(&mut tree, lend)?;
        }
        tree.push(b']');
        Ok((tree, std::mem::take(&mut self.within)))
    }

    /// Adds one, by its position if the name is empty.
    #[doc(hidden)]
    #[inline]
    pub fn push(&mut self, name: &str, value: Value) {
        self.put(name, value);
    }

    /// Adds one whose tree is given later, by `set_tree`: its tensors are numbered behind all others. `types`: as those
    /// of a parameter. Its number among these.
    #[doc(hidden)]
    pub fn push_tree(&mut self, name: &str, types: &str) -> usize {
        let n = if !name.is_empty() || self.named { self.put_name(name) } else { 0 };
        record::push(&mut self.record, code::TREE, n, self.nested.len() as u32, 0);
        self.nested.push(Nested::Tree(Types::parse(types), Vec::new(), Vec::new()));
        self.nested.len() - 1
    }

    /// Tensors that were given as they are: how many, which is the number of the first one of the trees.
    #[doc(hidden)]
    pub fn tensors_so_far(&self) -> usize {
        self.tensors() + self.within.len()
    }

    /// The JSON of a tree, and its tensors under their paths.
    #[doc(hidden)]
    pub fn set_tree(&mut self, i: usize, json: Vec<u8>, tensors: impl IntoIterator<Item = (String, Tensor)>) {
        if let Some(Nested::Tree(_, text, _)) = self.nested.get_mut(i) {
            *text = json;
        }
        self.within.extend(tensors);
    }

    /// Functions of the tree that was set, each with the place in its JSON where it is to be written, in their order.
    #[doc(hidden)]
    pub fn set_functions(&mut self, i: usize, functions: Vec<(usize, FunctionValue)>) {
        if let Some(Nested::Tree(_, text, at)) = self.nested.get_mut(i)
            && functions.is_sorted_by_key(|(at, _)| *at)
            && functions.last().is_none_or(|(at, _)| *at <= text.len())
        {
            *at = functions;
        }
    }
}

/// Keeps the buffer of a record that was sent.
#[inline]
pub(super) fn give_back(payload: &mut Payload) {
    let record = payload.take_record();
    if record.capacity() <= MOST_SPARE {
        let _ = SPARE.try_with(|s| s.set(record));
    }
}

/// What a given argument is, as its Arg says.
#[derive(Debug, Clone, Copy)]
struct Given {
    code: u8,
    n: u32,
    value: u64,
}

impl Arguments {
    #[inline]
    fn given(&self, i: usize) -> (Given, usize) {
        let a = &self.record[HEAD + ARG * i..][..ARG];
        let word = |at: usize| u64::from_le_bytes(a[at..at + 8].try_into().unwrap_or_default());
        let (first, value) = (word(0), word(at::VALUE as usize));
        (Given { code: first as u8, n: (first >> 32) as u32, value }, (first >> 16) as u16 as usize)
    }

    /// Refuses arguments that do not fit what the function takes, and makes those what it takes that are a little else.
    #[inline]
    pub(super) fn fit(&mut self, signature: &Signature) -> Result<()> {
        if let Some(e) = &self.fault {
            return Err((**e).clone());
        }
        let Some(parameters) = &signature.parameters else { return Ok(()) };
        // Mostly each parameter is given by its position.
        if !self.named && self.len() == parameters.len() {
            let direct = |(i, p): (usize, &Parameter)| {
                p.by != By::Name && !p.many && p.types.has(plain_type(self.given(i).0.code))
            };
            if parameters.iter().enumerate().all(direct) {
                return Ok(());
            }
        }
        self.fit_each(signature, parameters)
    }

    fn fit_each(&mut self, signature: &Signature, parameters: &[Parameter]) -> Result<()> {
        let refused = |what: String| Err(refused(format!("{what}; the function takes {}", signature.to_text())));
        let mut has = vec![false; parameters.len()];
        let (mut text, texts) = (0, std::mem::take(&mut self.texts));
        let fitted = self.fit_in(parameters, &texts, &mut has, &mut text);
        self.texts = texts;
        fitted.or_else(refused)?;
        match parameters.iter().zip(has).find(|(p, has)| !has && !p.optional && !p.many) {
            Some((p, _)) => refused(format!("the parameter {} is not given", p.name)),
            None => Ok(()),
        }
    }

    /// As `fit_each`, of the arguments that are given: why they do not fit.
    fn fit_in(
        &mut self,
        parameters: &[Parameter],
        texts: &[u8],
        has: &mut [bool],
        text: &mut usize,
    ) -> std::result::Result<(), String> {
        for i in 0..self.len() {
            let (given, name) = self.given(i);
            let bytes = if matches!(given.code, code::TEXT | code::BYTES) { given.n as usize } else { 0 };
            let name = std::str::from_utf8(&texts[*text..*text + name]).unwrap_or_default();
            *text += name.len() + bytes;
            let Some(k) = place_of(parameters, i, name) else {
                return Err(match name {
                    "" => format!("{} arguments by position are too many", i + 1),
                    name if parameters.iter().any(|p| p.by == By::Position && !p.many && *p.name == *name) => {
                        format!("the parameter {name} is given by position alone, and here by name")
                    }
                    name => format!("there is no parameter {name}"),
                });
            };
            let p = &parameters[k];
            if std::mem::replace(&mut has[k], true) && !p.many {
                return Err(format!("the parameter {} is given twice", p.name));
            }
            self.fit_one(i, given, p).map_err(|what| format!("the parameter {} {what}", p.name))?;
        }
        Ok(())
    }

    /// Makes Arg i one that a parameter takes, or says why it is none.
    fn fit_one(&mut self, i: usize, given: Given, p: &Parameter) -> std::result::Result<(), String> {
        let nested = self.nested.get(given.n as usize).filter(|_| given.code == code::TREE);
        let types = nested.map_or_else(|| plain_type(given.code), Nested::types);
        if p.types.has(types) {
            return Ok(());
        }
        let is_number = p.types.has(Types(Types::BOOL.0 | Types::INT.0 | Types::INT64.0 | Types::FLOAT.0));
        let value = match (given.code, nested) {
            (code::BOOL, _) => Value::Bool(given.value == 1),
            (code::INT, _) => Value::Int(given.value as i64),
            (code::TENSOR, _) if is_number => {
                let t = if given.n == 0 { self.first.as_ref() } else { self.more.get(given.n as usize - 1) };
                match t.map(number) {
                    Some(Ok(Some(number))) => number,
                    Some(Err(e)) => return Err(format!("cannot be read: {e}")),
                    _ => {
                        let what = match t.filter(|t| t.shape().is_empty()) {
                            Some(t) => format!("a tensor of {}", t.dtype()),
                            None => "a tensor with dimensions".to_owned(),
                        };
                        return Err(format!("is {}, and {what} is given", p.text));
                    }
                }
            }
            (_, Some(Nested::Value(Value::BigInt(digits)))) => Value::BigInt(digits.clone()),
            (_, nested) => {
                let kind = nested.map_or_else(|| kind_of_code(given.code), Nested::kind);
                return Err(format!("is {}, and {kind} is given", p.text));
            }
        };
        let integer = p.types.has(Types(Types::INT.0 | Types::INT64.0));
        let fitted = match value {
            Value::Bool(b) if p.types.has(Types::BOOL) => Value::Bool(b),
            Value::Bool(b) if integer => Value::Int(b.into()),
            Value::Bool(b) if p.types.has(Types::FLOAT) => Value::Float(b.into()),
            Value::Int(n) if integer => Value::Int(n),
            Value::Int(n) if p.types.has(Types::FLOAT) => Value::Float(n as f64),
            Value::BigInt(d) if p.types.has(Types::INT) => Value::BigInt(d),
            Value::BigInt(d) if p.types.has(Types::FLOAT) => match float_of_digits(&d) {
                Some(f) => Value::Float(f),
                None => return Err(format!("is {}, and the int {d} is larger than all floats", p.text)),
            },
            Value::BigInt(d) => return Err(format!("is {}, and the int {d} does not fit", p.text)),
            Value::Float(f) if p.types.has(Types::FLOAT) => Value::Float(f),
            v => return Err(format!("is {}, and {} is given", p.text, kind_of(&v))),
        };
        self.replace(i, given, fitted);
        Ok(())
    }

    /// Puts a number in the place of Arg i. What it was before stays in the message, and nothing names it: another
    /// number of it would change those of all others.
    fn replace(&mut self, i: usize, given: Given, v: Value) {
        let a = &mut self.record[HEAD + ARG * i..][..ARG];
        let mut before = [0; ARG];
        before.copy_from_slice(a);
        let (code, n, value) = match v {
            Value::Bool(b) => (code::BOOL, 0, b.into()),
            Value::Int(n) => (code::INT, 0, n as u64),
            Value::Float(f) => (code::FLOAT, 0, f.to_bits()),
            v => {
                if given.code == code::TREE {
                    return; // it is one already
                }
                self.nested.push(Nested::Value(v));
                (code::TREE, self.nested.len() as u32 - 1, 0)
            }
        };
        self.fitted.push((i, before));
        a[at::CODE as usize] = code;
        a[at::N as usize..][..4].copy_from_slice(&u32::to_le_bytes(n));
        a[at::VALUE as usize..][..8].copy_from_slice(&u64::to_le_bytes(value));
    }
}

/// Which parameter Arg i is for, that has this name, or none.
fn place_of(parameters: &[Parameter], i: usize, name: &str) -> Option<usize> {
    if !name.is_empty() {
        let takes = |p: &Parameter| p.by != By::Position && !p.many && *p.name == *name;
        let rest = |p: &Parameter| p.by == By::Name && p.many;
        return parameters.iter().position(takes).or_else(|| parameters.iter().position(rest));
    }
    let mut places = parameters.iter().enumerate().filter(|(_, p)| p.by != By::Name);
    let many = places.clone().find(|(_, p)| p.many).map(|(k, _)| k);
    places.nth(i).map(|(k, _)| k).filter(|k| many.is_none_or(|m| *k < m)).or(many)
}

/// What a parameter takes that an Arg of a code is given for; that of a tree is looked for there.
#[inline]
fn plain_type(of: u8) -> Types {
    match of {
        code::NONE => Types::NONE,
        code::BOOL => Types::BOOL,
        code::INT => Types(Types::INT.0 | Types::INT64.0),
        code::FLOAT => Types::FLOAT,
        code::TENSOR => Types::TENSOR,
        code::TEXT => Types::TEXT,
        code::BYTES => Types::BYTES,
        code::DTYPE => Types::DTYPE,
        code::DEVICE => Types::DEVICE,
        _ => Types(0),
    }
}

fn kind_of_code(of: u8) -> &'static str {
    match of {
        code::NONE => "none",
        code::BOOL => "bool",
        code::INT => "int",
        code::FLOAT => "float",
        code::TENSOR => "a tensor",
        code::TEXT => "str",
        code::BYTES => "bytes",
        code::DTYPE => "a dtype",
        code::DEVICE => "a device",
        _ => "a nested value",
    }
}
