//! Children made by fork: they use what they inherited in a session of their own.

#[path = "../kit/mod.rs"]
mod kit;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use baton::dlpack::{CPU, DLDevice, DLTensor};
use baton::{Code, DType, Queue, QueueOptions, Session, Start, Tensor, TopicOptions};
use kit::Broker;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn alarm(seconds: u32) -> u32;
    fn kill(pid: i32, signal: i32) -> i32;
    fn _exit(status: i32) -> !;
    fn syscall(number: i64, ...) -> i64;
}

/// One test at a time: a child inherits what all threads of the process hold.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|p| p.into_inner())
}

const STOP: i32 = 19;
const CONT: i32 = 18;

const PATIENCE: Duration = Duration::from_secs(90);

/// What went wrong in a child: the line where it was seen. A child must not panic: another thread of the
/// parent may have held the lock of standard error.
type Seen = Result<(), u32>;

macro_rules! check {
    ($ok:expr) => {
        if !$ok {
            return Err(line!());
        }
    };
}

macro_rules! ok {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(_) => return Err(line!()),
        }
    };
}

/// Runs a closure in a child. Its status is the line modulo 256, and 0 when all was well.
fn child(f: impl FnOnce() -> Seen) -> i32 {
    // SAFETY: the C library makes its own locks usable in the child; of this program's others the
    // closures touch those of the crate only, which is what is tested.
    run(unsafe { fork() }, f)
}

/// As `child`, by a fork that the C library does not see.
fn raw_child(f: impl FnOnce() -> Seen) -> i32 {
    const CLONE: i64 = if cfg!(target_arch = "x86_64") { 56 } else { 220 };
    const SIGCHLD: i64 = 17;
    // SAFETY: without CLONE_VM it is a fork.
    run(unsafe { syscall(CLONE, SIGCHLD, 0, 0, 0, 0) } as i32, f)
}

/// Forks: the child has done `then` when it comes back.
fn forks(then: impl FnOnce()) -> i32 {
    // SAFETY: as `child`.
    let forked = unsafe { fork() };
    if forked == 0 {
        // SAFETY: as `run`.
        unsafe { alarm(2 * PATIENCE.as_secs() as u32) };
        then();
    }
    forked
}

fn run(forked: i32, f: impl FnOnce() -> Seen) -> i32 {
    assert!(forked >= 0, "fork failed");
    if forked > 0 {
        return forked;
    }
    // SAFETY: what hangs is killed by SIGALRM, which `end_of` tells.
    unsafe { alarm(2 * PATIENCE.as_secs() as u32) };
    let status = f().map_or_else(|line| (line % 255 + 1) as i32, |()| 0);
    // SAFETY: it ends the child without running what belongs to the parent.
    unsafe { _exit(status) }
}

/// Waits for the end of a child, which must have found all well.
fn ends_well(child: i32) {
    assert_eq!(end_of(child), 0, "line (modulo 255, plus 1) at which the child saw something else");
}

fn end_of(child: i32) -> i32 {
    let mut status = -1;
    // SAFETY: the child is this process's, and the status is its own.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status & 0x7f, 0, "the child was killed by signal {}", status & 0x7f);
    status >> 8
}

/// Kills a child.
fn ends_by_kill(child: i32) {
    // SAFETY: the child is this process's, and was not waited for.
    assert_eq!(unsafe { kill(child, 9) }, 0);
    // SAFETY: as `end_of`.
    assert_eq!(unsafe { waitpid(child, std::ptr::null_mut(), 0) }, child);
}

/// The children that this thread has, for another thread that waits for the next.
struct Forked {
    children: String,
    before: String,
}

impl Forked {
    fn here() -> Forked {
        let children = format!("/proc/self/task/{}/children", rustix::thread::gettid().as_raw_nonzero());
        Forked { before: std::fs::read_to_string(&children).unwrap(), children }
    }

    /// Waits for another child, which may still be in fork.
    fn child(&self) -> i32 {
        let mut forked = None;
        kit::until("the child is there", || {
            let now = std::fs::read_to_string(&self.children).unwrap();
            forked = now.split(' ').filter(|c| !self.before.contains(c)).find_map(|c| c.parse().ok());
            forked.is_some()
        });
        forked.unwrap()
    }
}

/// Two ends of a connection. A child of a test that fails does not wait without a limit.
fn ends() -> (UnixStream, UnixStream) {
    let both = UnixStream::pair().unwrap();
    both.1.set_read_timeout(Some(PATIENCE)).unwrap();
    both
}

fn keep_nothing() -> TopicOptions {
    TopicOptions::default().linger(Duration::ZERO)
}

fn made(s: &Session, values: &[u64]) -> Tensor {
    s.from_slice(&[values.len() as i64], values).unwrap().freeze()
}

fn is(t: &Tensor, values: &[u64]) -> bool {
    t.to_vec::<u64>().is_ok_and(|v| v == values)
}

mod bounds;
mod busy;
mod calls;
mod inherited;
mod kept;
mod last_thread;
mod lost;
