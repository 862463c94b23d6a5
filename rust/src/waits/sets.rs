//! In which wait sets of a topic this session is.
//!
//! A session has one bit in a set, whichever of its threads waits there. They are counted here, and the last one
//! takes the bit out. A poll loop and tasks wait for everything: they are in set 0 of each topic at which they
//! have looked and found nothing, and stay there, since nothing tells when they have ended. A sender that rings
//! them takes the bit out, and the next look that finds nothing sets it again.

use std::sync::{Mutex, MutexGuard};

use crate::shm::{Active, Bells, Waits, fence};

/// What a session has to do with the wait sets of a topic.
#[derive(Debug)]
pub(crate) struct Waiting {
    sets: Waits,
    active: Active,
    slot: u32,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    /// By set: how many wait there.
    threads: Vec<u32>,
    /// Whether a poll loop, or a task, does.
    watched: bool,
}

/// A set of a topic in which a thread waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    of: &'a Waiting,
    set: u32,
}

impl Waiting {
    pub(crate) fn new(bells: &Bells, topic: u32, slot: u32) -> Waiting {
        let sets = bells.waits(topic);
        Waiting { active: sets.active(), sets, slot, inside: Mutex::default() }
    }

    /// The lanes that have sent of late.
    pub(crate) fn active(&self) -> &Active {
        &self.active
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Where a thread waits that takes the messages of a group, which is named by its number; without one where all
    /// are rung.
    pub(crate) fn place(&self, group: Option<u32>) -> Place<'_> {
        Place { of: self, set: group.map_or(0, |g| 1 + g) }
    }

    /// Has a poll loop or a task notified of the next message. Whether that was not so before: then the caller
    /// looks once more.
    ///
    /// SYNC waiting: it has read the bell before it looked.
    pub(crate) fn watch(&self) -> bool {
        let mut inside = self.inside();
        if !std::mem::replace(&mut inside.watched, true) {
            *inside.threads_in(0) += 1;
        }
        let added = self.sets.all().add(self.slot);
        drop(inside);
        if added {
            fence();
        }
        added
    }

    /// Ends what `watch` began: the topic is left.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.inside.get_mut().unwrap_or_else(|p| p.into_inner()).watched) {
            self.place(None).leave();
        }
    }

    /// Rings the sessions that wait for a message of a topic with so many groups: all that wait alone, and one of each
    /// group, whose turn it is. The caller has published and then called [`fence`].
    ///
    /// SYNC waiting: pairs with `Place::enter` and `watch`.
    #[inline]
    pub(crate) fn ring(&self, groups: u32, turns: &mut Vec<u32>) {
        self.sets.all().ring();
        if groups > 0 {
            self.ring_groups(groups, turns);
        }
    }

    fn ring_groups(&self, groups: u32, turns: &mut Vec<u32>) {
        if turns.len() < groups as usize {
            turns.resize(groups as usize, self.slot);
        }
        (0..groups).zip(turns).for_each(|(g, last)| self.sets.group(g).ring_one(last));
    }

    /// Rings another member of a group: this session was perhaps rung for what it leaves.
    ///
    /// SYNC waiting: it is out of the set, so a sender that rings later rings another.
    #[cold]
    pub(crate) fn pass_on(&self, group: u32) {
        fence();
        self.sets.group(group).ring_one(&mut { self.slot });
    }
}

impl Inside {
    fn threads_in(&mut self, set: u32) -> &mut u32 {
        let set = set as usize;
        if self.threads.len() <= set {
            self.threads.resize(set + 1, 0);
        }
        &mut self.threads[set]
    }
}

impl Place<'_> {
    /// Notes that a thread is going to sleep, once more before each sleep: it may have been claimed since. The
    /// caller has read the bell, and looks once more afterwards.
    ///
    /// SYNC waiting: the bits, then the fence, then the second look; pairs with `Waiting::ring`.
    pub(crate) fn enter(self) {
        let mut inside = self.of.inside();
        *inside.threads_in(self.set) += 1;
        self.of.sets.set(self.set).add(self.of.slot);
        drop(inside);
        fence();
    }

    /// Notes that it does not sleep any more. It takes what it has waited for after this, and not before: else
    /// a sender would claim it, which looks no more, in the place of one that sleeps.
    pub(crate) fn leave(self) {
        let mut inside = self.of.inside();
        let threads = inside.threads_in(self.set);
        *threads -= 1;
        if *threads == 0 {
            self.of.sets.set(self.set).remove(self.of.slot);
        }
    }
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::layout::bell_file;
    use crate::shm::Region;
    use crate::sys::Mapping;

    const SLOT: u32 = 7;

    fn waiting() -> (Waiting, Bells) {
        let bells = Bells::new(Region::new(Arc::new(Mapping::anonymous(bell_file::BYTES as usize).unwrap())));
        (Waiting::new(&bells, 3, SLOT), bells)
    }

    /// How often the session is rung by one message of a topic with so many groups.
    fn rings(w: &Waiting, bells: &Bells, groups: u32) -> u32 {
        let before = bells.parking(SLOT).bell();
        w.ring(groups, &mut Vec::new());
        bells.parking(SLOT).bell() - before
    }

    #[test]
    fn a_session_is_rung_while_any_of_its_threads_waits() {
        let (w, bells) = waiting();
        for group in [None, Some(1)] {
            let place = w.place(group);
            place.enter();
            place.enter();
            place.leave();
            assert_eq!(rings(&w, &bells, 2), 1, "{group:?}: the other one waits");
            assert_eq!(rings(&w, &bells, 2), 0, "{group:?}: it was claimed");
            place.enter();
            place.leave();
            place.leave();
            assert_eq!(rings(&w, &bells, 2), 0, "{group:?}: no session waits");
        }
    }

    #[test]
    fn what_is_watched_is_rung_until_the_topic_is_left() {
        let (mut w, bells) = waiting();
        assert!(w.watch() && !w.watch());
        w.place(None).enter();
        w.place(None).leave();
        assert_eq!((rings(&w, &bells, 0), rings(&w, &bells, 0)), (1, 0));
        assert!(w.watch(), "it was claimed");
        w.end();
        assert_eq!(rings(&w, &bells, 0), 0);
    }

    #[test]
    fn what_a_member_leaves_is_another_ones() {
        let (w, bells) = waiting();
        w.place(Some(0)).enter();
        let other = Waiting::new(&bells, 3, SLOT + 1);
        other.pass_on(0);
        assert_eq!(bells.parking(SLOT).bell(), 1);
    }
}
