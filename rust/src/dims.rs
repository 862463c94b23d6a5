//! Shapes and strides without an allocation in the usual case.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

const INLINE: usize = 4;

/// Extents or strides: up to four stand inline.
///
/// ```
/// let shape = baton::Dims::from_fn(3, |i| i as i64 + 2);
/// assert_eq!(*shape, [2, 3, 4]);
/// assert!(baton::Dims::SCALAR.is_empty());
/// ```
#[derive(Clone)]
pub struct Dims(Repr);

#[derive(Clone)]
enum Repr {
    Inline(u8, [i64; INLINE]),
    Heap(Box<[i64]>),
}

impl Dims {
    /// No dimensions: a scalar's shape.
    pub const SCALAR: Dims = Dims(Repr::Inline(0, [0; INLINE]));
}

impl Default for Dims {
    fn default() -> Dims {
        Dims::SCALAR
    }
}

impl Dims {
    /// `n` dimensions, each from its position.
    #[inline(always)]
    pub fn from_fn(n: usize, mut each: impl FnMut(usize) -> i64) -> Dims {
        if n > INLINE {
            return Dims(Repr::Heap((0..n).map(each).collect()));
        }
        // One by one: they stay in registers until they have their place.
        let mut at = |i| if i < n { each(i) } else { 0 };
        Dims(Repr::Inline(n as u8, [at(0), at(1), at(2), at(3)]))
    }
}

impl Dims {
    /// Whether it has no memory of its own, so that it need not be dropped.
    #[inline(always)]
    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.0, Repr::Inline(..))
    }
}

impl Deref for Dims {
    type Target = [i64];

    #[inline]
    fn deref(&self) -> &[i64] {
        match &self.0 {
            Repr::Inline(n, d) => &d[..usize::from(*n)],
            Repr::Heap(d) => d,
        }
    }
}

impl From<&[i64]> for Dims {
    #[inline]
    fn from(from: &[i64]) -> Dims {
        Dims::from_fn(from.len(), |i| from[i])
    }
}

impl FromIterator<i64> for Dims {
    fn from_iter<I: IntoIterator<Item = i64>>(iter: I) -> Dims {
        let (mut d, mut n) = ([0; INLINE], 0);
        let mut iter = iter.into_iter();
        while let Some(v) = iter.next() {
            if n == INLINE {
                let mut all = d.to_vec();
                all.push(v);
                all.extend(iter);
                return Dims(Repr::Heap(all.into()));
            }
            d[n] = v;
            n += 1;
        }
        Dims(Repr::Inline(n as u8, d))
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl PartialEq for Dims {
    fn eq(&self, other: &Dims) -> bool {
        **self == **other
    }
}

impl Eq for Dims {}

impl Hash for Dims {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_dimensions_reads_back() {
        for n in 0..20i64 {
            let all: Vec<i64> = (0..n).collect();
            assert_eq!(*Dims::from(&all[..]), all[..]);
            assert_eq!(*all.iter().copied().collect::<Dims>(), all[..]);
        }
    }
}
