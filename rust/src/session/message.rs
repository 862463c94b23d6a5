//! Taking a message: hold what it names, look again, check, and describe.

use std::sync::Arc;

use super::bundle::{Bundle, key_of};
use super::holding::{Attachment, Held, Holding};
use super::inner::Inner;
use super::tensor::Tensor;
use crate::error::{Code, Error, Result};
use crate::layout::{limits, reference, slot_flag, spill};
use crate::message::{Body, Ref, parse_spill};
use crate::shm::Lane;

/// What a reader received. It holds its storages; tensors taken from it hold them on. With
/// redelivery, dropping the last of them is the acknowledgement.
#[derive(Debug)]
pub struct Message {
    pub(crate) sender: Arc<str>,
    pub(crate) sequence: u64,
    pub(crate) stamp: u64,
    pub(crate) lost: u64,
    pub(crate) flags: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) held: Arc<Holding>,
}

impl Message {
    /// The session that sent it: its program and serial.
    pub fn sender(&self) -> &str {
        &self.sender
    }

    /// Its number in its sender's lane, from 1.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// When it was sent, in ns of CLOCK_MONOTONIC.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// This sender's messages that went by unseen before this one.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// All tensors by name. Fails when the sender described them wrongly (`Protocol`,
    /// `InvalidArgument`, `Unsupported`).
    pub fn bundle(&self) -> Result<Bundle> {
        let body = Body::parse(&self.body, self.held.storages.len())?;
        let writable = self.flags & slot_flag::WRITABLE != 0;
        let flat = body.tree.is_empty();
        let tensors = body
            .tensors
            .iter()
            .map(|d| {
                Ok((
                    if flat { key_of(&d.name) } else { d.name.clone() },
                    Tensor::described(&self.held, d, writable && !d.readonly)?,
                ))
            })
            .collect::<Result<_>>()?;
        Ok(Bundle { tensors, tree: body.tree, revision: 0, live: self.flags & slot_flag::LIVE != 0 })
    }

    /// The first tensor. `NotFound` when there is none.
    pub fn tensor(&self) -> Result<Tensor> {
        let first = self.bundle()?.tensors.into_iter().next();
        first
            .map(|(_, t)| t)
            .ok_or_else(|| Error::new(Code::NotFound, "look at the bundle's value", "the message has no tensor"))
    }

    /// The JSON of the meta; empty when there is none.
    pub fn meta(&self) -> Result<Vec<u8>> {
        Body::parse(&self.body, self.held.storages.len()).map(|b| b.meta)
    }
}

/// What became of an attempt to take a message.
pub(crate) enum Taken {
    /// Held.
    Message(Taking),
    /// The slot no longer holds it.
    Gone,
    /// It is there and cannot be had: malformed, or it names what this process cannot have.
    Malformed(Error),
}

/// A held message whose sender and losses are not filled in.
pub(crate) struct Taking {
    pub(crate) stamp: u64,
    pub(crate) flags: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) storages: Vec<Held>,
}

impl Inner {
    /// Copies message i of a lane and holds what it names.
    pub(crate) fn take(&self, lane: &Lane, i: u64, words: &mut Vec<u64>) -> Taken {
        let Some(head) = lane.read(i, words) else { return Taken::Gone };
        let mut refs: Vec<Ref> = head.refs(words).collect();
        let mut held = Vec::with_capacity(refs.len());
        let mut body = Vec::new();
        let mut got =
            refs.iter().try_for_each(|r| r.check().map(|_| ())).and_then(|()| self.hold_all(&refs, &mut held));
        if got.is_ok() {
            if head.flags & slot_flag::SPILLED != 0 {
                got = self.unspill(&mut refs, &mut held).map(|b| body = b);
            } else {
                body = head.body_of(words);
            }
        }
        if got.is_ok() && head.flags & slot_flag::WRITABLE != 0 {
            got = held.iter().try_for_each(|a| self.writable(&a.segment));
        }
        if let Err(e) = got {
            self.let_go_all(&refs, &held);
            return if lane.has(i) { Taken::Malformed(e) } else { Taken::Gone };
        }
        // SYNC slot-seq: the second look, after the rows were raised. If the slot still names the
        // message, its writer counts every ref, so none can have been recycled before this row
        // counted it.
        if !lane.still_has(i) {
            self.let_go_all(&refs, &held);
            return Taken::Gone;
        }
        match refs.iter().zip(&held).map(|(r, a)| a.locate(*r)).collect::<Result<Vec<Held>>>() {
            Ok(storages) => Taken::Message(Taking { stamp: head.stamp, flags: head.flags, body, storages }),
            Err(e) => {
                self.let_go_all(&refs, &held);
                Taken::Malformed(e)
            }
        }
    }

    /// Reads the refs and the body from a held spill storage and holds the refs in its place. On an
    /// error the spill storage is what is still held.
    fn unspill(&self, refs: &mut Vec<Ref>, held: &mut Vec<Arc<Attachment>>) -> Result<Vec<u8>> {
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
        let (nested, body) = parse_spill(&private)?;
        let mut more = Vec::with_capacity(nested.len());
        self.hold_all(&nested, &mut more)?;
        self.let_go_all(refs, held); // its content has been copied
        (*refs, *held) = (nested, more);
        Ok(body)
    }
}
