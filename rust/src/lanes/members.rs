//! Looking up the members of a topic: what the broker's record says, and the files that are mapped for it.
//!
//! It is read without a request. Each part is as of a version, which is loaded first: of what changes
//! meanwhile a look may see a part, and finds another version the next time. A broker is asked for files that
//! are not mapped here yet, and for nothing else.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::topic::TopicState;
use super::view::{GroupView, Parts, View};
use crate::deadline::for_a_moment;
use crate::error::{Code, Error, Result, disagree};
use crate::holding::{LaneInfo, LaneView};
use crate::layout::{broker_file, group_bytes, group_record, lane_record, limits, session_file, state, topic_record};
use crate::link::Broker;
use crate::memory::{Peer, map_file, text};
use crate::shm::{Fixed, Lane};
use crate::wire::ops::{Ignored, TopicGroupFile};

/// Whether an answer says that what was asked for has gone meanwhile; the version will say so.
fn is_gone(e: &Error) -> bool {
    matches!(e.code(), Code::NotFound | Code::Expired)
}

impl TopicState {
    /// The members, looked up if that has changed or is not known yet. Where that needs a broker and it is away,
    /// or goes away before it has answered, the last view serves: hand-over needs no broker.
    pub(crate) fn current(&self, need: Parts) -> Result<Arc<View>> {
        match self.view().filter(|v| v.is_of(self.version(), need)) {
            Some(v) => Ok(v),
            None => self.renewed(need, true),
        }
    }

    /// As `current`; where `stale` is false no view of before serves.
    pub(crate) fn renewed(&self, need: Parts, stale: bool) -> Result<Arc<View>> {
        let _one = self.inner.turn(&self.refreshing)?;
        let before = self.view().filter(|v| v.knows(need)); // else it does not serve
        let of = match &before {
            Some(v) if v.is_of(self.version(), need) => return Ok(v.clone()),
            Some(_) if stale => Broker::This,
            _ => Broker::Any,
        };
        match (self.look(of, need), before) {
            (Err(e), Some(v)) if stale && e.code() == Code::BrokerLost => Ok(v),
            (now, _) => now,
        }
    }

    /// Looks at the record. The part that is not needed stays as it was, and so do files mapped before.
    fn look(&self, of: Broker, need: Parts) -> Result<Arc<View>> {
        // SYNC topic-version: before that of which it counts the changes.
        let version = self.version();
        let mut v = self.view().map_or_else(View::default, |v| View::clone(&v));
        if need.lanes {
            // Before the lanes: what it counts is of lanes that are listed no more.
            v.gone = self.field(topic_record::GONE);
            (v.lanes, v.hidden) = self.map_lanes(of, &v)?;
            (v.has.lanes, v.lanes_at) = (true, version as u32);
        }
        if need.groups {
            v.groups = self.map_groups(of, &v.groups)?;
            (v.has.groups, v.groups_at) = (true, (version >> 32) as u32);
            if self.is_function() {
                self.map_readers(of);
            }
        } else {
            v.groups.retain(|g| self.lists(g));
        }
        // Last: else it was read of a topic that has come after this one.
        if !self.is_there() {
            let gone = Error::new(Code::NotFound, "open it again", format!("{self} is no more"));
            return Err(self.inner.refused(gone));
        }
        Ok(self.keep(v))
    }

    /// The lanes that the record lists, and the incarnations of those whose pages no broker has.
    fn map_lanes(&self, of: Broker, before: &View) -> Result<(Vec<Arc<LaneView>>, Vec<u64>)> {
        let listed = self.listed_lanes().filter(|l| l.state != state::LANE_CLOSED);
        let known = |l: LaneInfo| (l, before.lane(l.lane).filter(|k| k.info == l).cloned());
        let listed: Vec<_> = listed.map(known).collect();
        let lacking: BTreeMap<_, _> =
            listed.iter().filter(|l| l.1.is_none()).map(|(l, _)| (l.serial, l.slot)).collect();
        let owners = self.inner.peers(of, lacking)?;
        let (mut lanes, mut hidden) = (Vec::with_capacity(listed.len()), Vec::new());
        for (l, known) in listed {
            lanes.push(match (known, owners.get(&l.serial)) {
                (Some(known), _) => known,
                (None, Some(Ok(owner))) => Arc::new(self.map_lane(l, owner, before.has.lanes)?),
                (None, Some(Err(e))) if is_gone(e) => continue,
                // Its process has been suspended since a previous broker: the others go on.
                (None, Some(Err(e))) if e.code() == Code::Busy => {
                    hidden.push(l.incarnation);
                    continue;
                }
                (None, Some(Err(e))) => return Err(e.clone()),
                (None, None) => return Err(disagree("a lane without an owner")),
            });
        }
        Ok((lanes, hidden))
    }

    fn map_lane(&self, info: LaneInfo, owner: &Arc<Peer>, later: bool) -> Result<LaneView> {
        let lane = Lane::new(&owner.file, info.offset, self.info.slots, self.info.stride)?;
        Ok(LaneView {
            record: Fixed::new(
                &self.inner.memory.files.broker,
                broker_file::lane(self.info.topic, info.lane) + lane_record::INCARNATION,
            ),
            before: if later { 0 } else { lane.head() },
            lane,
            bell: self.inner.memory.files.bells.bell(owner.slot),
            owner: owner.clone(),
            inner: self.inner.clone(),
            info,
        })
    }

    /// The groups that the record lists.
    fn map_groups(&self, of: Broker, before: &[Arc<GroupView>]) -> Result<Vec<Arc<GroupView>>> {
        let mut groups = Vec::new();
        for number in 0..self.groups_end() {
            let id = self.group_id(number);
            if id == 0 {
                continue;
            }
            let known = before.iter().find(|k| k.id == id).cloned();
            match known.map_or_else(|| self.group_file(of, number, id), Ok) {
                Err(e) if is_gone(&e) => {}
                Ok(g) if !self.lists(&g) => {} // the file may be that of the next group with the number
                group => groups.push(group?),
            }
        }
        Ok(groups)
    }

    /// Maps the files of the sessions that read: in them lies what they reply. One that no broker gives in a moment is asked
    /// for when there is a reply of its session.
    fn map_readers(&self, of: Broker) {
        let files = &self.inner.memory.files;
        let readers = self.reader_slots().map(|slot| (files.session_serial(slot), slot));
        let readers = readers.filter(|(serial, _)| *serial != 0).collect();
        let _ = for_a_moment(None, || self.inner.peers(of, readers));
    }

    /// The slots of the sessions that read.
    pub(crate) fn reader_slots(&self) -> impl Iterator<Item = u32> {
        let words = (0..limits::BITMAP_WORDS as u32).map(|w| (w, self.field(topic_record::READERS + 8 * u64::from(w))));
        words.flat_map(|(w, word)| (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| 64 * w + b))
    }

    fn group_file(&self, of: Broker, group: u32, id: u64) -> Result<Arc<GroupView>> {
        let request = TopicGroupFile { topic: self.reference(), group };
        let (_, fds) = self.inner.call_of::<_, Ignored>(of, "topic.groupfile", &request, &[])?;
        self.map_group(group, id, fds)
    }

    fn map_group(&self, number: u32, id: u64, fds: Vec<OwnedFd>) -> Result<Arc<GroupView>> {
        let n = fds.len();
        let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(disagree(format!("group came with {n} descriptors, not 1")));
        };
        if number >= limits::GROUPS {
            return Err(disagree(format!("a group of {self} has the number {number}")));
        }
        let file = map_file(&fd, group_bytes(self.info.slots), true)?;
        Ok(Arc::new(GroupView { number, id, file, fd }))
    }

    /// The group that a reader has joined, whose file came with the answer unless it is mapped here already. It
    /// is kept for the views to come, and for a new broker.
    pub(crate) fn joined(&self, number: u32, id: u64, fds: Vec<OwnedFd>) -> Result<Arc<GroupView>> {
        let _one = self.inner.turn(&self.refreshing)?;
        let mut v = self.view().map_or_else(View::default, |v| View::clone(&v));
        if let Some(known) = v.groups.iter().find(|k| k.id == id) {
            return Ok(known.clone());
        }
        let group = self.map_group(number, id, fds)?;
        v.groups.retain(|k| self.lists(k));
        v.groups.push(group.clone());
        self.keep(v);
        Ok(group)
    }

    fn keep(&self, v: View) -> Arc<View> {
        let v = Arc::new(v);
        self.view.store(Some(v.clone()));
        v
    }

    /// A word of the topic's record.
    fn field(&self, offset: u64) -> u64 {
        self.inner.memory.files.broker.load(self.at + offset)
    }

    fn listed_lanes(&self) -> impl Iterator<Item = LaneInfo> {
        let end = (self.field(topic_record::LANES_END) as u32).min(limits::LANES);
        (0..end).filter_map(|n| LaneInfo::load(&self.inner.memory.files.broker, self.info.topic, n))
    }

    /// The id of the group that has a number now, 0 for none.
    fn group_id(&self, number: u32) -> u64 {
        self.inner.memory.files.broker.load(broker_file::group(self.info.topic, number) + group_record::ID)
    }

    /// Whether the record lists a group still.
    pub(crate) fn lists(&self, g: &GroupView) -> bool {
        self.group_id(g.number) == g.id
    }

    /// Writing and reading sessions, and the one that left last, for listings and errors.
    pub(crate) fn census(&self) -> (usize, u32, String) {
        let writers = self.listed_lanes().filter(|l| l.state == state::LANE_LIVE).count();
        let words = (0..limits::BITMAP_WORDS as u64).map(|w| self.field(topic_record::READERS + 8 * w));
        let readers = words.map(u64::count_ones).sum();
        let last = text(&self.inner.memory.files.broker, self.at + topic_record::LAST_LEFT, session_file::SENDER_BYTES);
        (writers, readers, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Region;
    use crate::sys::Mapping;

    fn memory(bytes: u64) -> Region {
        Region::new(Arc::new(Mapping::anonymous(bytes as usize).unwrap()))
    }

    #[test]
    fn a_text_of_another_process_can_be_printed() {
        let r = memory(4096);
        let read = |bytes: &[u8; 16]| {
            r.store(64, u64::from_le_bytes(*bytes.first_chunk().unwrap()));
            r.store(72, u64::from_le_bytes(*bytes.last_chunk().unwrap()));
            text(&r, 64, 16)
        };
        assert_eq!(read(b"trainer\0leftover"), "trainer");
        assert_eq!(read(b"sixteen letters!"), "sixteen letters!");
        assert_eq!(read(b"a\x1b[31m\xff\0........"), "a\u{fffd}[31m\u{fffd}");
    }
}
