//! Taking a message: hold what it names, look again, check, and describe.

use std::borrow::Cow;
use std::sync::Arc;

use crate::crash_point;
use crate::devices::{OnGpu, Point};
use crate::error::{Code, Error, Result, disagree};
use crate::holding::Acknowledge;
use crate::holding::LaneView;
use crate::holding::Opening;
use crate::holding::View;
use crate::holding::{Holding, KeptBy, One, Received, Storages};
use crate::holding::{Owners, Shared};
use crate::layout::{limits, reference, slot_flag, spill};
use crate::memory::Attached;
use crate::memory::Held;
use crate::message::{Body, Brief, Descriptions, Order, Ref, parse_spill};
use crate::shm::{Copied, SlotHead};
use crate::tensor::Tensor;
use crate::value::Bundle;
use crate::value::{Build, Names, Value, Values, decode, key_of};

/// A tensor under its name.
type Named<'a> = (Cow<'a, str>, Tensor);

/// What a message consists of: its tensors, each made when it is asked for, and two texts of JSON.
pub(crate) struct Contents<'a, T> {
    pub(crate) tensors: T,
    pub(crate) tree: &'a [u8],
    meta: &'a [u8],
}

/// The texts of a message, and how many tensors it has.
pub(crate) struct Texts<'a> {
    pub(crate) tensors: usize,
    pub(crate) tree: &'a [u8],
    pub(crate) meta: &'a [u8],
}

/// What a reader received. It holds its storages; tensors taken from it hold them on. With
/// redelivery, dropping the last of them is the acknowledgement.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let topic = session.topic_with("steps", &baton::TopicOptions::default().depth(1))?;
/// let mut reader = topic.reader(baton::Start::New)?;
/// for step in [1, 2] {
///     let value = baton::Payload::named([("x", session.zeros::<f32>(&[3])?.freeze())]);
///     topic.send(value.meta(&step)?)?; // the second overwrites the first
/// }
/// let message = reader.recv(None)?;
/// assert_eq!((message.sequence(), message.lost()), (2, 1));
/// let bundle = message.bundle()?;
/// assert_eq!((bundle.meta(), bundle.get("x").map(|x| x.len())), (&b"2"[..], Some(3)));
/// drop(message); // the bundle's tensors hold their memory on
/// # Ok(()) }
/// ```
pub struct Message {
    pub(crate) held: Shared,
}

impl Message {
    /// The name of the session that sent it.
    pub fn sender(&self) -> &str {
        self.held.received().map_or("", |r| &r.lane.owner.sender)
    }

    /// Its number in its sender's lane, from 1.
    pub fn sequence(&self) -> u64 {
        self.held.received().map_or(0, |r| r.sequence)
    }

    /// When it was sent, in ns of CLOCK_MONOTONIC; of the only sender of a topic perhaps some µs less.
    pub fn stamp(&self) -> u64 {
        self.held.received().map_or(0, |r| r.stamp)
    }

    /// The messages that went by unseen before this one: this sender's, and those of senders that have gone.
    pub fn lost(&self) -> u64 {
        self.held.received().map_or(0, |r| r.lost)
    }

    /// All tensors by name. Fails when the sender described them wrongly (`Protocol`,
    /// `InvalidArgument`, `Unsupported`).
    pub fn bundle(&self) -> Result<Bundle> {
        let Contents { tensors, tree, meta } = self.contents()?;
        let mut names = Names::default();
        let tensors: Vec<_> = tensors.map(|t| t.map(|(name, t)| (names.push(&name), t).1)).collect::<Result<_>>()?;
        let live = self.received()?.flags & slot_flag::LIVE != 0;
        Ok(Bundle {
            names,
            tensors: tensors.into(),
            tree: tree.to_vec(),
            meta: meta.to_vec(),
            live,
            ..Bundle::default()
        })
    }

    /// What the message consists of.
    pub(crate) fn contents(&self) -> Result<Contents<'_, impl ExactSizeIterator<Item = Result<Named<'_>>>>> {
        let Received { body, flags, .. } = self.received()?;
        let Some(body) = body else {
            return Ok(Contents { tensors: Tensors::Brief(Some(self.held.clone())), tree: &[], meta: &[] });
        };
        let all = Body::each(body, self.held.storages.len())?;
        let (tree, meta) = (all.tree, all.meta);
        let (owners, writable) = (self.held.owners(all.len()), flags & slot_flag::WRITABLE != 0);
        Ok(Contents { tensors: Tensors::Described { all, owners, writable }, tree, meta })
    }

    /// Its texts; no tensor is looked at.
    #[inline]
    pub(crate) fn texts(&self) -> Result<Texts<'_>> {
        let Some(body) = &self.received()?.body else { return Ok(Texts { tensors: 1, tree: &[], meta: &[] }) };
        let all = Body::each(body, self.held.storages.len())?;
        Ok(Texts { tensors: all.len(), tree: all.tree, meta: all.meta })
    }

    /// The first tensor; only its description is looked at. `NotFound` when there is none, else as for
    /// [`bundle`](Message::bundle).
    pub fn tensor(&self) -> Result<Tensor> {
        first(self.held.clone())
    }

    /// The first tensor, for which the message is given up. Errors as of [`tensor`](Message::tensor); with
    /// one the message is given up too.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let topic = session.topic("t")?;
    /// let mut reader = topic.reader(baton::Start::New)?;
    /// topic.send(session.from_slice(&[2], &[1u8, 2])?.freeze())?;
    /// let message = reader.recv(None)?;
    /// assert!(!message.sender().is_empty() && message.stamp() > 0);
    /// assert_eq!(message.into_tensor()?.to_vec::<u8>()?, [1, 2]);
    /// # Ok(()) }
    /// ```
    pub fn into_tensor(self) -> Result<Tensor> {
        first(self.held)
    }

    /// The JSON of the meta; empty when there is none. `Protocol` if the sender has described it wrongly.
    pub fn meta(&self) -> Result<Vec<u8>> {
        let Some(body) = &self.received()?.body else { return Ok(Vec::new()) };
        Body::parse(body, self.held.storages.len()).map(|b| b.meta.to_vec())
    }

    fn received(&self) -> Result<&Received> {
        said(&self.held)
    }
}

/// What the message says that a holding is of.
#[inline]
fn said(held: &Holding) -> Result<&Received> {
    held.received().ok_or_else(|| disagree("a message that was not received"))
}

fn first(held: Shared) -> Result<Tensor> {
    let received = said(&held)?;
    let Some(body) = &received.body else {
        held.check_brief()?;
        return Ok(Tensor::of(held));
    };
    let Some(d) = Body::first(body, held.storages.len())? else {
        return Err(Error::new(Code::NotFound, "look at the bundle's value", "the message has no tensor"));
    };
    let view = held.view_of(&d, received.flags & slot_flag::WRITABLE != 0)?;
    Ok(Tensor::of_view(held, view))
}

/// The tensors of a message, each made when it is asked for.
enum Tensors<'a> {
    /// That of a brief one.
    Brief(Option<Shared>),
    Described {
        all: Descriptions<'a>,
        owners: Owners,
        writable: bool,
    },
}

impl<'a> Iterator for Tensors<'a> {
    type Item = Result<Named<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Result<Named<'a>>> {
        match self {
            Tensors::Brief(held) => {
                let held = held.take()?;
                Some(held.check_brief().map(|()| ("".into(), Tensor::of(held))))
            }
            Tensors::Described { all, owners, writable } => Some(all.next()?.and_then(|d| {
                let name = if all.tree.is_empty() { key_of(d.name) } else { d.name.into() };
                Ok((name, Tensor::described(owners.next(), d, *writable)?))
            })),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Tensors::Brief(held) => (usize::from(held.is_some()), Some(usize::from(held.is_some()))),
            Tensors::Described { all, .. } => all.size_hint(),
        }
    }
}

impl ExactSizeIterator for Tensors<'_> {}

/// What goes with a message that a reader may have.
pub(crate) struct Claim {
    /// Messages that went by unseen before it.
    pub(crate) lost: u64,
    pub(crate) acknowledge: Option<Box<Acknowledge>>,
}

/// What became of an attempt to take a message.
pub(crate) enum Taken {
    /// Held, and claimed where that was to be.
    Message(Shared),
    /// It is there, and another member has claimed it.
    Claimed,
    /// The slot no longer holds it, or the lane is no more.
    Gone,
    /// It is there and cannot be taken: malformed, or it names what this process cannot have.
    Malformed(Error),
}

/// What a reader takes with, kept from one message to the next.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    head: SlotHead,
    words: Vec<u64>,
    refs: Vec<Ref>,
    held: Vec<Attached>,
    unspilled: Option<Vec<u8>>,
    order: Option<Order>,
    storages: Storages,
}

impl Scratch {
    /// The message just held, from a lane.
    #[inline]
    fn message(&mut self, lane: &Arc<LaneView>, sequence: u64, claim: Claim) -> Shared {
        let Claim { lost, acknowledge } = claim;
        // A locked instruction: after it nothing waits for what has just been written in parts.
        let (lane, order) = (lane.clone(), self.order);
        let held = Shared::new(|| {
            let body = match self.unspilled.take() {
                Some(body) => body.into(),
                None => self.head.body_of(&self.words),
            };
            let (flags, body) = (self.head.flags, Some(body));
            // What was set before the machine started has a stamp below 0, from which now is as far as it was set ago.
            let (sequence, stamp) = match self.head.agreed_of(&self.words) {
                Some((revision, age)) => (revision, self.head.stamp.wrapping_sub(age)),
                None => (sequence, self.head.stamp),
            };
            let received = Received { lane, sequence, stamp, lost, flags, body };
            Holding::of_message(received, std::mem::take(&mut self.storages), View::none(), acknowledge)
        });
        if let (Some(order), Some(received)) = (order, held.received()) {
            OnGpu(&held).written_at(Point::of(&received.lane.owner.file, order));
        }
        held
    }
}

/// An opening, as messages are taken for it.
#[derive(Clone, Copy)]
pub(crate) struct Taking<'a>(pub(crate) &'a Opening);

/// Whether an error says that no process can have the message. Any other is about this process or
/// its broker: no descriptors or memory left, no answer, an owner that is not back after the death of
/// a broker.
pub(crate) fn refuted(e: &Error) -> bool {
    use Code::*;
    if e.about_device() {
        return false;
    }
    matches!(
        e.code(),
        Protocol | InvalidHandle | Expired | NotFound | InvalidArgument | Unsupported | ReadOnly | PermissionDenied
    )
}

impl Taking<'_> {
    /// Copies message i of a lane, holds what it names, and claims it. `claim` tells what the reader has lost before
    /// it, and what acknowledges it; `None` where another member was first.
    // What is done for a brief message is one piece: what would be handed from one part to the next by memory would be
    // waited for there.
    #[inline(always)]
    pub(crate) fn take(
        self,
        lane: &Arc<LaneView>,
        i: u64,
        scratch: &mut Scratch,
        claim: impl FnOnce() -> Option<Claim>,
    ) -> Taken {
        let expect = |index| self.0.memory.attached.expect(index, &self.0.memory.files.refcounts);
        let copied = lane.lane.read(i, &mut scratch.words, expect);
        crash_point::at("take-read");
        match copied {
            Some(Copied::Brief(b, stamp)) => self.take_brief(lane, i, b, stamp, claim),
            Some(Copied::Full(head)) => {
                scratch.head = head;
                self.take_full(lane, i, scratch, claim)
            }
            None => Taken::Gone,
        }
    }

    #[inline(always)]
    fn take_brief(
        self,
        lane: &Arc<LaneView>,
        sequence: u64,
        b: Brief,
        stamp: u64,
        claim: impl FnOnce() -> Option<Claim>,
    ) -> Taken {
        let held = match self.take_one(lane, sequence, b.reference, b.is_writable()) {
            Ok(held) => held,
            Err(taken) => return taken,
        };
        let Some(Claim { lost, acknowledge }) = claim() else {
            self.0.memory.let_go(held.reference.index, held.at.own);
            return Taken::Claimed;
        };
        let lane = lane.clone();
        let one = One { held, dtype: b.dtype, shape: b.shape(), readonly: b.is_read_only() };
        Taken::Message(Shared::of_one(self.0, one, acknowledge, || {
            KeptBy::Message(Received { lane, sequence, stamp, lost, flags: b.flags, body: None })
        }))
    }

    /// As `take`, of a message that is not brief.
    #[inline(never)]
    fn take_full(
        self,
        lane: &Arc<LaneView>,
        i: u64,
        scratch: &mut Scratch,
        claim: impl FnOnce() -> Option<Claim>,
    ) -> Taken {
        let held = match scratch.head.only_ref(&scratch.words) {
            None => self.take_all(lane, i, scratch),
            Some(r) => match self.take_one(lane, i, r, scratch.head.flags & slot_flag::WRITABLE != 0) {
                Ok(held) => {
                    (scratch.unspilled, scratch.order) = (None, None);
                    scratch.storages = held.into();
                    Ok(())
                }
                Err(taken) => Err(taken),
            },
        };
        if let Err(taken) = held {
            return taken;
        }
        match claim() {
            Some(claim) => Taken::Message(scratch.message(lane, i, claim)),
            None => {
                for s in std::mem::take(&mut scratch.storages).iter() {
                    self.0.memory.let_go(s.reference.index, s.at.own);
                }
                Taken::Claimed
            }
        }
    }

    /// As `take_all`, of a message that names one storage and is whole as it was copied: the storage, or what
    /// became of the attempt.
    #[inline(always)]
    fn take_one(self, lane: &LaneView, i: u64, r: Ref, write: bool) -> std::result::Result<Held, Taken> {
        let refused = |e| if lane.has(i) { Taken::Malformed(e) } else { Taken::Gone };
        let at = r.check().and_then(|()| self.0.hold(r)).map_err(refused)?;
        crash_point::at("take-counting");
        if write && let Err(e) = self.0.writable(&at.segment) {
            self.0.memory.let_go(r.index, at.own);
            return Err(refused(e));
        }
        crash_point::at("take-counted");
        // SYNC slot-seq: the second look, as in `take_all`.
        if !lane.still_has(i) {
            self.0.memory.let_go(r.index, at.own);
            return Err(Taken::Gone);
        }
        crash_point::at("take-held");
        match at.locate(r) {
            Ok(one) => {
                self.0.memory.attached.note_at(r.index, at, one.offset, one.bytes);
                Ok(one)
            }
            Err(e) => {
                self.0.memory.let_go(r.index, at.own);
                Err(Taken::Malformed(e))
            }
        }
    }

    /// Holds all that a copied message names, which the scratch has then.
    fn take_all(self, lane: &LaneView, i: u64, scratch: &mut Scratch) -> std::result::Result<(), Taken> {
        let Scratch { head, words, refs, held, unspilled, order, storages } = scratch;
        *unspilled = None;
        refs.clear();
        refs.extend(head.refs(words));
        held.clear();
        let got = refs.iter().try_for_each(|r| r.check()).and_then(|()| self.0.hold_all(refs, held));
        let got = got.and_then(|()| match head.flags & slot_flag::SPILLED {
            0 => Ok(()),
            _ => self.unspill(refs, held).map(|body| *unspilled = Some(body)),
        });
        let got = got.and_then(|()| {
            *order = head.order_of(words).map(Order::of).transpose()?;
            Ok(())
        });
        let got = got.and_then(|()| match head.flags & slot_flag::WRITABLE {
            0 => Ok(()),
            _ => held.iter().try_for_each(|a| self.0.writable(&a.segment)),
        });
        if let Err(e) = got {
            self.0.let_go_all(refs, held);
            return Err(if lane.has(i) { Taken::Malformed(e) } else { Taken::Gone });
        }
        crash_point::at("take-counted");
        // SYNC slot-seq: the second look, after the refcounts were raised. If the slot still names the
        // message, its writer counts every ref, so none can have been recycled before these refcounts
        // counted it.
        if !lane.still_has(i) {
            self.0.let_go_all(refs, held);
            return Err(Taken::Gone);
        }
        crash_point::at("take-held");
        match self.locate_all(refs, held) {
            Ok(located) => {
                *storages = located;
                Ok(())
            }
            Err(e) => {
                self.0.let_go_all(refs, held);
                Err(Taken::Malformed(e))
            }
        }
    }

    fn locate_all(self, refs: &[Ref], held: &[Attached]) -> Result<Storages> {
        let ([r], [a]) = (refs, held) else {
            let all = refs.iter().zip(held).map(|(r, a)| a.locate(*r)).collect::<Result<_>>()?;
            return Ok(Storages::Many(all));
        };
        let one = a.locate(*r)?;
        self.0.memory.attached.note_at(r.index, *a, one.offset, one.bytes);
        Ok(one.into())
    }

    /// Reads the refs and the body from a held spill storage and holds the refs in its place. On an
    /// error the spill storage is what is still held.
    fn unspill(self, refs: &mut Vec<Ref>, held: &mut Vec<Attached>) -> Result<Vec<u8>> {
        let ([one], [at]) = (&refs[..], &held[..]) else {
            let what = format!("a spilled message names {} storages, not 1", refs.len());
            return Err(Error::new(Code::Protocol, "update or restart its sender", what));
        };
        let h = at.locate(*one)?;
        let most = spill::SIZE + limits::REFS as u64 * reference::SIZE + limits::BODY as u64;
        if h.bytes > most {
            let what = format!("a description of {} bytes", h.bytes);
            return Err(Error::new(Code::Protocol, "update or restart its sender", what));
        }
        h.address(false)?;
        let mut private = vec![0; h.bytes as usize];
        h.at.segment.region(false)?.read_bytes(h.offset, &mut private);
        let (nested, body) = parse_spill(private)?;
        let mut more = Vec::with_capacity(nested.len());
        self.0.hold_all(&nested, &mut more)?;
        self.0.let_go_all(refs, held); // its content has been copied
        (*refs, *held) = (nested, more);
        crash_point::at("take-unspilled");
        Ok(body)
    }
}

impl Message {
    /// The value that was sent. Errors as for [`bundle`](Message::bundle).
    pub fn value(&self) -> Result<Value> {
        self.build(&Values)
    }

    /// What a builder makes of the value that was sent. Errors as for [`bundle`](Message::bundle).
    pub fn build<B: Build>(&self, b: &B) -> std::result::Result<B::Made, B::Error> {
        let all = self.contents()?;
        decode(b, all.tensors, all.tree)
    }
}
