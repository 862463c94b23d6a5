//! What a session has of its broker: the connection, the pages, the memory and what is counted in it.
//!
//! A [`Inner`] is one opening of it, from [`Session::connect`](super::Session::connect) to the close. What a
//! program has made of an opening ends with it, but for tensors: their bytes stay as long as they do, in the
//! row and the memory of the core. So a core whose opening was closed lives on while its row counts anything.
//! It has no part in topics any more, and the next session that the process opens like it is its next
//! opening: a program that opens and closes again and again, and keeps something each time, has one core.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, RwLock, Weak};
use std::time::{Duration, Instant};

use super::Options;
use super::attach::{Attachments, counts};
use super::background::Background;
use super::counted::Counting;
use super::device::Devices;
use super::heir::Heir;
use super::huge::HugePools;
use super::inner::Inner;
use super::lane_space::LaneSpace;
use super::leave::Link;
use super::legacy::Legacies;
use super::pages::Pages;
use super::pin::Inherited;
use super::reader::Joining;
use super::room::Room;
use crate::deadline;
use crate::error::{Code, Error, Result, lost};
use crate::layout::session_file;
use crate::ledger::{FreeTest, Openings, Pool};
use crate::shm::Segment;
use crate::sys::{self, PerProcess};
use crate::turns::Turnstile;
use crate::waits::Waiter;
use crate::wire::Control;

/// One session of the broker's.
pub(crate) struct Core {
    pub(crate) options: Options,
    pub(crate) pages: Pages,
    pub(crate) pool: Pool,
    pub(crate) waiter: Waiter,
    pub(crate) attached: Attachments,
    pub(crate) attaching: Turnstile<()>,
    pub(crate) segments: Mutex<HashMap<u64, Arc<Segment>>>,
    /// Held for reading while a grant is asked for, until its segment is known here or was given back.
    pub(super) granting: RwLock<()>,
    /// Whether the answer to a grant may have been lost with a connection.
    pub(super) strays: AtomicBool,
    pub(crate) lanes: Mutex<LaneSpace>,
    pub(crate) background: Arc<Background>,
    /// The number that the next reader has.
    pub(super) readers: AtomicU64,
    pub(super) counting: Counting,
    /// The number that the next opening of a topic has.
    pub(super) next_opening: AtomicU64,
    pub(super) joining: Joining,
    pub(crate) devices: OnceLock<Devices>,
    pub(crate) huge: OnceLock<HugePools>,
    pub(crate) room: Room,
    /// Counts forks, for holdings to tell those before them from those after.
    pub(crate) era: AtomicU32,
    /// Chunks of which this session counts what it inherited by a fork.
    pub(super) inherited: Vec<Inherited>,
    /// What is counted for children that could not.
    pub(super) legacies: Legacies,
    /// In the child of a fork: what took this session's place.
    pub(crate) heir: PerProcess<Arc<Heir>>,
    pub(super) link: Mutex<Link>,
    pub(super) relinked: Condvar,
    pub(super) process: u32, // that opened it
    /// Whether it is noted where the program asks for memory.
    pub(super) traces: bool,
    /// While a broker that is being stopped, or evicts the session, decides on it.
    limbo: AtomicBool,
    /// Whether the broker has said that an operator ends this session.
    pub(super) evicted: AtomicBool,
    /// Whether no broker knows the session any more.
    unknown: AtomicBool,
    /// Why the session is over, where a broker has said so.
    pub(super) lost: OnceLock<Error>,
    /// Openings that something still refers to.
    pub(super) users: AtomicUsize,
    openings: Openings<Weak<Inner>>,
}

impl Core {
    pub(super) fn new(
        options: Options,
        pages: Pages,
        control: Arc<Control>,
        background: Arc<Background>,
        spins: bool,
    ) -> Result<Core> {
        let process = sys::process_number()?;
        let test = FreeTest::new(pages.chunks.clone(), pages.entries.clone());
        let traces = std::env::var_os("BATON_TRACE").is_some_and(|v| v == "1");
        if traces {
            pages.session.store32(session_file::TRACE_ON, 1); // the broker shows them then
        }
        Ok(Core {
            pool: Pool::new(pages.row.clone(), pages.entries.clone(), test, pages.quotas),
            waiter: Waiter::new(&pages.bells, pages.slot, spins),
            attached: Attachments::new(),
            attaching: Turnstile::default(),
            segments: Mutex::default(),
            granting: RwLock::new(()),
            strays: AtomicBool::new(false),
            lanes: Mutex::new(LaneSpace::new()),
            background,
            readers: AtomicU64::new(1),
            counting: Counting::default(),
            next_opening: AtomicU64::new(1),
            joining: Joining::default(),
            devices: OnceLock::new(),
            huge: OnceLock::new(),
            room: Room::default(),
            era: AtomicU32::new(1),
            inherited: Vec::new(),
            legacies: Legacies::default(),
            heir: PerProcess::new(),
            link: Mutex::new(Link::new(control)),
            relinked: Condvar::new(),
            process,
            traces,
            options,
            pages,
            limbo: AtomicBool::new(false),
            evicted: AtomicBool::new(false),
            unknown: AtomicBool::new(false),
            lost: OnceLock::new(),
            users: AtomicUsize::new(0),
            openings: Openings::new(Weak::new()),
        })
    }

    pub(crate) fn link(&self) -> Arc<Control> {
        self.link_locked().control.clone()
    }

    pub(super) fn link_locked(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Whether it is the session of the parent, which forked: its row and its lanes are not even
    /// mapped here, its background thread is not there, and a lock may never be released. What is made
    /// of it leads to its heir; see [`Inner::here`].
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        !sys::is_process(self.process)
    }

    /// Whether a broker has said that the session is over.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Refuses all calls from now on, those that wait too: a broker has said that the session is over, or
    /// that it is unknown. What is held stays mapped.
    pub(super) fn lose(&self, why: &str, unknown: bool) {
        self.unknown.store(unknown, Ordering::Relaxed);
        let opening = self.opening();
        let why = lost(&self.pages.instance, self.pages.serial, why);
        if self.lost.set(why.clone()).is_err() {
            return;
        }
        self.each_pool(Pool::end);
        self.limbo.store(false, Ordering::SeqCst);
        self.link().end(why); // locked: a thread that waits for a link or a decision has looked before, or is notified
        self.over();
        self.background.wake();
        self.relinked.notify_all();
        if let Some(inner) = opening {
            inner.end_poll();
        }
        self.waiter.wake();
    }

    /// Does something with each pool of this machine's memory.
    fn each_pool(&self, f: impl Fn(&Pool)) {
        f(&self.pool);
        if let Some(h) = self.huge.get() {
            h.each(f);
        }
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Tells a broker that is being stopped that this process has heard so: it allocates, recycles and
    /// counts nothing from here on, and says nothing more. The broker notes in its file that the session is
    /// closed, and ends the connection behind that. Where it does not, because its time for that is over or
    /// it dies, the session goes on.
    ///
    /// SYNC limbo: set before the broker hears of it; pairs with `hold`.
    pub(super) fn hear(&self, control: &Control) {
        self.limbo.store(true, Ordering::SeqCst);
        self.each_pool(Pool::pause);
        control.end_writing();
    }

    /// Ends the limbo of a session that was not closed.
    pub(super) fn go_on(&self) {
        if !self.limbo.swap(false, Ordering::SeqCst) {
            return;
        }
        self.each_pool(Pool::resume);
        drop(self.link_locked()); // a thread that waits has looked before, or is notified
        self.relinked.notify_all();
    }

    /// Whether a broker that is being stopped decides on the session.
    ///
    /// SYNC limbo: looked at behind the count of a reference: it is set here, or the broker, which looks at
    /// the row when it has heard, sees the count.
    #[inline]
    pub(super) fn is_in_limbo(&self) -> bool {
        self.limbo.load(Ordering::SeqCst)
    }

    /// Waits until that is decided.
    #[cold]
    pub(super) fn await_decision(&self) -> Result<()> {
        let until = deadline::of_request();
        let mut link = self.link_locked();
        while self.is_in_limbo() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(Code::BrokerLost, "try again", "the broker is being stopped"));
            }
            link = self.relinked.wait_timeout(link, left).unwrap_or_else(|p| p.into_inner()).0;
        }
        Ok(())
    }

    /// Its opening, if it is open.
    pub(super) fn opening(&self) -> Option<Arc<Inner>> {
        self.openings.present()?.upgrade()
    }

    /// Opens a new one.
    pub(super) fn open(core: Arc<Core>) -> Arc<Inner> {
        let inner = Inner::new(core);
        inner.openings.begin(Arc::downgrade(&inner));
        inner
    }

    /// Opens it once more, for one who wants a session like it.
    pub(super) fn open_again(self: &Arc<Core>, o: &Options) -> Option<Arc<Inner>> {
        if self.is_foreign()
            || self.is_lost()
            || !self.options.is_like(o)
            || self.devices.get().is_some()
            || self.link().is_lost()
        {
            return None;
        }
        self.openings.begin_again(|| {
            let inner = Inner::new(self.clone());
            let noted = Arc::downgrade(&inner);
            (inner, noted)
        })
    }

    /// Ends its opening: the thread tells the broker.
    pub(super) fn leave(&self) {
        self.openings.leave();
        self.background.wake();
    }

    /// Waits until the broker has heard that its opening was closed, and no longer than that.
    pub(super) fn await_left(&self, until: Instant) {
        self.openings.await_left(until);
    }

    pub(super) fn is_open(&self) -> bool {
        self.openings.is_open()
    }

    pub(super) fn is_over(&self) -> bool {
        self.openings.is_over()
    }

    /// Whether the broker was told that its opening was closed, or need not be.
    pub(super) fn is_left(&self) -> bool {
        self.openings.is_left()
    }

    /// The broker has heard that its opening was closed.
    pub(super) fn left(&self) {
        self.openings.left();
    }

    /// Nothing is left to be done with it.
    pub(super) fn over(&self) {
        self.pages.custody.clear();
        self.openings.over();
    }

    /// Whether the row counts anything.
    pub(super) fn counts_any(&self) -> bool {
        self.attached.count_any(&self.pages.row) || self.inherited.iter().any(|i| counts(&self.pages.row, i.chunk))
    }

    /// Ends it if it is closed and counts nothing. From here on nothing is counted: the pool hands out no
    /// storage, and who takes a reference looks, after counting it, whether the session was closed.
    pub(super) fn end_if_empty(&self) -> bool {
        self.openings.end_if(|| self.pool.end_if(|| !self.counts_any()))
    }
}

/// How long the thread of a session that holds nothing goes on trying to tell a broker that it was closed.
pub(super) const PARTING: Duration = Duration::from_secs(30);
