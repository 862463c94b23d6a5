//! Structures that may grow. The first member of each is its size as the program was compiled, so that an older
//! program's is shorter than this library's, and a newer one's is longer.
//!
//! A new member goes to the end, its zero means what was so before it, and there is no padding behind it: bytes
//! of padding would be read as the next member, and a compiler leaves anything in them.

use std::mem::MaybeUninit;

use crate::error::{Outcome, Refusal, refused, refused_for};
use crate::status::baton_status;

/// A larger size is no structure's: it is a pointer or noise, if a program left the size out.
const LARGEST: usize = 4096;

/// A structure whose first member is its size.
///
/// # Safety
/// It is `repr(C)`, begins with a `usize`, has no padding behind its last member, and all zero is one.
pub(crate) unsafe trait Grows: Copy {
    /// What it is called in C.
    const NAME: &str;
    /// The macro with which a program sets its size.
    const INIT: &str;
}

macro_rules! grows {
    ($($name:ident to $last:ident: $t:ty, $init:ident;)*) => { $(
        const _: () = {
            assert!(std::mem::offset_of!($name, size) == 0);
            assert!(std::mem::offset_of!($name, $last) + size_of::<$t>() == size_of::<$name>());
        };
        // SAFETY: checked above; its members are numbers and pointers.
        unsafe impl $crate::grown::Grows for $name {
            const NAME: &str = stringify!($name);
            const INIT: &str = stringify!($init);
        }
    )* };
}
pub(crate) use grows;

/// Checks a size that a program states.
pub(crate) fn checked(size: usize, least: usize, what: &str, init: &str) -> Outcome<usize> {
    if size < least || size > LARGEST || !size.is_multiple_of(align_of::<usize>()) {
        return refused_for(format!("{what} is {size}"), &format!("begin with {init}"));
    }
    Ok(size)
}

/// The size that a program's structure says it has.
///
/// # Safety
/// It is not null, and its first member can be read.
unsafe fn size<T: Grows>(of: *const T) -> Outcome<usize> {
    if !of.is_aligned() {
        return refused(format!("{} is at {of:p}, where none can be", T::NAME));
    }
    // SAFETY: as the caller says.
    let size = unsafe { of.cast::<usize>().read() };
    checked(size, size_of::<usize>(), &format!("the size of {}", T::NAME), T::INIT)
}

/// Copies `known` bytes of a program's structure of `size`; what it lacks stays zero. What this library does not
/// know has to be zero.
///
/// # Safety
/// `size` bytes can be read and `known` written.
pub(crate) unsafe fn copy(from: *const u8, size: usize, to: *mut u8, known: usize, what: &str) -> Outcome {
    // SAFETY: as the caller says.
    let behind = unsafe {
        std::ptr::copy_nonoverlapping(from, to, size.min(known));
        (known..size).find(|i| *from.add(*i) != 0)
    };
    match behind {
        None => Ok(()),
        Some(at) => Err(Refusal::Own(
            baton_status::BATON_UNSUPPORTED,
            format!(
                "byte {at} of {what} belongs to an option that libbaton {} does not know: update the library, or leave the option out",
                env!("CARGO_PKG_VERSION")
            ),
        )),
    }
}

/// A program's structure, as this library knows it; `None` for null.
///
/// # Safety
/// It is null, or has as many bytes as it says.
pub(crate) unsafe fn grown<T: Grows>(from: *const T) -> Outcome<Option<T>> {
    if from.is_null() {
        return Ok(None);
    }
    let mut to = MaybeUninit::<T>::zeroed();
    // SAFETY: as the caller says; all zero is a value, so what was not copied is one, too.
    unsafe {
        let size = size(from)?;
        copy(from.cast(), size, to.as_mut_ptr().cast(), size_of::<T>(), T::NAME)?;
        Ok(Some(to.assume_init()))
    }
}

/// Fills in a program's structure, as much as it has room for; members that this library does not know are zero.
/// Its size stays, and before the call all else is set to zero, so that a failure leaves that.
///
/// # Safety
/// It is null, or has as many bytes as it says.
pub(crate) unsafe fn give_grown<T: Grows>(out: *mut T, make: impl FnOnce() -> Outcome<T>) -> Outcome {
    if out.is_null() {
        return refused("the pointer to the result is NULL");
    }
    const FIRST: usize = size_of::<usize>();
    // SAFETY: as the caller says.
    unsafe {
        let size = size(out)?;
        let bytes = out.cast::<u8>();
        bytes.add(FIRST).write_bytes(0, size - FIRST);
        let made = make()?;
        let from = (&raw const made).cast::<u8>();
        std::ptr::copy_nonoverlapping(from.add(FIRST), bytes.add(FIRST), size.min(size_of::<T>()) - FIRST);
    }
    Ok(())
}

/// An element of an array, whose structure may grow.
///
/// # Safety
/// It is `repr(C)`, as large as its members, and all zero is one.
pub(crate) unsafe trait Element: Copy {
    /// Its size in the first version that had it: programs of that version have no more.
    const FIRST: usize;
}

/// The elements of an array whose structure may grow, as this library knows them: there are `count`, of `step` bytes each,
/// as the program was compiled.
///
/// # Safety
/// There are so many of that size.
pub(crate) unsafe fn each<T: Element>(
    first: *const T,
    count: usize,
    (step, whose, init): (usize, &str, &str),
    what: &'static str,
) -> Outcome<impl Iterator<Item = Outcome<T>>> {
    const WORD: usize = size_of::<usize>();
    let step = match count {
        0 => size_of::<T>(),
        _ => checked(step, T::FIRST, whose, init)?,
    };
    // SAFETY: as the caller says; the alignment is that of the words that are checked here.
    let words = unsafe { crate::array(first.cast::<usize>(), count.saturating_mul(step / WORD), what)? };
    Ok(words.chunks_exact(step / WORD).map(move |one| {
        let mut known = MaybeUninit::<T>::zeroed();
        // SAFETY: an element of `step` bytes, and a place for one as it is known here; all zero is one.
        unsafe {
            copy(one.as_ptr().cast(), step, known.as_mut_ptr().cast(), size_of::<T>(), what)?;
            Ok(known.assume_init())
        }
    }))
}

/// The structures of an array, each of which begins with its size, which is the same for all: where each of them is. It
/// stands in the program's memory, which the library writes as well.
///
/// # Safety
/// There are so many of that size.
pub(crate) unsafe fn each_own<T: Grows>(first: *mut T, count: usize, least: usize) -> Outcome<Vec<*mut T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if first.is_null() {
        return refused(format!("the array of {} is NULL", T::NAME));
    }
    // SAFETY: as the caller says; there is one at least.
    let step = checked(unsafe { size(first) }?, least, &format!("the size of {}", T::NAME), T::INIT)?;
    if count > isize::MAX as usize / step {
        return refused(format!("there are {count} of {}", T::NAME));
    }
    (0..count)
        .map(|i| {
            // SAFETY: as the caller says.
            let one = unsafe { first.byte_add(i * step) };
            // SAFETY: as the caller says.
            match unsafe { size(one) }? {
                n if n == step => Ok(one),
                n => refused_for(
                    format!("the size of {} is {n} at {i}, and {step} before", T::NAME),
                    &format!("begin each with {}", T::INIT),
                ),
            }
        })
        .collect()
}
