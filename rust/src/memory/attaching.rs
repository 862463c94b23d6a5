//! How a session becomes attached to a chunk: it asks the broker, once for each.
//!
//! A reader that meets many senders meets them at once. So with one request it asks for the chunk that it needs, for
//! those of which messages of other senders wait, and for the files of their memory.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use super::Access;
use super::arriving::Arriving;
use super::attach::Attachment;
use super::file_key::FileKey;
use crate::crash_point;
use crate::error::{Code, Error, Result, disagree, expired};
use crate::layout::{broker_file, limits, segment_record};
use crate::ledger::Chunk;
use crate::link::Broker;
use crate::message::Ref;
use crate::wire::ops::{AttachAnswer, AttachChunk, AttachReply, AttachRequest};

const GONE: &str = "its memory has been given back";

/// What one request asks for.
struct Ahead<'a> {
    inner: &'a Access,
    chunks: Vec<AttachChunk>,
    /// Whose files are asked for.
    segments: BTreeSet<u64>,
}

impl Ahead<'_> {
    fn is_full(&self) -> bool {
        self.chunks.len() == limits::PEERS
    }

    fn add(&mut self, chunk: u32, of: &Chunk) {
        let known = self.inner.memory.known_segment(of.segment_serial).is_some_and(|s| s.has(false));
        let file = !known && self.segments.insert(of.segment_serial);
        self.chunks.push(AttachChunk { chunk, serial: of.serial, file });
    }

    /// Adds the chunk of a ref that was not checked, unless the session is attached to it, or it lies on a device.
    fn consider(&mut self, r: Ref) {
        let chunk = r.index / limits::CHUNK_INDICES;
        if r.serial == 0 || chunk >= limits::CHUNKS || self.inner.memory.attached.has(chunk, r.serial) {
            return;
        }
        if self.chunks.iter().any(|asked| asked.chunk == chunk) {
            return;
        }
        let listed = self.inner.memory.files.chunks.load(chunk).filter(|c| c.serial == r.serial);
        if let Some(of) = listed.filter(|c| !self.inner.is_on_device(c.segment)) {
            self.add(chunk, &of);
        }
    }
}

impl Access {
    /// Attaches the session to the chunk that a ref names.
    #[cold]
    pub(crate) fn attach(&self, chunk: u32, reference: Ref) -> Result<()> {
        let serial = reference.serial;
        if chunk >= limits::CHUNKS || serial == 0 {
            let what = format!("no storage index {} of grant {serial}", reference.index);
            return Err(Error::new(Code::InvalidHandle, "use the handle as it was made", what));
        }
        let expected = self.expected.as_ref().map_or_else(Vec::new, |e| e.refs());
        let one = self.turn(&self.memory.attaching)?;
        if self.memory.attached.has(chunk, serial) {
            return Ok(());
        }
        let of = self.memory.files.chunks.load(chunk).filter(|c| c.serial == serial).ok_or_else(|| expired(GONE))?;
        let mut ahead = Ahead { inner: self, chunks: Vec::new(), segments: BTreeSet::new() };
        ahead.add(chunk, &of);
        ahead.chunks[0].file &= !self.is_on_device(of.segment);
        for r in expected {
            if !ahead.is_full() {
                ahead.consider(r);
            }
        }
        let asked = self.ask_attach(&ahead.chunks);
        let asked = match asked {
            // There may be room for one file.
            Err(e) if e.code() == Code::TooMany && ahead.chunks.len() > 1 => self.ask_attach(&ahead.chunks[..1]),
            other => other,
        };
        drop(one);
        asked
    }

    /// Whether a segment lies on a device, by the broker's page.
    fn is_on_device(&self, segment: u32) -> bool {
        const CPU: u32 = 1; // DLPack's kDLCPU
        let at = broker_file::segment(segment) + segment_record::DEVICE_TYPE;
        segment < limits::SEGMENTS && self.memory.files.broker.load32(at) != CPU
    }

    /// Attaches the session to chunks. It fails if the first cannot be attached; the others come along if they can.
    fn ask_attach(&self, asked: &[AttachChunk]) -> Result<()> {
        let reserved = |(k, a): (usize, &AttachChunk)| match self.memory.files.reserve_refcounts(a.chunk) {
            Ok(()) => Some(Ok(*a)),
            Err(e) if k == 0 => Some(Err(e)),
            Err(_) => None, // it is asked for again where it is needed
        };
        let asked: &[AttachChunk] = &asked.iter().enumerate().filter_map(reserved).collect::<Result<Vec<_>>>()?;
        let before = self.arriving();
        let reply = self.call_fds::<_, AttachReply>("attach", &AttachRequest { chunks: asked });
        let files = || {
            let segment = |a: &AttachChunk| self.memory.files.chunks.load(a.chunk).map(|c| c.segment_serial);
            asked.iter().filter(|a| a.file).filter_map(segment).map(FileKey::Segment)
        };
        let (ok, fds) = reply.inspect_err(|e| self.lacks(e, files()))?;
        crash_point::at("attach-asked");
        let with = ok.chunks.iter().filter(|r| r.bytes != 0).count();
        if ok.chunks.len() != asked.len() || with != fds.len() {
            let (n, answers) = (fds.len(), ok.chunks.len());
            return Err(disagree(format!(
                "attach answered {answers} chunks, not {}, with {n} descriptors",
                asked.len()
            )));
        }
        let mut fds = fds.into_iter();
        for (k, r) in ok.chunks.iter().enumerate().filter(|(_, r)| r.bytes != 0) {
            let fd = fds.next().ok_or_else(|| disagree("attach came with too few descriptors"))?;
            let kept = self.keep_segment(r, fd, before);
            if k == 0 {
                kept?;
            } // else as above
        }
        let listed: Vec<Option<Chunk>> =
            asked.iter().map(|a| self.memory.files.chunks.load(a.chunk).filter(|c| c.serial == a.serial)).collect();
        let owners: BTreeMap<u64, u32> = listed.iter().flatten().map(|c| (c.owner_serial, c.owner)).collect();
        let owners = self.peers(Broker::Any, owners)?;
        for (k, (a, r)) in asked.iter().zip(ok.chunks).enumerate() {
            let made = match (r.error, &listed[k]) {
                (Some(e), _) => Err(e.into()),
                (None, None) => Err(expired(GONE)),
                (None, Some(of)) => match owners.get(&of.owner_serial) {
                    Some(Ok(owner)) => self.segment(of.segment, of.segment_serial, false).and_then(|segment| {
                        segment.note_chunk(a.chunk);
                        let own = of.owner_serial == self.memory.files.serial;
                        Attachment::new(*of, owner, segment, own)
                    }),
                    Some(Err(e)) => Err(e.clone()),
                    None => Err(disagree("a chunk without an owner")),
                },
            };
            match made {
                Ok(made) => {
                    crash_point::at("attach-mapped");
                    self.memory.attached.put(a.chunk, Some(made), &self.memory.files.refcounts);
                }
                Err(e) if k == 0 => return Err(e),
                Err(_) => {} // as above
            }
        }
        Ok(())
    }

    fn keep_segment(&self, r: &AttachAnswer, fd: OwnedFd, before: Arriving) -> Result<()> {
        self.memory.map_given(r.segment, r.segment_serial, r.bytes, &fd, false)?;
        if r.custody {
            self.keep_new(FileKey::Segment(r.segment_serial), fd, before);
        }
        Ok(())
    }
}
