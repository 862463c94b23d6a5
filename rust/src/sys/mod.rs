//! The one place that makes system calls: mappings, futexes, sockets that pass descriptors, locks,
//! clocks and the limits of memory.
//!
//! Ownership: a [`Mapping`] owns its address range, an `OwnedFd` its descriptor. Concurrency: all is
//! safe from any thread. Hostile peers: received descriptors are CLOEXEC; what a mapping holds may
//! change at any time. Death: a descriptor or mapping ends with its process.

mod alive;
mod checked_fd;
mod counter;
mod file;
mod fork;
mod fork_mark;
mod futex;
mod loaded;
mod map;
mod memory;
mod own_threads;
mod per_process;
mod process;
mod runtime;
mod socket;

use rustix::rand::GetRandomFlags;

use crate::error::{Code, Result, os};

pub(crate) use alive::{Lent, alive, lend};
pub(crate) use checked_fd::CheckedFd;
pub(crate) use counter::{counter, counter_behind, counter_is_clock};
pub(crate) use file::{
    in_huge_pages, open_append, open_at_once, punch, read_at, reserve, sealed, sealed_bytes, size_of,
};
pub(crate) use fork::{at_fork, hear, pipe, say};
pub(crate) use fork_mark::{ForkMark, ForkMarks, Laid};
pub(crate) use futex::{futex_wait, futex_wait_any, futex_wake, futex_wake_one};
pub(crate) use loaded::stay_loaded;
pub(crate) use map::Mapping;
pub(crate) use memory::free_memory;
pub use own_threads::OwnThread;
pub(crate) use own_threads::{LastLook, look_at_its_end, own_thread, started};
pub(crate) use per_process::PerProcess;
#[cfg(test)]
pub(crate) use process::start_time;
pub(crate) use process::{
    boot_id, has_ended, is_process, is_suspended, most_open_files, opens_file, pid_namespace, process_number,
    several_processors,
};
pub(crate) use runtime::{Lock, check_private_dir, detach, reap_later};
pub(crate) use socket::{Waker, connect, is_no_descriptors, readable_by, receive, send_some, wait_ready};

/// The same clock as `monotonic` as of its last tick, some milliseconds ago at most: for ages.
pub(crate) fn roughly_now() -> u64 {
    nanoseconds(rustix::time::ClockId::MonotonicCoarse)
}

/// The processor on which the calling thread runs, which may be another one by the time that it is looked at.
pub(crate) fn processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// Lets other threads run that wait for the processor of this one.
pub(crate) fn let_others_run() {
    rustix::thread::sched_yield();
}

/// CLOCK_MONOTONIC in nanoseconds: one clock for all processes of the machine.
pub(crate) fn monotonic() -> u64 {
    nanoseconds(rustix::time::ClockId::Monotonic)
}

/// A number that cannot be guessed.
pub(crate) fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    // So few come at once.
    let got = rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()));
    got.map_err(|e| os(Code::Unsupported, "allow the program getrandom", "get a random number", e))?;
    Ok(u64::from_le_bytes(bytes))
}

fn nanoseconds(clock: rustix::time::ClockId) -> u64 {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
