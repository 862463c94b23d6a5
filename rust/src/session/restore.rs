//! What a new broker is given of a session: the descriptors of everything mapped here.

use std::os::fd::{AsFd, BorrowedFd};

use super::core::Core;
use crate::error::{Code, Error, Result};
use crate::lanes::Topics;
use crate::wire::Control;
use crate::wire::ops::{HelloReply, Ignored, Restore, RestoreItem, Restored};

/// Hands it all over, on the session's thread.
pub(super) fn restore(core: &Core, control: &Control) -> Result<()> {
    let (p, thread) = (&core.memory.files, &core.link.thread);
    let item = |role, serial| RestoreItem { role, serial };
    p.restores.asked(); // before anything is listed
    // Before the groups are listed: a reader that is missing here has its group there.
    let unanswered = core.lanes.joining.unanswered();
    let mapped = core.memory.mapped();
    let mut items: Vec<(RestoreItem, BorrowedFd<'_>)> =
        vec![(item("broker", 0), p.broker_fd.as_fd()), (item("bell", 0), p.bell_fd.as_fd())];
    let mut lists = [("session", mapped.sessions), ("segment", mapped.segments)].map(|(role, files)| {
        let (there, closed): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, fd)| fd.is_some());
        let there = there.into_iter().filter_map(|(serial, fd)| Some((item(role, serial), fd?))).collect::<Vec<_>>();
        (there, closed.into_iter().map(|(serial, _)| serial).collect::<Vec<u64>>())
    });
    let [sessions, segments] = lists.each_mut().map(|(_, closed)| std::mem::take(closed));
    items.extend(lists.iter().flat_map(|(there, _)| there.iter().map(|(item, fd)| (item.clone(), fd.as_fd()))));
    let opening = core.opened().filter(|i| !i.is_closed());
    let topics = opening.as_ref().and_then(|inner| Topics::of(inner).ok());
    let groups = topics.map_or_else(Vec::new, |topics| topics.group_files());
    items.extend(groups.iter().map(|g| (item("group", g.id), g.fd.as_fd())));
    for batch in items.chunks(32) {
        let (items, fds): (Vec<_>, Vec<_>) = batch.iter().cloned().unzip();
        thread.ask::<_, Ignored>(control, "restore", &Restore { items: &items }, &fds)?;
    }
    let (ok, _): (HelloReply, _) =
        thread.ask(control, "restored", &Restored { unanswered, sessions, segments }, &[])?;
    if !ok.resumed {
        return Err(Error::new(
            Code::BrokerLost,
            "open a new session",
            "the new broker did not take this session over",
        ));
    }
    Ok(())
}
