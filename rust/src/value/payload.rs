//! What is sent: tensors under their names, a value tree, meta.

use std::iter;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::bundle::Bundle;
use super::finite::not_finite;
use super::names::{Names, named};
use crate::crash_point;
use crate::cuda::Stream;
use crate::dlpack::types::device;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::holding::{Opening, Shared};
use crate::layout::{reference, slot_flag};
use crate::memory::Held;
use crate::message::{Brief, Encoder, Order, Ref, TensorDesc, first_bytes, spill_front};
use crate::shm::SlotHead;
use crate::tensor::{Tensor, order_send};

/// A value to send, put or set: one tensor, or several under names; with meta if that is wanted.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let image = session.alloc::<u8>(&[28, 28])?.freeze();
/// let value = baton::Payload::named([("image", image)]).meta(&3)?;
/// session.topic("batches")?.send(value)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Payload {
    pub(crate) tensors: Tensors,
    pub(crate) tree: Vec<u8>,
    meta: Vec<u8>,
    stream: Stream,
    /// Why it cannot be sent.
    fault: Option<Box<str>>,
}

/// The tensors of a payload.
#[derive(Debug, Clone)]
pub(crate) enum Tensors {
    /// One without a name.
    One(Tensor),
    Named(Names, Arc<Vec<Tensor>>),
    /// Without names: those of a call, which the call's record numbers.
    Numbered(Vec<Tensor>),
}

impl Default for Tensors {
    fn default() -> Tensors {
        Tensors::Named(Names::default(), Arc::default())
    }
}

impl<S: AsRef<str>> FromIterator<(S, Tensor)> for Tensors {
    fn from_iter<I: IntoIterator<Item = (S, Tensor)>>(all: I) -> Tensors {
        let (names, tensors) = named(all);
        Tensors::Named(names, tensors.into())
    }
}

impl Tensors {
    pub(crate) fn into_named(self) -> (Names, Arc<Vec<Tensor>>) {
        match self {
            Tensors::One(t) => ([""].into_iter().collect(), vec![t].into()),
            Tensors::Named(names, all) => (names, all),
            Tensors::Numbered(all) => (all.iter().map(|_| "").collect(), all.into()),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> + Clone {
        let (one, named, numbered) = match self {
            Tensors::One(t) => (Some(t), None, &[][..]),
            Tensors::Named(names, all) => (None, Some(names.iter().zip(&**all)), &[][..]),
            Tensors::Numbered(all) => (None, None, &all[..]),
        };
        let unnamed = one.into_iter().chain(numbered).map(|t| ("", t));
        unnamed.chain(named.into_iter().flatten())
    }
}

impl Payload {
    /// Of tensors and a tree. Nothing is filled in from a default, which has a list of tensors of its own to
    /// allocate, and is moved while it is still being written.
    #[inline]
    pub(crate) fn of(tensors: Tensors, tree: Vec<u8>) -> Payload {
        Payload { tensors, tree, meta: Vec::new(), stream: Stream::default(), fault: None }
    }

    /// Tensors under the keys of a flat dict, which is what receivers in Python see. A key that stands
    /// twice, or that is empty beside others, is refused when the payload is sent: `InvalidArgument`.
    pub fn named<K: AsRef<str>>(tensors: impl IntoIterator<Item = (K, Tensor)>) -> Payload {
        let (keys, tensors) = named(tensors);
        let fault = keys.fault().map(String::into_boxed_str);
        // No tensors and no tree would read as one unnamed tensor.
        let tree = if tensors.is_empty() { b"{}".to_vec() } else { Vec::new() };
        Payload { fault, ..Payload::of(Tensors::Named(keys.paths(), tensors.into()), tree) }
    }

    /// What a call's record says, beside the tensors that it numbers.
    #[inline]
    pub(crate) fn of_call(tensors: Tensors, tree: Vec<u8>, record: Vec<u8>) -> Payload {
        Payload { meta: record, ..Payload::of(tensors, tree) }
    }

    /// The record of a call, to be used again.
    pub(crate) fn take_record(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.meta)
    }

    /// Names the stream after whose work tensors on a GPU are written: their receivers' streams wait for
    /// it. Without it that is the legacy default stream; [`Stream::NONE`] for a caller that has synchronised.
    #[must_use]
    pub fn stream(mut self, stream: Stream) -> Payload {
        self.stream = stream;
        self
    }

    /// Attaches what JSON can hold, to be read from the message, or the bundle of a name. `InvalidArgument`
    /// for what JSON cannot hold, such as a float that is infinite or no number.
    pub fn meta(mut self, meta: &impl Serialize) -> Result<Payload> {
        if let Some(v) = not_finite(meta) {
            let what = format!("encode meta: JSON has no {v}");
            return Err(Error::new(Code::InvalidArgument, "use values that JSON can hold", what));
        }
        self.meta = serde_json::to_vec(meta).map_err(|e| {
            Error::new(Code::InvalidArgument, "use values that JSON can hold", format!("encode meta: {e}")).caused_by(e)
        })?;
        Ok(self)
    }
}

impl From<Tensor> for Payload {
    #[inline]
    fn from(t: Tensor) -> Payload {
        Payload::of(Tensors::One(t), Vec::new())
    }
}

impl From<&Tensor> for Payload {
    fn from(t: &Tensor) -> Payload {
        t.clone().into()
    }
}

impl From<&Bundle> for Payload {
    fn from(b: &Bundle) -> Payload {
        let tree = if b.is_empty() && b.tree.is_empty() { b"{}".to_vec() } else { b.tree.clone() };
        let names = if b.tree.is_empty() { b.names.clone().paths() } else { b.names.clone() };
        Payload::of(Tensors::Named(names, b.tensors.clone()), tree)
    }
}

/// Words of a ref.
const REF_WORDS: usize = reference::SIZE as usize / 8;

/// A message before it has a place. One that sends keeps it, and its buffers, for the next.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) head: SlotHead,
    pub(crate) refs: Vec<Ref>,
    words: Vec<u64>,           // refs, order, body; while it has no place, room for them and the body
    front: usize,              // words before the body
    counted: Vec<(u32, bool)>, // what the place will count, as (index, own)
    spilled: Option<Shared>,
    order: Option<Order>, // when a stream will have written it
}

/// Adds a tensor to a message: its storage, unless another tensor has named it, and its description. How
/// many bytes it has.
#[inline(always)] // a message of one tensor has no loop around it
fn add(
    inner: &Arc<Opening>,
    name: &str,
    t: &Tensor,
    refs: &mut Vec<Ref>,
    counted: &mut Vec<(u32, bool)>,
    encoder: &mut Encoder<'_>,
) -> Result<u64> {
    let native = Arc::ptr_eq(t.held.inner(), inner);
    if !native {
        check_successor(t, inner, name)?;
    }
    t.check_shared()?;
    let mut d = TensorDesc {
        storage: None,
        dtype: t.dtype(),
        device_type: device::CPU,
        device_id: 0,
        offset: 0,
        readonly: t.is_read_only(),
        shape: t.shape(),
        strides: t.strides(),
        name,
    };
    let mut bytes = 0;
    if let Some(h) = t.storage() {
        let at = match refs.iter().position(|r| *r == h.reference) {
            Some(at) => at,
            None => {
                let own = native && h.at.own;
                inner.memory.share(h.reference, own)?;
                refs.push(h.reference);
                counted.push((h.reference.index, own));
                refs.len() - 1
            }
        };
        d.storage = Some(u16::try_from(at).map_err(|_| too_many())?);
        d.offset = t.view().offset;
        if let Some(on) = h.at.segment.device() {
            (d.device_type, d.device_id) = (device::CUDA, on.id);
        }
        bytes = t.num_bytes();
    }
    encoder.add(&d)?;
    Ok(bytes)
}

/// A brief message before it has a place, and whether its storage is the session's own.
pub(crate) struct Planned {
    pub(crate) brief: Brief,
    pub(crate) own: bool,
    pub(crate) bytes: u64,
}

impl Payload {
    /// The brief message that says all of it, where there is one.
    #[inline]
    pub(crate) fn brief(&self, inner: &Arc<Opening>, flags: u32) -> Option<Planned> {
        let Tensors::One(t) = &self.tensors else { return None };
        if !self.tree.is_empty() || !self.meta.is_empty() {
            return None;
        }
        let h = plain_of(t, inner)?;
        let flags = if t.is_read_only() { flags | slot_flag::READ_ONLY } else { flags };
        let brief = Brief::of(flags, h.reference, t.dtype(), t.shape())?;
        inner.memory.share(h.reference, h.at.own).ok()?; // what fails here is tried again, and told, without a brief
        Some(Planned { brief, own: h.at.own, bytes: t.num_bytes() })
    }

    /// As [`Outgoing::count`], of a brief message.
    #[inline]
    pub(crate) fn count_one(&mut self, inner: &Opening, index: u32) -> Result<()> {
        match &mut self.tensors {
            Tensors::One(t) if t.held.may_give(inner, 1) => t.held.give(),
            _ => {
                inner.count_up(index)?;
                crash_point::at("send-counting");
            }
        }
        Ok(())
    }
}

/// The storage of a tensor that is compact in the machine's memory from its storage's first byte on, and that a
/// session may send as its own.
#[inline(always)]
fn plain_of<'t>(t: &'t Tensor, inner: &Arc<Opening>) -> Option<&'t Held> {
    let (h, v) = (t.storage()?, t.view());
    let plain =
        v.strides.is_none() && v.offset == 0 && h.at.segment.device().is_none() && Arc::ptr_eq(t.held.inner(), inner);
    plain.then_some(h)
}

/// How a tensor of another session comes into this one.
const COPY: &str =
    "copy its elements into this session: share(x) in Python, baton_from_dlpack in C, from_dlpack in C++ and Rust";

/// The error of a tensor that belongs to another session than the one that it is sent in.
#[cold]
fn not_of(t: &Tensor, inner: &Opening, name: &str) -> Error {
    let tensor = if name.is_empty() { "the tensor".to_owned() } else { format!("tensor {name:?}") };
    let of = t.held.inner();
    let (its, this) = (&of.memory.files, &inner.memory.files);
    let (a, b, theirs, ours) = (its.serial, this.serial, &its.instance, &this.instance);
    let copy = COPY;
    let (remedy, what) = if theirs != ours {
        (copy, format!("another session: to {a} of broker {theirs}, and this is {b} of broker {ours}"))
    } else if of.is_lost() {
        (copy, format!("a session that is lost: to {a}, and this is {b}"))
    } else if !of.closed.is_set() {
        let remedy = "send it in its own session, or open its handle in this one, or \
            copy its elements into this session: share(x) in Python, baton_from_dlpack in C, from_dlpack in C++ and Rust";
        (remedy, format!("another session: to {a}, and this is {b}"))
    } else if a != b {
        (copy, format!("a session that was closed: to {a}, and this is {b}"))
    } else {
        // The openings of one core have one serial.
        (copy, format!("a session that was closed before this one was opened, which has its number {b}"))
    };
    Error::new(Code::InvalidArgument, remedy, format!("{tensor} belongs to {what}"))
}

/// Refuses a tensor of another session, unless a child inherited it and sends in its own.
#[cold]
fn check_successor(t: &Tensor, inner: &Arc<Opening>, name: &str) -> Result<()> {
    if t.held.inner().is_succeeded_by(inner) {
        return t.held.check();
    }
    Err(not_of(t, inner, name))
}

#[cold]
fn too_many() -> Error {
    Error::new(Code::InvalidArgument, "pack tensors into one storage", "a message of more than 65,535 storages")
}

impl Outgoing {
    /// Gathers refs and body. Tensors of another session are refused: their memory is another
    /// broker's, or counted in another holder's refcounts.
    pub(crate) fn compose(&mut self, inner: &Arc<Opening>, value: &Payload, flags: u32) -> Result<()> {
        if let Some(what) = &value.fault {
            return Err(Error::new(Code::InvalidArgument, "give each tensor a name of its own", what.as_ref()));
        }
        let Outgoing { refs, words, front, counted, .. } = self;
        refs.clear();
        counted.clear();
        self.order = None;
        words.clear();
        words.extend_from_slice(&[0; REF_WORDS]); // most messages name one storage
        *front = REF_WORDS;
        let mut encoder = Encoder::new(words);
        let mut bytes = 0u64; // strides of 0 make many of few
        match &value.tensors {
            Tensors::One(t) => bytes = add(inner, "", t, refs, counted, &mut encoder)?,
            Tensors::Named(names, all) => {
                for (name, t) in names.iter().zip(&**all) {
                    bytes = bytes.saturating_add(add(inner, name, t, refs, counted, &mut encoder)?);
                }
            }
            Tensors::Numbered(all) => {
                for t in all {
                    bytes = bytes.saturating_add(add(inner, "", t, refs, counted, &mut encoder)?);
                }
            }
        }
        let (tensors, body) = encoder.end(&value.tree, &value.meta)?;
        self.head = SlotHead { flags, nref: 0, tensors, bytes, body, stamp: 0 };
        Ok(())
    }

    /// Makes the message come after the work of its stream, where it has tensors on a GPU. The deadline is for
    /// where the processor waits.
    pub(crate) fn order(&mut self, inner: &Opening, value: &Payload, until: Option<Instant>) -> Result<()> {
        if inner.memory.beside().is_some() {
            let tensors = value.tensors.iter().map(|(_, t)| t);
            self.order = order_send(inner, tensors, value.stream, until)?.map(|p| p.order());
            self.head.flags |= if self.order.is_some() { slot_flag::ORDERED } else { 0 };
        }
        Ok(())
    }

    /// Lays the message out for a place with `room` bytes, in a spill storage of its own when it is
    /// too long.
    pub(crate) fn place(&mut self, inner: &Arc<Opening>, room: usize) -> Result<()> {
        let order = self.order.map(Order::words);
        let order = order.as_ref().map_or(&[][..], |words| words);
        let front = REF_WORDS * self.refs.len() + order.len();
        if 8 * front + self.head.body as usize <= room {
            self.head.nref = self.refs.len() as u16;
            if front != self.front {
                self.words.splice(..self.front, iter::repeat_n(0, front));
                self.front = front;
            }
            let (refs, behind) = self.words[..front].split_at_mut(REF_WORDS * self.refs.len());
            refs.as_chunks_mut().0.iter_mut().zip(&self.refs).for_each(|(words, r)| *words = r.words());
            behind.copy_from_slice(order);
            return Ok(());
        }
        let spilled = spill_front(&self.refs, self.head.body)?;
        let (begin, body) = (8 * spilled.len(), self.head.body as usize);
        let words = &self.words[self.front..][..body.div_ceil(8)];
        let holding = inner.fill((begin + body) as u64, DType::UINT8, &[(begin + body) as i64])?;
        let h = &holding.storages[0];
        let to = h.address(true)?;
        // Words lie in a slot as they are, and here too.
        // SAFETY: the storage was just allocated with as many bytes, and no other owner has it yet; the words
        // have as many.
        unsafe {
            std::ptr::copy_nonoverlapping(spilled.as_ptr().cast(), to, begin);
            std::ptr::copy_nonoverlapping(words.as_ptr().cast(), to.add(begin), body);
        }
        crash_point::at("spill-written");
        let reference = h.reference;
        inner.memory.files.entries.share(reference.index);
        self.counted.insert(0, (reference.index, true));
        self.head.flags |= slot_flag::SPILLED;
        (self.head.nref, self.head.body) = (1, 0);
        self.spilled = Some(holding);
        self.words.clear();
        self.words.extend(reference.words());
        self.words.extend(order);
        self.front = self.words.len();
        Ok(())
    }

    /// The body as bytes, before it has a place.
    pub(crate) fn body(&self) -> Vec<u8> {
        first_bytes(&self.words[self.front..], self.head.body as usize)
    }

    /// Refs and body of the place.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Counts up what the place will name, or nothing. What it will count, as (index, own). The count
    /// of a tensor that is given away, and that has no other owner here, is taken over.
    pub(crate) fn count(&mut self, inner: &Opening, value: &mut Payload) -> Result<&[(u32, bool)]> {
        if let Tensors::One(t) = &mut value.tensors
            && self.spilled.is_none()
            && t.held.may_give(inner, self.counted.len())
        {
            t.held.give();
            return Ok(&self.counted);
        }
        for (k, (index, _)) in self.counted.iter().enumerate() {
            if let Err(e) = inner.count_up(*index) {
                self.counted[..k].iter().for_each(|(index, own)| inner.memory.let_go(*index, *own));
                return Err(e);
            }
            crash_point::at("send-counting");
        }
        Ok(&self.counted)
    }

    /// Lets go of the spill storage, if there is one: the place counts it.
    pub(crate) fn end(&mut self) {
        self.spilled = None;
    }

    /// The spill storage, if there is one.
    pub(crate) fn spill_ref(&self) -> Option<Ref> {
        self.spilled.as_ref().map(|h| h.storages[0].reference)
    }
}
