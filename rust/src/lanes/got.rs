//! Names that were read lately.
//!
//! Reading a name takes the revision that the broker's lane names at that moment: that needs no reader, and no
//! broker. So a name that was read stays open for the next time, as long as few others are read meanwhile. One
//! that is not set is left: its numbers begin anew where no session has it open. So is one that another session
//! has deleted: it is looked for when the mappings are compared.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use super::message::{Claim, Message, Scratch, Taken, Taking, refuted};
use super::topic::{KeepsOpen, TopicState, Topics};
use super::view::TO_READ;
use crate::error::Result;
use crate::holding::Opening;
use crate::wire::ops::NameRef;

/// How many stay open: an open name has a place in the broker's tables, also once it is deleted.
const KEPT: usize = 16;

/// The names that a session has read last, the latest at the end.
#[derive(Debug, Default)]
pub(crate) struct Got {
    names: Mutex<Vec<(Box<str>, Arc<TopicState>)>>,
    listed: OnceLock<()>, // in its opening's `Topics`
}

impl Got {
    fn all(&self) -> MutexGuard<'_, Vec<(Box<str>, Arc<TopicState>)>> {
        self.names.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// A name's topic, if it is open here.
    fn find(&self, name: &str) -> Option<Arc<TopicState>> {
        let mut all = self.all();
        // A parent's topic leads the child of a fork to one of its own; of the parent's no page is looked at.
        let open = |t: &TopicState| t.inner.is_foreign() || !t.is_closed();
        let at = all.iter().position(|(n, t)| **n == *name && open(t))?;
        all[at..].rotate_left(1);
        all.last().map(|(_, t)| t.clone())
    }

    /// Leaves a name.
    pub(crate) fn forget(&self, name: &str) {
        let mut all = self.all();
        let gone = all.iter().position(|(n, _)| **n == *name).map(|at| all.remove(at));
        drop(all);
        drop(gone); // unlocked: the last user of a topic leaves it
    }

    fn keep(&self, name: &str, topic: &Arc<TopicState>) {
        let mut all = self.all();
        let same = all.iter().position(|(n, _)| **n == *name);
        let over = same.or_else(|| (all.len() == KEPT).then_some(0)).map(|at| all.remove(at));
        all.push((name.into(), topic.clone()));
        drop(all);
        drop(over); // unlocked, as in `forget`
    }
}

impl KeepsOpen for Got {
    fn forget_deleted(&self) {
        let deleted = |(_, t): &mut (_, Arc<TopicState>)| !t.inner.is_foreign() && (t.is_closed() || t.is_deleted());
        let over: Vec<_> = self.all().extract_if(.., deleted).collect();
        drop(over); // unlocked, as in `forget`
    }
}

impl Got {
    /// The newest revision of a name, as a message, and whether it may be stale; `None` where none is set.
    pub(crate) fn newest(self: &Arc<Got>, inner: &Arc<Opening>, name: &str) -> Result<Option<(Message, bool)>> {
        inner.check_open()?;
        let found = match self.find(name) {
            Some(topic) => topic.here()?.newest()?,
            None => {
                let topic = Topics::open(inner, "name.open", &NameRef { name })?;
                self.listed.get_or_init(|| {
                    let me: Weak<Got> = Arc::downgrade(self);
                    topic.topics.kept_by(me);
                });
                self.keep(name, &topic);
                topic.newest()?
            }
        };
        if found.is_none() {
            self.forget(name);
        }
        Ok(found)
    }
}

impl TopicState {
    /// Takes what the one lane of a name names now.
    fn newest(&self) -> Result<Option<(Message, bool)>> {
        let mut scratch = Scratch::default();
        loop {
            let view = self.current(TO_READ)?;
            let Some(lane) = view.lanes.first() else { return Ok(None) };
            let i = lane.lane.head();
            match Taking(&self.inner).take(lane, i, &mut scratch, || Some(Claim { lost: 0, acknowledge: None })) {
                Taken::Message(held) => return Ok(Some((Message { held }, self.is_stale()))),
                Taken::Malformed(e) if !refuted(&e) => return Err(e),
                Taken::Malformed(_) => return Ok(None),
                // There is no revision, or a newer one since.
                Taken::Gone | Taken::Claimed if lane.lane.head() == i => return Ok(None),
                Taken::Gone | Taken::Claimed => self.inner.check_open()?,
            }
        }
    }
}
