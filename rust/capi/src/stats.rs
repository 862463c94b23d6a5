//! What this process has and did.

use std::mem::MaybeUninit;

use crate::error::run;
use crate::status::baton_status;
use crate::{baton_session, give, given, maybe_give};

/// What a session has and did.
#[repr(C)]
#[derive(Debug, Default)]
pub struct baton_stats {
    /// Bytes of memory that the broker granted for allocation.
    pub granted: u64,
    /// Storages handed out and not yet found free.
    pub live: u64,
    /// Storages ready for reuse.
    pub warm: u64,
    /// Storages found free so far.
    pub recycled: u64,
    /// Messages sent and names set.
    pub handovers: u64,
}

/// What the session has and did.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_stats(
    session: Option<&baton_session>,
    out: Option<&mut MaybeUninit<baton_stats>>,
) -> baton_status {
    run(|| {
        give(out, baton_stats::default(), || {
            let s = given(session, "session")?.0.stats();
            let p = s.pool;
            Ok(baton_stats {
                granted: p.granted,
                live: p.live,
                warm: p.warm,
                recycled: p.recycled,
                handovers: s.handovers,
            })
        })
    })
}

/// Looks for storages that nobody holds any more and gives empty memory back to the broker, which
/// otherwise stays here, warm, for the next tensors. bytes: those given back; may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_collect(
    session: Option<&baton_session>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> baton_status {
    run(|| maybe_give(bytes, 0, || Ok(given(session, "session")?.0.collect())))
}
