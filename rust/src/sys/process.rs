//! Which process this is. A fork copies all that is known of it but for one page, which the kernel
//! empties in the child, however it was forked.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::Advice;

use super::Mapping;
use crate::error::Result;

/// The number of this process among those that it was forked from, 0 in a child that has not asked.
static PAGE: OnceLock<Mapping> = OnceLock::new();
/// Copied by a fork, so that no child has its parent's number.
static LAST: AtomicU32 = AtomicU32::new(0);

fn word(page: &Mapping) -> &AtomicU32 {
    // SAFETY: the page is never unmapped, and nobody has another view of it.
    unsafe { AtomicU32::from_ptr(page.base().as_ptr().cast()) }
}

/// The number of this process, never 0.
pub(crate) fn process_number() -> Result<u32> {
    let page = match PAGE.get() {
        Some(page) => page,
        None => {
            let made = Mapping::anonymous(rustix::param::page_size())?;
            made.advise(Advice::LinuxWipeOnFork, "have a page emptied in children")?;
            PAGE.get_or_init(|| made)
        }
    };
    if word(page).load(Ordering::Relaxed) == 0 {
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // Another thread may be faster.
        let _ = word(page).compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    }
    Ok(word(page).load(Ordering::Relaxed))
}

/// Whether this process has a number, and not a child of it.
#[inline]
pub(crate) fn is_process(number: u32) -> bool {
    PAGE.get().is_some_and(|page| word(page).load(Ordering::Relaxed) == number)
}
