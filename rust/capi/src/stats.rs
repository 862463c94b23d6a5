//! What this process has and did.

use std::mem::MaybeUninit;

use crate::error::run;
use crate::grown::{give_grown, grows};
use crate::status::baton_status;
use crate::{baton_session, given, maybe_give};

/// What a session has and did.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_stats {
    /// Of this structure, set by BATON_STATS_INIT before the call.
    pub size: usize,
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

grows! { baton_stats to handovers: u64, BATON_STATS_INIT; }

/// What the session has and did. out begins as BATON_STATS_INIT; only members that it has are set.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_stats(session: Option<&baton_session>, out: *mut baton_stats) -> baton_status {
    // SAFETY: the header asks for a structure of the size that it says.
    run(|| unsafe {
        give_grown(out, || {
            let s = given(session, "session")?.0.stats();
            let p = s.pool;
            Ok(baton_stats {
                size: size_of::<baton_stats>(),
                granted: p.granted,
                live: p.live,
                warm: p.warm,
                recycled: p.recycled,
                handovers: s.handovers,
            })
        })
    })
}

/// Looks for storages that have no holder any more and gives empty memory back to the broker, which
/// otherwise stays here, warm, for the next tensors. bytes: those given back; may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_collect(
    session: Option<&baton_session>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> baton_status {
    run(|| maybe_give(bytes, 0, || Ok(given(session, "session")?.0.collect())))
}
