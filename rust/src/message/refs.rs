//! References to storages, and the storage that takes a description too long for its slot.

use crate::error::{Code, Error, Result};
use crate::layout::{GENERATION_MASK, SPILL_MAGIC, limits, reference, spill as rec};

/// Names one storage in a message. The serial is that of the chunk of indices, so that a storage of
/// an earlier owner of the same index is never mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ref {
    pub(crate) serial: u64,
    pub(crate) generation: u64,
    pub(crate) index: u32,
}

impl Ref {
    /// The wire form as words.
    pub(crate) fn words(self) -> [u64; 3] {
        [self.serial, self.generation, u64::from(self.index)]
    }

    /// What stands in words, unchecked.
    #[inline]
    pub(crate) fn of_words(w: [u64; 3]) -> Ref {
        // Half a word, and the zero after it: a number that `check` refuses is there otherwise.
        Ref { serial: w[0], generation: w[1], index: u32::try_from(w[2]).unwrap_or(u32::MAX) }
    }

    /// Refuses numbers that can name no storage.
    #[inline]
    pub(crate) fn check(self) -> Result<()> {
        if self.is_possible() { Ok(()) } else { Err(self.refused()) }
    }

    /// Whether its numbers can name a storage.
    #[inline(always)]
    pub(crate) fn is_possible(self) -> bool {
        self.index < limits::STORAGES && self.serial != 0 && self.generation <= GENERATION_MASK
    }

    #[cold]
    fn refused(self) -> Error {
        let Ref { index, serial, generation } = self;
        bad(format!("a storage of a message has index {index}, serial {serial}, generation {generation:#x}"))
    }
}

const _: () = assert!(reference::SIZE == 24 && reference::GENERATION == 8 && reference::INDEX == 16);

pub(super) fn bad(what: impl Into<String>) -> Error {
    Error::new(Code::Protocol, "the sender wrote what is not a Baton message: update or restart it", what)
}

pub(super) fn u32_at(b: &[u8], at: u64) -> u32 {
    let at = at as usize;
    b.get(at..at + 4).map_or(0, |s| u32::from_le_bytes(s.try_into().unwrap_or_default()))
}

pub(super) fn u64_at(b: &[u8], at: u64) -> u64 {
    let at = at as usize;
    b.get(at..at + 8).map_or(0, |s| u64::from_le_bytes(s.try_into().unwrap_or_default()))
}

/// What a spill storage holds in front of a body of so many bytes.
pub(crate) fn spill_front(refs: &[Ref], body: u32) -> Result<Vec<u64>> {
    if refs.len() > limits::REFS {
        return Err(Error::new(
            Code::InvalidArgument,
            "send fewer storages at once, or pack tensors into one",
            format!("a message of {} storages: at most {} fit", refs.len(), limits::REFS),
        ));
    }
    let mut out = Vec::with_capacity((rec::SIZE as usize + refs.len() * reference::SIZE as usize) / 8);
    out.extend([SPILL_MAGIC, refs.len() as u64 | u64::from(body) << 32]);
    refs.iter().for_each(|r| out.extend(r.words()));
    Ok(out)
}

const _: () = assert!(rec::MAGIC == 0 && rec::NREF == 8 && rec::BODY == 12 && rec::SIZE == 16);

/// The whole of it, for the tests.
#[cfg(test)]
pub(crate) fn spill(refs: &[Ref], body: &[u8]) -> Result<Vec<u8>> {
    let front = spill_front(refs, body.len() as u32)?;
    Ok(front.into_iter().flat_map(u64::to_le_bytes).chain(body.iter().copied()).collect())
}

/// Reads a private copy of a spill storage, of which the body remains. Bytes after the body are ignored: a storage may be
/// larger than what stands in it.
pub(crate) fn parse_spill(mut src: Vec<u8>) -> Result<(Vec<Ref>, Vec<u8>)> {
    let head = rec::SIZE as usize;
    if src.len() < head || u64_at(&src, rec::MAGIC) != SPILL_MAGIC {
        return Err(bad(format!("a spilled message of {} bytes does not begin as one", src.len())));
    }
    let (nref, body) = (u32_at(&src, rec::NREF) as usize, u32_at(&src, rec::BODY) as usize);
    let refs_end = head + nref.min(limits::REFS) * reference::SIZE as usize;
    if nref > limits::REFS || body > limits::BODY || src.len().checked_sub(refs_end).is_none_or(|rest| body > rest) {
        return Err(bad(format!(
            "a spilled message of {nref} storages and {body} bytes does not fit in its storage of {} bytes",
            src.len()
        )));
    }
    let refs = src[head..refs_end]
        .chunks_exact(reference::SIZE as usize)
        .map(|r| {
            let index = u64_at(r, reference::INDEX); // and the zero after it
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let r = Ref { serial: u64_at(r, reference::SERIAL), generation: u64_at(r, reference::GENERATION), index };
            r.check().map(|()| r)
        })
        .collect::<Result<Vec<Ref>>>()?;
    src.truncate(refs_end + body);
    src.drain(..refs_end);
    Ok((refs, src))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spill_reads_as_it_was_written() {
        let refs = [Ref { serial: 1, generation: 2, index: 3 }, Ref { serial: 4, generation: 5, index: 6 }];
        let mut bytes = spill(&refs, b"body").unwrap();
        bytes.extend([0xff; 9]);
        assert_eq!(parse_spill(bytes).unwrap(), (refs.to_vec(), b"body".to_vec()));
    }

    #[test]
    fn damaged_spills_are_refused() {
        let bytes = spill(&[Ref { serial: 1, generation: 2, index: 3 }], b"body").unwrap();
        for cut in 0..bytes.len() {
            assert!(parse_spill(bytes[..cut].to_vec()).is_err(), "{cut} bytes");
        }
        for at in [0, 8, 11, 15, 16 + 18, 16 + 22] {
            let mut b = bytes.clone();
            b[at] ^= 0xff;
            assert_eq!(parse_spill(b).unwrap_err().code(), Code::Protocol, "byte {at}");
        }
    }
}
