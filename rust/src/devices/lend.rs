//! Memory of frameworks on a GPU, lent to other processes as it lies, while this session lives.
//!
//! Each tensor that is lent is a storage of its own, counted as all are; what keeps the framework from using
//! its bytes otherwise is released when no holder counts it any more. An allocation of the framework's is a
//! segment without a descriptor of the driver's: others open it by its legacy handle, while they hold a
//! storage of it. Memory that a framework has of Baton's own slabs is lent in their segments.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::gpu::Gpu;
use crate::cuda::{Allocation, IpcHandle, Slab};
use crate::error::{Result, disagree};
use crate::holding::Opening;
use crate::layout::{ALIGNMENT, limits};
use crate::ledger::{FreeTest, Source, Storage};
use crate::message::Ref;
use crate::shm::Segment;
use crate::sys;
use crate::table::Table;
use crate::wire::ops::{GrantReply, GrantRequest, Ignored, OfferRequest, ReturnRequest};

/// What keeps lent memory as it is: the framework's tensor. It is dropped on a thread of the session's.
pub(crate) type Keep = Box<dyn Any + Send>;

/// What a session has lent.
#[derive(Debug)]
pub(crate) struct Lender {
    state: Mutex<State>,
    dropped: Mutex<Vec<u32>>,  // own count fell to zero
    chunks: Table<AtomicBool>, // which are the lender's
    inner: Weak<Opening>,
}

#[derive(Debug)]
struct State {
    test: FreeTest,
    blocks: Vec<Block>,
    waiting: Vec<u32>, // for others to let go
}

/// A segment of which something is lent, or was.
#[derive(Debug)]
struct Block {
    segment: Arc<Segment>,
    handle: Option<IpcHandle>, // of a framework's allocation; none of a slab of Baton's
    free: Vec<Ref>,
    lent: HashMap<u32, Lent>,
}

/// What sessions that have ended had lent and others may use still: it stays to the end of the process.
static KEPT: Mutex<Vec<Lent>> = Mutex::new(Vec::new());

struct Lent {
    reference: Ref,
    keep: Keep,
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.reference.fmt(f)
    }
}

impl Lender {
    pub(super) fn new(inner: &Arc<Opening>) -> Lender {
        let test = FreeTest::new(inner.memory.files.chunks.clone(), inner.memory.files.entries.clone());
        Lender {
            state: Mutex::new(State { test, blocks: Vec::new(), waiting: Vec::new() }),
            dropped: Mutex::default(),
            chunks: Table::new(limits::CHUNKS),
            inner: Arc::downgrade(inner),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Notes that this session's count of an index of its own fell to zero; whether the lender is to be swept for it.
    /// Any thread.
    pub(super) fn dropped(&self, index: u32) -> bool {
        let own = self.chunks.get(index / limits::CHUNK_INDICES);
        let own = own.is_some_and(|own| own.load(Ordering::Acquire));
        if own {
            self.dropped.lock().unwrap_or_else(|p| p.into_inner()).push(index);
        }
        own
    }

    /// Releases what has no holder any more; whether there is more.
    pub(crate) fn sweep(&self) -> bool {
        self.inner.upgrade().is_some_and(|inner| {
            inner.withdraw_done(); // queues still name what was taken from them
            self.sweep_of(&inner)
        })
    }

    /// As `sweep`, by a session that lives.
    pub(crate) fn sweep_of(&self, inner: &Opening) -> bool {
        let mut over = Vec::new();
        let mut state = self.state();
        let news = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(|p| p.into_inner()));
        for index in news {
            if !state.waiting.contains(&index) && state.block_of(index).is_some() {
                state.waiting.push(index);
            }
        }
        for index in std::mem::take(&mut state.waiting) {
            if inner.memory.files.refcounts.count(index) != 0 {
                continue; // taken back from a message: its next drop tells
            }
            match state.test.recycle(&inner.access, index) {
                Some(next) => over.extend(state.end(index, next)),
                None => state.waiting.push(index),
            }
        }
        state.test.forget();
        state.blocks.retain(|b| {
            let over = b.lent.is_empty()
                && match b.handle {
                    Some(_) => inner.give_back(&b.segment),
                    None => b.is_gone(inner), // the pool gives it back
                };
            if over {
                b.free.iter().for_each(|r| self.of_chunk(r.index).store(false, Ordering::Release));
            }
            !over
        });
        let more = state.blocks.iter().any(|b| !b.lent.is_empty());
        drop(state); // a framework's deleter may drop tensors of this session's
        drop(over);
        more
    }

    fn of_chunk(&self, index: u32) -> &AtomicBool {
        self.chunks.at(index / limits::CHUNK_INDICES)
    }

    /// Ends with the session. What is held yet stays as it is to the end of the process: others may use it
    /// still.
    pub(crate) fn end(&self, inner: &Opening) {
        self.sweep_of(inner);
        let blocks = std::mem::take(&mut self.state().blocks);
        let kept = blocks.into_iter().flat_map(|b| b.lent.into_values());
        KEPT.lock().unwrap_or_else(|p| p.into_inner()).extend(kept);
    }

    /// Adds indices over a block's segment.
    fn add(&self, b: &mut Block, chunks: &[(u32, u64)], inner: &Opening) {
        for &(chunk, serial) in chunks {
            let first = chunk * limits::CHUNK_INDICES;
            self.of_chunk(first).store(true, Ordering::Release);
            for index in first..first + limits::CHUNK_INDICES {
                inner.memory.files.entries.set_generation(index, 1);
                b.free.push(Ref { serial, generation: 1, index });
            }
        }
    }

    /// Lends `n` > 0 bytes at an address of a GPU, in the segment where they are `rented`; their storage, counted, and
    /// where in it they begin. `keep` is dropped when they have no holder any more, or with an error.
    pub(super) fn lend(
        &self,
        inner: &Opening,
        gpu: &Gpu,
        rented: Option<Arc<Segment>>,
        (at, n): (u64, u64),
        keep: Keep,
    ) -> Result<(Storage, u64)> {
        self.sweep();
        let mut state = self.state();
        let b = match rented {
            Some(segment) => {
                let serial = segment.serial;
                state.block(|b| b.segment.serial == serial, || Ok(Block::new(segment, None)))?
            }
            None => {
                let a = gpu.device.allocation(at)?;
                state.block(|b| b.handle == Some(a.handle), || self.lend_block(inner, gpu, &a))?
            }
        };
        if b.free.is_empty() {
            let chunks = inner.more_chunks(&b.segment, 1)?;
            self.add(b, &chunks, inner);
        }
        let (off, _) = b.segment.offset_of(at as *const u8, n).ok_or_else(|| disagree("lent memory lies elsewhere"))?;
        let reference = b.free.pop().ok_or_else(|| disagree("a chunk without indices"))?;
        let within = off % ALIGNMENT;
        let s = Storage { reference, offset: off - within, bytes: n + within };
        inner.memory.files.entries.describe(reference.index, s.offset, s.bytes, sys::roughly_now());
        inner.count_up(reference.index).inspect_err(|_| b.free.push(reference))?;
        b.lent.insert(reference.index, Lent { reference, keep });
        Ok((s, within))
    }

    /// Makes an allocation of a framework's known to the broker.
    fn lend_block(&self, inner: &Opening, gpu: &Gpu, a: &Allocation) -> Result<Block> {
        let (_granting, before) = (inner.memory.granting(), inner.arriving());
        let fd = a.handle.to_file()?;
        let device = Some(&*gpu.name);
        let request = GrantRequest {
            bytes: a.bytes,
            chunks: 1,
            free: None,
            device,
            borrowed: true,
            page_bytes: None,
            fallback: false,
        };
        let (ok, _) = inner.call_fds::<_, GrantReply>("grant", &request)?;
        let give_back = |_: &_| {
            drop(inner.call::<_, Ignored>("return", &ReturnRequest { segment: ok.segment, serial: ok.segment_serial }))
        };
        let offer = OfferRequest { segment: ok.segment, serial: ok.segment_serial };
        inner.call_with::<_, Ignored>("offer", &offer, &[fd.as_fd()]).inspect_err(give_back)?;
        let slab = Slab::to_lend(gpu.device, ok.device_id, a, ok.bytes);
        let segment = Arc::new(Segment::on_device(ok.segment, ok.segment_serial, fd, slab));
        let chunks = inner.prepare(&segment, &ok.chunks).inspect_err(give_back)?;
        inner.know_new(&segment, before);
        let mut b = Block::new(segment, Some(a.handle));
        self.add(&mut b, &chunks, inner);
        Ok(b)
    }
}

impl Block {
    fn new(segment: Arc<Segment>, handle: Option<IpcHandle>) -> Block {
        Block { segment, handle, free: Vec::new(), lent: HashMap::new() }
    }

    /// Whether the broker has its segment back.
    fn is_gone(&self, inner: &Opening) -> bool {
        self.free.iter().any(|r| inner.memory.files.chunks.serial(r.index / limits::CHUNK_INDICES) != r.serial)
    }
}

impl State {
    fn block(&mut self, is: impl Fn(&Block) -> bool, make: impl FnOnce() -> Result<Block>) -> Result<&mut Block> {
        let at = match self.blocks.iter().position(is) {
            Some(at) => at,
            None => {
                self.blocks.push(make()?);
                self.blocks.len() - 1
            }
        };
        Ok(&mut self.blocks[at])
    }

    fn block_of(&mut self, index: u32) -> Option<&mut Block> {
        self.blocks.iter_mut().find(|b| b.lent.contains_key(&index))
    }

    /// Ends a storage that was found free; what kept its memory.
    fn end(&mut self, index: u32, generation: u64) -> Option<Keep> {
        let b = self.block_of(index)?;
        let Lent { reference, keep } = b.lent.remove(&index)?;
        b.free.push(Ref { generation, ..reference });
        Some(keep)
    }
}
