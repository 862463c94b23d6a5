//! What threads and processes share, so that loom can take its place in the models.

#[cfg(baton_loom)]
#[path = "sync_loom.rs"]
mod loomed;

#[cfg(not(baton_loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(baton_loom))]
pub(crate) use crate::sys::{futex_wait, futex_wait_any, futex_wake_one};

#[cfg(baton_loom)]
pub(crate) use loomed::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, Sc, fence,
    full_fence, futex_wait, futex_wait_any, futex_wake, futex_wake_one, sequential,
};

/// Loads words of pages that this process may have mapped read-only.
pub(crate) trait Load {
    type Value;

    /// Loads in an order, by nothing that such a page refuses.
    #[cfg_attr(baton_loom, track_caller)]
    fn load_page(&self, order: Ordering) -> Self::Value;
}

/// Orders every access before it with every access after it.
#[cfg(not(baton_loom))]
#[inline(always)]
pub(crate) fn full_fence() {
    // A locked instruction on this thread's own stack is a full fence, and cheaper than MFENCE.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes nothing but the flags. Without `nomem` the compiler moves no access over it.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack))
    }
    #[cfg(not(target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
}

#[cfg(not(baton_loom))]
macro_rules! load_page {
    ($atomic:ty, $value:ty, $amd64:literal, $arm64:literal) => {
        impl Load for $atomic {
            type Value = $value;

            #[inline(always)]
            fn load_page(&self, order: Ordering) -> $value {
                // Of memory that is mapped read-only the standard library promises relaxed loads alone, of at most a
                // machine word ("Atomic accesses to read-only memory"). An acquire fence after one makes it an
                // acquire load: no instruction on amd64. arm64 has a load that is both, and amd64's plain load is
                // sequentially consistent where all stores that it is to be ordered with are locked instructions.
                match order {
                    Ordering::Relaxed => self.load(Ordering::Relaxed),
                    #[cfg(target_arch = "x86_64")]
                    Ordering::SeqCst => {
                        let value: $value;
                        // SAFETY: it reads the word alone, which self borrows. Without `nomem` the compiler moves no
                        // access over it.
                        unsafe {
                            std::arch::asm!($amd64, out(reg) value, in(reg) self.as_ptr(),
                                options(nostack, preserves_flags))
                        }
                        value
                    }
                    #[cfg(target_arch = "aarch64")]
                    Ordering::Acquire | Ordering::SeqCst => {
                        let value: $value;
                        // SAFETY: as above; the word is aligned.
                        unsafe {
                            std::arch::asm!($arm64, out(reg) value, in(reg) self.as_ptr(),
                                options(nostack, preserves_flags))
                        }
                        value
                    }
                    _ => {
                        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
                        if order == Ordering::SeqCst {
                            fence(Ordering::SeqCst);
                        }
                        let value = self.load(Ordering::Relaxed);
                        fence(Ordering::Acquire);
                        value
                    }
                }
            }
        }
    };
}

#[cfg(not(baton_loom))]
load_page!(AtomicU64, u64, "mov {}, qword ptr [{}]", "ldar {}, [{}]");
#[cfg(not(baton_loom))]
load_page!(AtomicU32, u32, "mov {:e}, dword ptr [{}]", "ldar {:w}, [{}]");

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Runs of the litmus test below: without what orders them, one in ten goes wrong on amd64.
    const RUNS: u64 = 20_000;

    /// Store buffering: two threads write a word each, then look for the other's. One of them must see the other, in
    /// every run. `write` takes the word and the number of the run, and orders it with the load that follows.
    fn one_sees_the_other(write: fn(&AtomicU64, u64)) {
        #[repr(align(128))]
        #[derive(Default)]
        struct Word(AtomicU64);
        let shared: Arc<[Word; 4]> = Arc::default(); // the two words, and how far each thread is
        let run = move |me: usize, shared: Arc<[Word; 4]>| {
            let seen = |n: u64| {
                let ([own, other], [at, gate]) = ([&shared[me], &shared[1 - me]], [&shared[2 + me], &shared[3 - me]]);
                at.0.store(n, Ordering::Relaxed);
                let mut spins = 0;
                while gate.0.load(Ordering::Acquire) < n {
                    spins += 1;
                    if spins % 1000 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
                write(&own.0, n);
                other.0.load_page(Ordering::SeqCst) >= n
            };
            (1..=RUNS).map(seen).collect::<Vec<bool>>()
        };
        let other = shared.clone();
        let second = std::thread::spawn(move || run(1, other));
        let first = run(0, shared);
        let second = second.join().unwrap();
        let neither = first.iter().zip(second).filter(|(a, b)| !**a && !b).count();
        assert_eq!(neither, 0, "of {RUNS} runs");
    }

    #[test]
    fn what_a_full_fence_orders_the_processor_orders() {
        one_sees_the_other(|word, n| {
            word.store(n, Ordering::Release);
            full_fence();
        });
    }

    #[test]
    fn a_locked_addition_and_a_load_are_in_one_order() {
        one_sees_the_other(|word, _| {
            word.fetch_add(1, Ordering::SeqCst);
        });
    }

    #[test]
    fn loads_of_every_order_give_the_word() {
        let (word, half) = (AtomicU64::new(u64::MAX - 1), AtomicU32::new(u32::MAX - 1));
        for order in [Ordering::Relaxed, Ordering::Acquire, Ordering::SeqCst] {
            assert_eq!((word.load_page(order), half.load_page(order)), (u64::MAX - 1, u32::MAX - 1));
        }
    }
}
