//! The counter of the processor: a time without a unit, which is read sooner than a clock.

use std::fs;

/// Whether the kernel makes its clocks of the counter: then it is the same on all processors, and goes evenly.
pub(crate) fn counter_is_clock() -> bool {
    const NAME: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64") && fs::read_to_string(NAME).is_ok_and(|name| name.trim() == "tsc")
}

/// The counter at about this moment. The processor may read it before what the program did last is done, and waits
/// for nothing.
#[inline(always)]
pub(crate) fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has the instruction.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// The counter once all that the program did before is done.
pub(crate) fn counter_behind() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    counter()
}
