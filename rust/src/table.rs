//! Tables by number, as long as the layout allows, of which a small process uses few places.

use std::sync::OnceLock;

/// Places that are made together.
const BLOCK: usize = 128;

/// A table of values that begin as their default. A block of them has memory from the first use of one on;
/// for that a look costs one load more than in a slice.
#[derive(Debug)]
pub(crate) struct Table<T>(Box<[Block<T>]>);

type Block<T> = OnceLock<Box<[T; BLOCK]>>;

#[cold]
fn made<T: Default>() -> Box<[T; BLOCK]> {
    Box::new(std::array::from_fn(|_| T::default()))
}

impl<T: Default> Table<T> {
    /// A table for the numbers below `len`.
    pub(crate) fn new(len: u32) -> Table<T> {
        Table((0..(len as usize).div_ceil(BLOCK)).map(|_| OnceLock::new()).collect())
    }

    /// The value of a number; `None` where it has no memory yet, or lies outside.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let i = number as usize;
        Some(&self.0.get(i / BLOCK)?.get()?[i % BLOCK])
    }

    /// As `get`.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let i = number as usize;
        Some(&mut self.0.get_mut(i / BLOCK)?.get_mut()?[i % BLOCK])
    }

    /// The value of a number, which lies inside.
    pub(crate) fn at(&self, number: u32) -> &T {
        let i = number as usize;
        &self.0[i / BLOCK].get_or_init(made)[i % BLOCK]
    }

    /// As `at`.
    #[inline]
    pub(crate) fn at_mut(&mut self, number: u32) -> &mut T {
        let i = number as usize;
        let block = &mut self.0[i / BLOCK];
        if block.get().is_none() {
            let _ = block.set(made());
        }
        &mut block.get_mut().expect("it was just made")[i % BLOCK]
    }

    /// The values that have memory, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let made = self.0.iter().enumerate().filter_map(|(b, block)| Some((b, block.get()?)));
        made.flat_map(|(b, block)| block.iter().enumerate().map(move |(i, v)| ((b * BLOCK + i) as u32, v)))
    }

    /// The values that have memory.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().filter_map(|block| block.get_mut()).flat_map(|block| block.iter_mut())
    }

    /// Makes all values their default.
    pub(crate) fn clear(&mut self) {
        self.0.iter_mut().for_each(|block| drop(block.take()));
    }
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_set_has_its_default_or_no_memory() {
        let mut t = Table::<u64>::new(1000);
        assert_eq!((t.get(999), t.get(5000), t.iter().count()), (None, None, 0));
        *t.at_mut(999) = 7;
        assert_eq!((*t.at(999), t.get(998), t.get(0)), (7, Some(&0), None));
        assert_eq!(t.iter().find(|(_, v)| **v == 7), Some((999, &7)));
        t.values_mut().for_each(|v| *v += 1);
        assert_eq!((t.get(999), t.get(998)), (Some(&8), Some(&1)));
        t.clear();
        assert_eq!(t.get(999), None);
    }
}
