//! Taking a message: hold what it names, look again, check, and describe.

use std::borrow::Cow;
use std::sync::Arc;

use super::attach::Attached;
use super::bundle::Bundle;
use super::holding::{Held, Holding, Received, Storages};
use super::inner::Inner;
use super::members::LaneView;
use super::names::{Names, key_of};
use super::order::Point;
use super::reader::Acknowledge;
use super::shared::Shared;
use super::tensor::Tensor;
use crate::crash_point;
use crate::error::{Code, Error, Result, disagree};
use crate::layout::{limits, reference, slot_flag, spill};
use crate::message::{Body, Extents, Order, Ref, TensorDesc, parse_spill};
use crate::shm::SlotHead;

/// A tensor under its name.
type Named<'a> = (Cow<'a, str>, Tensor);

/// What a message consists of: its tensors, each made when it is asked for, and two texts of JSON.
pub(crate) struct Contents<'a, T> {
    pub(crate) tensors: T,
    pub(crate) tree: &'a [u8],
    meta: &'a [u8],
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
#[derive(Debug)]
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

    /// When it was sent, in ns of CLOCK_MONOTONIC.
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
        Ok(Bundle { names, tensors: tensors.into(), tree: tree.to_vec(), meta: meta.to_vec(), revision: 0, live })
    }

    /// What the message consists of.
    pub(crate) fn contents<'a>(&'a self) -> Result<Contents<'a, impl ExactSizeIterator<Item = Result<Named<'a>>>>> {
        let Received { body, flags, .. } = self.received()?;
        let writable = flags & slot_flag::WRITABLE != 0;
        let all = Body::each(body, self.held.storages.len())?;
        let (tree, meta) = (all.tree, all.meta);
        let mut owners = self.held.owners(all.len());
        let make = move |d: Result<TensorDesc<'a, Extents<'a>>>| {
            let d = d?;
            let name = if tree.is_empty() { key_of(d.name) } else { d.name.into() };
            Ok((name, Tensor::described(owners.next(), d, writable)?))
        };
        Ok(Contents { tensors: all.map(make), tree, meta })
    }

    /// The first tensor; only its description is looked at. `NotFound` when there is none, else as for
    /// [`bundle`](Message::bundle).
    pub fn tensor(&self) -> Result<Tensor> {
        first(self.held.clone())
    }

    /// The first tensor, for which the message is given up.
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

    /// The JSON of the meta; empty when there is none.
    pub fn meta(&self) -> Result<Vec<u8>> {
        Body::parse(&self.received()?.body, self.held.storages.len()).map(|b| b.meta.to_vec())
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
    let Some(d) = Body::first(&received.body, held.storages.len())? else {
        return Err(Error::new(Code::NotFound, "look at the bundle's value", "the message has no tensor"));
    };
    let view = held.view(&d, received.flags & slot_flag::WRITABLE != 0)?;
    Ok(Tensor::of_view(held, view))
}

impl LaneView {
    /// Whether slot i holds message i of this lane.
    fn has(&self, i: u64) -> bool {
        self.lane.has(i) && self.current()
    }

    /// The second look of a taker, after its row was raised.
    #[inline]
    fn still_has(&self, i: u64) -> bool {
        let has = self.lane.still_has(i);
        crash_point::at("take-looked");
        has && self.current()
    }
}

/// What became of an attempt to take a message.
pub(crate) enum Taken {
    /// Held: the scratch has its storages and what it says.
    Held,
    /// The slot no longer holds it, or the lane is no more.
    Gone,
    /// It is there and cannot be had: malformed, or it names what this process cannot have.
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
    pub(crate) fn message(
        &mut self,
        lane: &Arc<LaneView>,
        sequence: u64,
        lost: u64,
        acknowledge: Option<Box<Acknowledge>>,
    ) -> Shared {
        // A locked instruction: behind it nothing waits for what has just been written in parts.
        let (lane, order) = (lane.clone(), self.order);
        let held = Shared::new(|| {
            let body = match self.unspilled.take() {
                Some(body) => body.into(),
                None => self.head.body_of(&self.words),
            };
            let received = Received { lane, sequence, stamp: self.head.stamp, lost, flags: self.head.flags, body };
            Holding::of_message(received, std::mem::take(&mut self.storages), acknowledge)
        });
        if let (Some(order), Some(received)) = (order, held.received()) {
            held.written_at(Point::of(&received.lane.owner.file, order));
        }
        held
    }

    /// Lets go of what was just held: another member was first.
    pub(crate) fn let_go(&mut self, inner: &Inner) {
        for s in std::mem::take(&mut self.storages).iter() {
            inner.let_go(s.reference.index, s.at.own);
        }
    }
}

impl Inner {
    /// Copies message i of a lane and holds what it names.
    #[inline]
    pub(crate) fn take(&self, lane: &LaneView, i: u64, scratch: &mut Scratch) -> Taken {
        let expect = |index| self.attached.expect(index, &self.pages.row);
        let Some(head) = lane.lane.read(i, &mut scratch.words, expect) else { return Taken::Gone };
        crash_point::at("take-read");
        scratch.head = head;
        match head.only_ref(&scratch.words) {
            Some(r) => self.take_one(lane, i, scratch, r),
            None => self.take_all(lane, i, scratch),
        }
    }

    /// As `take_all`, of a message that names one storage and is whole as it was copied.
    #[inline]
    fn take_one(&self, lane: &LaneView, i: u64, scratch: &mut Scratch, r: Ref) -> Taken {
        let refused = |e| if lane.has(i) { Taken::Malformed(e) } else { Taken::Gone };
        let at = match r.check().and_then(|()| self.hold(r)) {
            Ok(at) => at,
            Err(e) => return refused(e),
        };
        crash_point::at("take-counting");
        if scratch.head.flags & slot_flag::WRITABLE != 0
            && let Err(e) = self.writable(&at.segment)
        {
            self.let_go(r.index, at.own);
            return refused(e);
        }
        crash_point::at("take-counted");
        // SYNC slot-seq: the second look, as in `take_all`.
        if !lane.still_has(i) {
            self.let_go(r.index, at.own);
            return Taken::Gone;
        }
        crash_point::at("take-held");
        match at.locate(r) {
            Ok(one) => {
                self.expect_again(&one);
                (scratch.unspilled, scratch.order) = (None, None);
                scratch.storages = one.into();
                Taken::Held
            }
            Err(e) => {
                self.let_go(r.index, at.own);
                Taken::Malformed(e)
            }
        }
    }

    /// Holds all that a copied message names.
    fn take_all(&self, lane: &LaneView, i: u64, scratch: &mut Scratch) -> Taken {
        let Scratch { head, words, refs, held, unspilled, order, storages } = scratch;
        *unspilled = None;
        refs.clear();
        refs.extend(head.refs(words));
        held.clear();
        let got = refs.iter().try_for_each(|r| r.check()).and_then(|()| self.hold_all(refs, held));
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
            _ => held.iter().try_for_each(|a| self.writable(&a.segment)),
        });
        if let Err(e) = got {
            self.let_go_all(refs, held);
            return if lane.has(i) { Taken::Malformed(e) } else { Taken::Gone };
        }
        crash_point::at("take-counted");
        // SYNC slot-seq: the second look, after the rows were raised. If the slot still names the
        // message, its writer counts every ref, so none can have been recycled before this row
        // counted it.
        if !lane.still_has(i) {
            self.let_go_all(refs, held);
            return Taken::Gone;
        }
        crash_point::at("take-held");
        match self.locate_all(refs, held) {
            Ok(located) => {
                *storages = located;
                Taken::Held
            }
            Err(e) => {
                self.let_go_all(refs, held);
                Taken::Malformed(e)
            }
        }
    }

    fn locate_all(&self, refs: &[Ref], held: &[Attached]) -> Result<Storages> {
        let ([r], [a]) = (refs, held) else {
            let all = refs.iter().zip(held).map(|(r, a)| a.locate(*r)).collect::<Result<_>>()?;
            return Ok(Storages::Many(all));
        };
        let one = a.locate(*r)?;
        self.expect_again(&one);
        Ok(one.into())
    }

    /// Notes where a storage lies: its next content mostly comes in the same place.
    #[inline]
    fn expect_again(&self, one: &Held) {
        if one.at.segment.device().is_none()
            && let Ok(at) = one.address(false)
        {
            self.attached.note(one, at);
        }
    }

    /// Reads the refs and the body from a held spill storage and holds the refs in its place. On an
    /// error the spill storage is what is still held.
    fn unspill(&self, refs: &mut Vec<Ref>, held: &mut Vec<Attached>) -> Result<Vec<u8>> {
        let ([one], [at]) = (&refs[..], &held[..]) else {
            let what = format!("a spilled message names {} storages, not 1", refs.len());
            return Err(Error::new(Code::Protocol, "its sender is at fault", what));
        };
        let h = at.locate(*one)?;
        let most = spill::SIZE + limits::REFS as u64 * reference::SIZE + limits::BODY as u64;
        if h.bytes > most {
            let what = format!("a description of {} bytes", h.bytes);
            return Err(Error::new(Code::Protocol, "its sender is at fault", what));
        }
        h.address(false)?;
        let mut private = vec![0; h.bytes as usize];
        h.at.segment.region(false)?.read_bytes(h.offset, &mut private);
        let (nested, body) = parse_spill(private)?;
        let mut more = Vec::with_capacity(nested.len());
        self.hold_all(&nested, &mut more)?;
        self.let_go_all(refs, held); // its content has been copied
        (*refs, *held) = (nested, more);
        crash_point::at("take-unspilled");
        Ok(body)
    }
}
