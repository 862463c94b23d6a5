//! Lets a test kill a process between two instructions of the protocol.
//!
//! Code that changes what other processes see calls [`at`] with a name at each step; the names, and
//! what has happened there, are those of `internal/crashpoint`, in Go. Built with
//! `--cfg baton_crash_points`, a process whose environment says `BATON_CRASH_AT=name` (or `name:n`, the n-th
//! time) kills itself there with SIGKILL; without it `at` is empty.

/// Marks a step of the protocol.
#[cfg(not(baton_crash_points))]
#[inline(always)]
pub(crate) fn at(_: &str) {}

/// Kills the process when its environment asks for it at this step.
#[cfg(baton_crash_points)]
pub(crate) fn at(name: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: LazyLock<(String, AtomicU64)> = LazyLock::new(|| {
        let asked = std::env::var("BATON_CRASH_AT").unwrap_or_default();
        let (name, times) = asked.split_once(':').unwrap_or((&asked, "1"));
        (name.to_owned(), AtomicU64::new(times.parse().unwrap_or(1)))
    });
    if ARMED.0 == name && ARMED.1.fetch_sub(1, Ordering::Relaxed) == 1 {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        std::process::abort(); // a process that has killed itself does not come here
    }
}
