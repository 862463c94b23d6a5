//! Which process this is. A fork copies all that is known of it but for one page, which the kernel
//! empties in the child, however it was forked.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use super::{Mapping, readable_by};
use crate::error::Result;

/// The number of this process among those that it was forked from, 0 in a child that has not asked.
static PAGE: OnceLock<Mapping> = OnceLock::new();
/// Copied by a fork, so that no child has its parent's number.
static LAST: AtomicU32 = AtomicU32::new(0);

fn word(page: &Mapping) -> &AtomicU32 {
    // SAFETY: the page is never unmapped, and there is no other view of it.
    unsafe { AtomicU32::from_ptr(page.base().as_ptr().cast()) }
}

/// How many descriptors this process may have open.
pub(crate) fn most_open_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
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

/// Whether the machine, or the container as far as its control group says, has more than one
/// processor. What this process is confined to does not count: its peers may run on the others.
pub(crate) fn several_processors() -> bool {
    ["/sys/fs/cgroup/cpuset.cpus.effective", "/sys/devices/system/cpu/online"]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok().filter(|list| !list.trim().is_empty()))
        .is_some_and(|list| several(&list))
}

/// Whether a list such as "0-3,8" names more than one.
fn several(list: &str) -> bool {
    list.contains([',', '-'])
}

/// Whether this process has a number, and not a child of it.
#[inline]
pub(crate) fn is_process(number: u32) -> bool {
    PAGE.get().is_some_and(|page| word(page).load(Ordering::Relaxed) == number)
}

/// Which start of the machine this is.
pub(crate) fn boot_id() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

/// Which processes this one sees, by the inode of its namespace.
pub(crate) fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// What stands behind the name of a process in its `stat`: its state first, its threads at 17, the start at 19.
fn stat(pid: impl fmt::Display) -> Option<String> {
    // The name may be any bytes.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    Some(String::from_utf8_lossy(&stat).rsplit_once(')')?.1.to_owned())
}

/// How many threads this process has, and whether its main one has ended, which the kernel counts until the
/// process ends. `None` where it cannot be looked at.
pub(super) fn threads() -> Option<(u32, bool)> {
    let stat = stat("self")?;
    let mut words = stat.split_whitespace();
    let main_has_ended = words.next()? == "Z";
    Some((words.nth(16)?.parse().ok()?, main_has_ended))
}

/// When a process began, in clock ticks since the machine did; `None` where it cannot be looked at.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    stat(pid)?.split_whitespace().nth(19)?.parse().ok()
}

/// Whether the process of a number that began then is suspended, by SIGSTOP or a debugger. False where it cannot be
/// looked at.
pub(crate) fn is_suspended(pid: i32, start: u64) -> bool {
    let Some(stat) = stat(pid) else { return false };
    let mut words = stat.split_whitespace();
    let state = words.next();
    matches!(state, Some("T" | "t")) && words.nth(18).and_then(|s| s.parse().ok()) == Some(start)
}

/// Whether a process has a file open; false where this cannot be found out.
pub(crate) fn opens_file(pid: i32, path: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let (Some(file), Ok(open)) = (id(path), fs::read_dir(format!("/proc/{pid}/fd"))) else { return false };
    open.flatten().any(|fd| id(&fd.path()) == Some(file))
}

/// Whether the process of a number that began then has ended: another one has its number, or none, or its parent has
/// not waited for it yet. One that cannot be looked at lives.
pub(crate) fn has_ended(pid: i32, began: u64) -> bool {
    match start_time(pid) {
        Some(now) => now != began || is_unwaited(pid),
        None => no_process(pid),
    }
}

/// Whether all threads of a process have ended, which its parent has not waited for.
fn is_unwaited(pid: i32) -> bool {
    let fd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    fd.is_some_and(|fd| readable_by(&fd, Instant::now()).unwrap_or(false))
}

/// Whether no process has a number.
fn no_process(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_stopped_is_told_from_one_that_waits() {
        let mut waits = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = waits.id() as i32;
        let start = start_time(pid).unwrap();
        assert!(!is_suspended(pid, start) && !is_suspended(std::process::id() as i32, start));
        rustix::process::kill_process(Pid::from_child(&waits), rustix::process::Signal::STOP).unwrap();
        while !is_suspended(pid, start) {
            std::thread::yield_now(); // until the signal has arrived
        }
        assert!(!is_suspended(pid, start + 1), "another process of that number");
        waits.kill().unwrap();
        waits.wait().unwrap();
    }

    #[test]
    fn a_process_may_have_any_bytes_for_a_name() {
        let comm = format!("/proc/self/task/{}/comm", std::process::id());
        let (before, began) = (fs::read(&comm).unwrap(), start_time(std::process::id() as i32));
        fs::write(&comm, b"\xff) Z\xc3").unwrap();
        let named = (start_time(std::process::id() as i32), threads());
        fs::write(&comm, before).unwrap();
        assert!(began.is_some() && named.0 == began);
        assert!(named.1.is_some_and(|(all, main_has_ended)| all >= 1 && !main_has_ended));
    }

    #[test]
    fn lists_of_several_processors_are_told_from_lists_of_one() {
        assert!(several("0-1\n") && several("3,7\n"));
        assert!(!several("0\n") && !several("12\n"));
    }
}
