//! Whether something still lives that came of a fork.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::Mapping;
use crate::error::{Code, Error, Result, os};

/// Forks whose children did not count have a file of their own up to this many; those beyond share the last one.
const MOST: usize = 8;

/// A memfd that is mapped for writing while a process forks, so that the child has that mapping too. The kernel
/// refuses to seal the file against writes while it is mapped anywhere. The parent takes its own mapping away
/// after the fork, and so sees whether the child, or what that forked, is still there and has not taken its own
/// away. Exec and death take it away; closed descriptors do not, by which a pipe would be misled.
#[derive(Debug)]
pub(crate) struct ForkMark(OwnedFd);

impl ForkMark {
    fn new() -> Result<ForkMark> {
        let failed = |e| os(Code::TooMany, "raise the limit of open files", "make a memfd", e);
        let file = memfd_create("baton-fork", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        ftruncate(&file, rustix::param::page_size() as u64).map_err(failed)?;
        Ok(ForkMark(file))
    }

    /// Fails also where the file was sealed.
    fn map(&self) -> Result<Mapping> {
        let map = Mapping::shared(&self.0, rustix::param::page_size(), true);
        map.map_err(|e| {
            Error::new(e.code(), "free memory of this machine, or raise the container's limit", e.message())
        })
    }

    /// Whether it is mapped nowhere. It stays so.
    pub(crate) fn is_gone(&self) -> bool {
        fcntl_add_seals(&self.0, SealFlags::WRITE).is_ok()
    }
}

/// A mark while a process forks.
#[derive(Debug)]
pub(crate) struct Laid {
    pub(crate) mark: Arc<ForkMark>,
    map: Mapping,
}

impl Laid {
    /// In a child: leaves the mapping for as long as this program runs, and in those that it forks.
    pub(crate) fn stay(self) {
        std::mem::forget(self.map);
    }
}

/// The marks of one process.
#[derive(Debug, Default)]
pub(crate) struct ForkMarks {
    /// For the next fork.
    spare: Option<Arc<ForkMark>>,
    /// Those by which something is still kept.
    used: Vec<Weak<ForkMark>>,
}

impl ForkMarks {
    /// Makes one ready, so that a fork does not lack the descriptor.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        self.used.retain(|t| t.strong_count() > 0);
        if self.spare.is_none() && self.used.len() < MOST {
            self.spare = Some(Arc::new(ForkMark::new()?));
        }
        Ok(())
    }

    /// Maps one for a child. Where there can be none of its own it is one that another child has.
    pub(crate) fn lay(&mut self) -> Option<Laid> {
        let _ = self.prepare();
        let used = self.used.iter().rev().filter_map(Weak::upgrade);
        let mut all = self.spare.iter().cloned().chain(used);
        all.find_map(|mark| mark.map().ok().map(|map| Laid { mark, map }))
    }

    /// Something is kept by this one from here on.
    pub(crate) fn keep_by(&mut self, mark: &Arc<ForkMark>) {
        self.spare
            .take_if(|spare| Arc::ptr_eq(spare, mark))
            .into_iter()
            .for_each(|t| self.used.push(Arc::downgrade(&t)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_gone_with_its_last_mapping() {
        let mut marks = ForkMarks::default();
        let Laid { mark, map } = marks.lay().unwrap();
        let of_child = mark.map().unwrap();
        assert!(!mark.is_gone());
        drop(map);
        assert!(!mark.is_gone());
        drop(of_child);
        assert!(mark.is_gone() && mark.is_gone());
        assert!(mark.map().is_err());
    }

    #[test]
    fn a_mark_is_used_again_while_nothing_is_kept_by_it() {
        let mut marks = ForkMarks::default();
        let first = marks.lay().unwrap();
        let again = marks.lay().unwrap();
        assert!(Arc::ptr_eq(&first.mark, &again.mark));
        marks.keep_by(&again.mark);
        assert!(!Arc::ptr_eq(&first.mark, &marks.lay().unwrap().mark));
    }

    #[test]
    fn there_is_a_bound_beyond_which_children_share_the_last() {
        let mut marks = ForkMarks::default();
        let mut lay = || {
            let laid = marks.lay().unwrap();
            marks.keep_by(&laid.mark);
            laid
        };
        let mut kept: Vec<_> = (0..MOST).map(|_| lay()).collect();
        let (last, beyond) = (kept.pop().unwrap(), lay());
        assert!(kept.iter().all(|k| !Arc::ptr_eq(&k.mark, &last.mark)) && Arc::ptr_eq(&beyond.mark, &last.mark));
        drop(last);
        assert!(!beyond.mark.is_gone(), "the other child has it");
        drop(kept.pop());
        assert!(!Arc::ptr_eq(&lay().mark, &beyond.mark), "there is room for one again");
    }
}
