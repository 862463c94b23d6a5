//! Copying elements between layouts.

/// Where elements lie: an address and for each dimension its extent and stride in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Layout<'a> {
    /// The first element.
    pub(crate) data: *mut u8,
    /// Strides in bytes.
    pub(crate) strides: &'a [i64],
}

/// Copies `shape` elements of `item` bytes. Dimensions that are one run on both sides are copied as
/// one.
///
/// # Safety
/// Every element that shape and strides reach lies in memory that may be read, or written at the
/// destination. Where the two overlap, elements may be overwritten before they are copied.
pub(crate) unsafe fn copy(to: Layout<'_>, from: Layout<'_>, shape: &[i64], item: usize) {
    if shape.contains(&0) {
        return;
    }
    // (extent, stride to, stride from), outermost first, with runs merged into the innermost.
    let mut dims: Vec<(i64, i64, i64)> = Vec::with_capacity(shape.len());
    for ((n, t), f) in shape.iter().zip(to.strides).zip(from.strides) {
        if *n == 1 {
            continue;
        }
        match dims.last_mut() {
            Some((m, tt, ff)) if *tt == t.wrapping_mul(*n) && *ff == f.wrapping_mul(*n) => {
                (*m, *tt, *ff) = (*m * *n, *t, *f);
            }
            _ => dims.push((*n, *t, *f)),
        }
    }
    let mut run = item;
    if let Some((n, t, f)) = dims.last().copied()
        && t == item as i64
        && f == item as i64
    {
        run = item * n as usize;
        dims.pop();
    }
    // SAFETY: as the caller says; the merged dimensions reach the same elements.
    unsafe { walk(to.data, from.data, &dims, run) }
}

/// # Safety
/// As in `copy`, for runs of `run` bytes.
unsafe fn walk(to: *mut u8, from: *const u8, dims: &[(i64, i64, i64)], run: usize) {
    let Some(((n, t, f), inner)) = dims.split_first() else {
        // SAFETY: one run of the caller's.
        return unsafe { std::ptr::copy(from, to, run) };
    };
    for i in 0..*n {
        let (to, from) = (to.wrapping_offset((i * t) as isize), from.wrapping_offset((i * f) as isize));
        // SAFETY: an index within the extent, so within what the caller says.
        unsafe {
            match (inner.is_empty(), run) {
                (true, 4) => std::ptr::copy(from, to, 4),
                (true, 8) => std::ptr::copy(from, to, 8),
                _ => walk(to, from, inner, run),
            }
        }
    }
}

/// Strides in bytes of a compact row-major layout.
pub(crate) fn compact(shape: &[i64], item: usize) -> Vec<i64> {
    let mut step = item as i64;
    let mut out = vec![0; shape.len()];
    for (s, n) in out.iter_mut().zip(shape).rev() {
        *s = step;
        step = step.wrapping_mul((*n).max(1));
    }
    out
}

/// An address that may go to another thread: whoever makes it answers for what it points to.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: an address is a number; uses of it are unsafe on their own.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// The address; a method, so that closures take the whole.
    pub(crate) fn get(self) -> *mut u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(shape: &[i64], to: &[i64], from: &[i64], n: usize) -> Vec<u16> {
        let mut source: Vec<u16> = (0..n as u16).collect();
        let mut out = vec![0u16; n];
        let to = Layout { data: out.as_mut_ptr().cast(), strides: to };
        let from = Layout { data: source.as_mut_ptr().cast(), strides: from };
        // SAFETY: the layouts of the tests lie within n elements.
        unsafe { copy(to, from, shape, 2) };
        out
    }

    #[test]
    fn layouts_are_followed() {
        assert_eq!(copied(&[6], &[2], &[2], 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(copied(&[2, 3], &[6, 2], &[2, 4], 6), [0, 2, 4, 1, 3, 5]);
        assert_eq!(copied(&[2, 1, 3], &[6, 99, 2], &[6, 7, 2], 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(copied(&[], &[], &[], 1), [0]);
        assert_eq!(copied(&[0, 3], &[6, 2], &[6, 2], 3), [0, 0, 0]);
        assert_eq!(copied(&[3], &[2], &[0], 3), [0, 0, 0]);
    }
}
