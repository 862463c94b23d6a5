//! The threads of this crate, which are no reason for a process to go on.
//!
//! A process whose last thread ends is ended by the C library, as by `exit(0)`. That is how a program ends whose
//! main thread has called `pthread_exit`, and the child of a thread that forked and returned. A thread of this crate
//! would keep such a process without end, with all that it holds. So when no other thread is left, this crate does
//! what the C library does.
//!
//! The kernel says how many threads there are: it knows those of all libraries, however they were made. A thread
//! notes itself here once it runs, and until it ends or runs something of the program's. So no more are noted than
//! there are, and those that are not noted are never taken for none. The end of a thread that has opened a session, or
//! forked, is looked at. Where another thread is the last, it is seen by the look of each session's thread every
//! five seconds, in which that looks at other things too. Nothing else is spent on it.
//!
//! The handlers of `exit` run on a thread made for it. They may use sessions, whose threads go on meanwhile.

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::process::{is_process, process_number, threads};
use super::{PerProcess, Waker};
use crate::error::{Code, Error, Result};

/// The first look after a thread has begun to end, which takes the kernel a moment.
const SOONEST: Duration = Duration::from_millis(1);
/// The last, and how often it is looked at without such a thread.
const LATEST: Duration = Duration::from_secs(5);

type Destructor = extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn pthread_key_create(key: *mut c_uint, destructor: Option<Destructor>) -> c_int;
    fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
}

#[derive(Default)]
struct Threads {
    own: u32,
    /// Those of this crate that may not run yet.
    starting: u32,
    /// Of the threads that look.
    wakers: Vec<Weak<Waker>>,
    /// Counts the threads that may be the last.
    ending: u64,
    /// Whether a thread was started that ends the process.
    exits: bool,
}

static THREADS: PerProcess<Mutex<Threads>> = PerProcess::new();

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|p| p.into_inner())
}

impl Threads {
    /// How many threads there are that are not noted. While this is locked, no noted one ends.
    fn others(&self) -> Option<u32> {
        let (all, main_has_ended) = threads()?;
        all.checked_sub(u32::from(main_has_ended) + self.own)
    }
}

/// The calling thread does nothing but this crate's work, for as long as this lives.
#[derive(Debug)]
pub struct OwnThread {
    process: Option<u32>,
}

/// Starts a thread of this crate. One that has a waker waits with a [`LastLook`], and ends its wait when it is woken.
pub(crate) fn own_thread(
    name: &str,
    waker: Option<&Arc<Waker>>,
    run: impl FnOnce(&mut OwnThread) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let wakes = waker.map(Arc::downgrade);
    let note = |change: fn(&mut Threads)| THREADS.get_or(Mutex::default).map(|t| change(&mut locked(t)));
    // A thread that ends before the new one runs has to know of it.
    let noted = note(|t| t.starting += 1).is_ok();
    let started = Builder::new().name(name.to_owned()).spawn(move || {
        let mut own = OwnThread::begin();
        if let Some(threads) = THREADS.get() {
            let mut threads = locked(threads);
            threads.starting -= u32::from(noted);
            threads.wakers.retain(|w| w.strong_count() > 0);
            threads.wakers.extend(wakes);
        }
        run(&mut own);
    });
    if noted && started.is_err() {
        let _ = note(|t| t.starting -= 1);
    }
    started
}

/// Says what is to be done where a thread cannot be started.
pub(crate) fn started<T>(thread: io::Result<T>) -> Result<T> {
    thread.map_err(|e| {
        Error::new(Code::TooMany, "raise the limit of threads", format!("start a thread: {e}")).caused_by(e)
    })
}

impl OwnThread {
    #[doc(hidden)]
    pub fn begin() -> OwnThread {
        let threads = THREADS.get_or(Mutex::default);
        threads.iter().for_each(|t| locked(t).own += 1);
        OwnThread { process: threads.and_then(|_| process_number()).ok() }
    }

    /// Runs something of the program's, which may fork.
    pub(crate) fn lend<R>(&mut self, run: impl FnOnce() -> R) -> R {
        self.end();
        let done = run();
        *self = OwnThread::begin();
        done
    }

    fn end(&mut self) {
        // A child that this thread forked has its own count, in which it is not.
        if self.process.take().is_some_and(is_process)
            && let Some(threads) = THREADS.get()
        {
            locked(threads).own -= 1;
        }
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        self.end();
    }
}

/// When a thread looks next whether others are left.
#[derive(Debug)]
pub(crate) struct LastLook(Mutex<Pace>);

#[derive(Debug)]
struct Pace {
    next: Instant,
    pause: Duration,
    ending: u64,
}

impl LastLook {
    pub(crate) fn new() -> LastLook {
        LastLook(Mutex::new(Pace { next: Instant::now() + LATEST, pause: LATEST, ending: 0 }))
    }

    /// Looks if it is time to, and says until when the thread may wait: until it is time again, and no longer than
    /// to another time. What ends later wakes it.
    pub(crate) fn look_before(&self, until: Option<Instant>) -> Instant {
        self.look();
        let next = locked(&self.0).next;
        until.map_or(next, |u| u.min(next))
    }

    /// Ends the process if it is time to look, and no thread is left that is not this crate's.
    pub(crate) fn look(&self) {
        let Some(threads) = THREADS.get() else { return };
        let (mut threads, mut pace, now) = (locked(threads), locked(&self.0), Instant::now());
        if pace.ending != threads.ending {
            *pace = Pace { next: now, pause: SOONEST, ending: threads.ending };
        }
        if now < pace.next {
            return;
        }
        *pace = Pace { next: now + pace.pause, pause: (2 * pace.pause).min(LATEST), ..*pace };
        if !threads.exits && threads.others() == Some(0) {
            // The only threads that there are do not make others of the program's.
            let exit = Builder::new().name("baton-exit".to_owned()).spawn(|| std::process::exit(0));
            threads.exits = exit.is_ok(); // else the next look tries again
        }
    }
}

static KEY: OnceLock<Option<c_uint>> = OnceLock::new();

/// Has the end of the calling thread looked at: whether it was the last but those of this crate. The library must
/// stay loaded.
///
/// By a key of the C library's, whose destructors run where a thread ends, and not where a process does.
pub(crate) fn look_at_its_end() {
    let made = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a place for the key, and a function of this library.
        let made = unsafe { pthread_key_create(&raw mut key, Some(ends)) };
        (made == 0).then_some(key)
    });
    if let Some(key) = made {
        // Without room for it, the end is seen later. The value is no address, but not null.
        // SAFETY: the key was made and is never deleted.
        unsafe { pthread_setspecific(*key, std::ptr::without_provenance(1)) };
    }
}

extern "C" fn ends(_: *mut c_void) {
    let Some(threads) = THREADS.get() else { return };
    let mut threads = locked(threads);
    // Of two that end at once each sees the other: the threads that look see it later.
    if threads.others().is_some_and(|others| others <= 1 + threads.starting) {
        threads.ending += 1;
        threads.wakers.iter().filter_map(Weak::upgrade).for_each(|w| w.wake());
    }
}
