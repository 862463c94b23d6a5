//! The memory of a session: the files that it maps, the chunks that it is attached to, segments and pools, and the
//! references that its refcounts count.
//!
//! [`Memory`] is what one session has, whichever opening made it, and knows no broker. [`Access`] is what one opening does with
//! it, which may ask the broker.

mod arriving;
mod attach;
mod attaching;
mod custody;
mod file_key;
#[cfg(test)]
pub(crate) mod fixture;
mod held;
mod hold;
mod holders;
mod huge;
mod inherited;
mod known;
mod orphaned;
mod segments;
mod session_files;
#[cfg(test)]
mod tests;
mod trace;
mod waiters;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

pub(crate) use arriving::Arriving;
pub(crate) use attach::{Attached, counts};
pub(crate) use held::Held;
pub use holders::Holder;
pub use huge::HugePages;
pub(crate) use inherited::Inherited;
pub(crate) use segments::CUDA;
pub(crate) use session_files::{Peer, SessionFiles, map_file, text};

use crate::layout::session_file;
use crate::ledger::{FreeTest, Pool, PoolStats};
use crate::link::Client;
use crate::message::Ref;
use crate::shm::{Parking, Segment};
use crate::turns::Turnstile;
use attach::Attachments;
use huge::HugePools;
use waiters::MemoryWaiters;

/// Memory beside the machine's, which a layer above keeps.
pub(crate) trait Beside: Any + fmt::Debug + Send + Sync {
    /// The session's own count of an index fell to zero, which may be one of that memory.
    fn dropped(&self, index: u32);

    /// Whether a program has `n` bytes at an address as its own to hand out.
    fn is_rented(&self, at: u64, n: u64) -> bool;
}

/// What may be taken soon, so that the session is attached to its chunks ahead.
pub(crate) trait Expected: Send + Sync {
    /// Names it, unchecked.
    fn refs(&self) -> Vec<Ref>;
}

/// The memory of one session.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) files: SessionFiles,
    pub(crate) pool: Pool,
    pub(crate) attached: Attachments,
    attaching: Turnstile<()>,
    segments: Mutex<HashMap<u64, Arc<Segment>>>,
    /// Held for reading while a grant is asked for, until its segment is known here or was given back.
    granting: RwLock<()>,
    /// Whether the answer to a grant may have been lost with a connection.
    strays: AtomicBool,
    huge: OnceLock<HugePools>,
    waiters: MemoryWaiters,
    /// What a layer above keeps, and how it makes that when it is first needed.
    beside: OnceLock<Box<dyn Beside>>,
    make_beside: fn() -> Box<dyn Beside>,
    /// Counts forks, for holdings to tell those before them from those after.
    pub(crate) era: AtomicU32,
    /// Chunks of which this session counts what it inherited by a fork.
    pub(crate) inherited: Vec<Inherited>,
    /// Whether it is noted where the program asks for memory.
    pub(crate) traces: bool,
}

/// Whether the environment says that it is noted where the program asks for memory. It is not asked inside a fork:
/// another thread may have been changing the environment, under a lock that stays locked in the child.
pub(crate) fn traces() -> bool {
    std::env::var_os("BATON_TRACE").is_some_and(|v| v == "1")
}

impl Memory {
    pub(crate) fn new(
        files: SessionFiles,
        parking: Arc<Parking>,
        inherited: Vec<Inherited>,
        make_beside: fn() -> Box<dyn Beside>,
        traces: bool,
    ) -> Memory {
        let test = FreeTest::new(files.chunks.clone(), files.entries.clone());
        if traces {
            files.session.store32(session_file::TRACE_ON, 1); // the broker shows them then
        }
        let memory = Memory {
            pool: Pool::new(files.refcounts.clone(), files.entries.clone(), test, files.quotas),
            attached: Attachments::new(),
            attaching: Turnstile::default(),
            segments: Mutex::default(),
            granting: RwLock::new(()),
            strays: AtomicBool::new(false),
            huge: OnceLock::new(),
            waiters: MemoryWaiters::new(parking),
            beside: OnceLock::new(),
            make_beside,
            era: AtomicU32::new(1),
            inherited,
            traces,
            files,
        };
        memory.adopt();
        memory
    }

    /// Of a holding that is made now; what it holds is counted already.
    ///
    /// SYNC era: read after the refcounts were raised; pairs with `pin_all`.
    #[inline]
    pub(crate) fn era(&self) -> u32 {
        self.era.load(Ordering::SeqCst)
    }

    /// What a layer above keeps beside the machine's memory, if it does.
    #[inline]
    pub(crate) fn beside(&self) -> Option<&dyn Beside> {
        self.beside.get().map(|b| &**b)
    }

    /// As `beside`, made at the first call.
    pub(crate) fn beside_or_new(&self) -> &dyn Beside {
        &**self.beside.get_or_init(self.make_beside)
    }

    /// Does something with each pool of this machine's memory.
    pub(crate) fn each_pool(&self, f: impl Fn(&Pool)) {
        f(&self.pool);
        if let Some(h) = self.huge.get() {
            h.each(f);
        }
    }

    /// What the pools have.
    pub(crate) fn pool_stats(&self) -> PoolStats {
        let mut all = self.pool.stats();
        if let Some(h) = self.huge.get() {
            h.add_stats(&mut all);
        }
        all
    }

    /// Whether the refcounts count anything.
    pub(crate) fn counts_any(&self) -> bool {
        self.attached.count_any(&self.files.refcounts)
            || self.inherited.iter().any(|i| counts(&self.files.refcounts, i.chunk))
    }

    /// Notes that the answer to a grant may have been lost with a connection.
    pub(crate) fn note_strays(&self) {
        self.strays.store(true, Ordering::Release);
    }
}

/// What one opening does with the memory of its session.
pub(crate) struct Access {
    client: Client,
    pub(crate) memory: Arc<Memory>,
    expected: Option<Arc<dyn Expected>>,
}

impl Access {
    pub(crate) fn new(client: Client, memory: Arc<Memory>, expected: Option<Arc<dyn Expected>>) -> Access {
        Access { client, memory, expected }
    }
}

impl Deref for Access {
    type Target = Client;

    #[inline]
    fn deref(&self) -> &Client {
        &self.client
    }
}
