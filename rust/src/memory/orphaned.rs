//! Undoes requests whose callers had given up before the answer came.

use super::Access;
use crate::wire::OrphanedReply;
use crate::wire::ops::{GrantReply, ReturnRequest};

impl Access {
    /// Undoes a request that was carried out after its caller had given it up, or whose answer came
    /// with descriptors that this process had no room for.
    ///
    /// An opening, a reader and a lease have numbers that the caller chose, by which it has undone them
    /// itself. A lane that the broker listed late stays this session's: the next send asks for it again
    /// with the same offset.
    pub(crate) fn undo(&self, reply: &OrphanedReply) {
        if reply.op == "grant"
            && let Ok(r) = serde_json::from_str::<GrantReply>(reply.ok.get())
        {
            self.tell("return", &ReturnRequest { segment: r.segment, serial: r.segment_serial });
        }
    }
}
