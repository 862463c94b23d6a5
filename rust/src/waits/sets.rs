//! In which wait sets of a topic this session is.
//!
//! A session has one bit in a set, whichever of its threads waits there. They are counted here, and the last one
//! takes the bit out. A poll loop and tasks wait for everything: they are in set 0 of each topic at which they
//! have looked and found nothing, and stay there, since nothing tells when they have ended. A sender that rings
//! them takes the bit out, and the next look that finds nothing sets it again.
//!
//! That the bit is out while threads wait says that a message came there: the [`Hub`](super::hub::Hub) tells the threads
//! that it lists. Whichever thread finds the bit missing notes so, as it sets it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::shm::{Active, Bells, Missing, Waits, fence};
use crate::sync::{Mutex, MutexGuard};

/// What a session has to do with the wait sets of a topic.
#[derive(Debug)]
pub(crate) struct Waiting {
    sets: Waits,
    active: Active,
    slot: u32,
    inside: Arc<Inside>,
    /// Whether a poll loop, or a task, waits. It is counted in set 0.
    watched: AtomicBool,
}

/// The sets of a topic, and the threads of the session in each.
#[derive(Debug)]
struct Inside {
    sets: Waits,
    slot: u32,
    threads: Mutex<Vec<Threads>>,
}

/// The threads in a set.
#[derive(Debug, Default, Clone, Copy)]
struct Threads {
    all: u32,
    /// Of them: those that the hub lists.
    listed: u32,
    /// A message came while the hub had some listed, and it does not know so yet.
    rung: bool,
    /// The bit was missing and set again since the poll loop, or a task, looked: it is to look once more.
    again: bool,
}

/// A set of a topic in which a thread waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    of: &'a Arc<Inside>,
    set: u32,
}

/// A set in which a thread waits that the hub lists.
#[derive(Debug, Clone)]
pub(super) struct ListedPlace {
    of: Arc<Inside>,
    set: u32,
}

impl PartialEq for ListedPlace {
    fn eq(&self, other: &ListedPlace) -> bool {
        self.set == other.set && Arc::ptr_eq(&self.of, &other.of)
    }
}

impl Waiting {
    pub(crate) fn new(bells: &Bells, topic: u32, slot: u32) -> Waiting {
        let sets = bells.waits(topic);
        let inside = Inside { sets: bells.waits(topic), slot, threads: Mutex::new(Vec::new()) };
        Waiting { active: sets.active(), sets, slot, inside: Arc::new(inside), watched: AtomicBool::new(false) }
    }

    /// The lanes that have sent of late.
    pub(crate) fn active(&self) -> &Active {
        &self.active
    }

    /// Where a thread waits that takes the messages of a group, which is named by its number; without one where all
    /// are rung.
    pub(crate) fn place(&self, group: Option<u32>) -> Place<'_> {
        Place { of: &self.inside, set: group.map_or(0, |g| 1 + g) }
    }

    /// Has a poll loop or a task notified of the next message. Whether that was not so before: then the caller
    /// looks once more.
    ///
    /// SYNC waiting: it has read the bell before it looked.
    pub(crate) fn watch(&self) -> bool {
        let mut threads = self.inside.threads();
        if !self.watched.swap(true, Ordering::Relaxed) {
            of_set(&mut threads, 0).all += 1;
        }
        let missing = self.inside.announce(&mut threads, 0);
        let again = std::mem::take(&mut of_set(&mut threads, 0).again);
        drop(threads);
        let added = missing.word || again;
        if added {
            fence();
        }
        added
    }

    /// Ends what `watch` began: the topic is left.
    pub(crate) fn end(&mut self) {
        if std::mem::take(self.watched.get_mut()) {
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

/// The threads in a set, by its number.
fn of_set(threads: &mut Vec<Threads>, set: u32) -> &mut Threads {
    let set = set as usize;
    if threads.len() <= set {
        threads.resize(set + 1, Threads::default());
    }
    &mut threads[set]
}

impl Inside {
    fn threads(&self) -> MutexGuard<'_, Vec<Threads>> {
        self.threads.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Sets the session's bit in a set. What was missing: a bit that was claimed while threads wait there that the hub
    /// lists is noted.
    fn announce(&self, threads: &mut Vec<Threads>, set: u32) -> Missing {
        let missing = self.sets.set(set).add(self.slot);
        let threads = of_set(threads, set);
        threads.rung |= missing.member && threads.listed > 0;
        threads.again |= missing.member;
        missing
    }
}

impl Place<'_> {
    /// Notes that a thread is going to sleep, once more before each sleep: it may have been claimed since. The
    /// caller has read the bell, and looks once more afterwards.
    ///
    /// SYNC waiting: the bits, then the fence, then the second look; pairs with `Waiting::ring`.
    pub(crate) fn enter(self) {
        let mut threads = self.of.threads();
        of_set(&mut threads, self.set).all += 1;
        self.of.announce(&mut threads, self.set);
        drop(threads);
        fence();
    }

    /// Notes that it does not sleep any more. It takes what it has waited for after this, and not before: else
    /// a sender would claim it, which looks no more, in the place of one that sleeps.
    pub(crate) fn leave(self) {
        let mut threads = self.of.threads();
        let left = of_set(&mut threads, self.set);
        left.all -= 1;
        if left.all == 0 {
            self.of.sets.set(self.set).remove(self.of.slot);
        }
    }

    /// As `enter`, for a thread that the hub lists. The caller fences.
    pub(super) fn list(self) -> ListedPlace {
        let mut threads = self.of.threads();
        self.of.announce(&mut threads, self.set); // before it is listed itself: what was claimed is the others'
        let listed = of_set(&mut threads, self.set);
        listed.all += 1;
        listed.listed += 1;
        drop(threads);
        ListedPlace { of: self.of.clone(), set: self.set }
    }
}

impl ListedPlace {
    pub(super) fn is(&self, place: &Place<'_>) -> bool {
        self.set == place.set && Arc::ptr_eq(&self.of, place.of)
    }

    /// Whether each message is for all that wait here; else for one of them.
    pub(super) fn is_for_all(&self) -> bool {
        self.set == 0
    }

    /// Whether a message came, which `take_rung` or `leave` will say.
    pub(super) fn is_rung(&self) -> bool {
        let mut threads = self.of.threads();
        of_set(&mut threads, self.set).rung || !self.of.sets.set(self.set).has(self.of.slot)
    }

    /// Whether a message came since this was last asked, of this place by any thread. The session is in the set again:
    /// the caller fences before others look.
    pub(super) fn take_rung(&self) -> bool {
        let mut threads = self.of.threads();
        self.of.announce(&mut threads, self.set);
        std::mem::take(&mut of_set(&mut threads, self.set).rung)
    }

    /// As `Place::leave`. Whether a message came, as `take_rung` says.
    pub(super) fn leave(&self) -> bool {
        let mut threads = self.of.threads();
        let alone = of_set(&mut threads, self.set).all == 1;
        let claimed = if alone {
            !self.of.sets.set(self.set).remove(self.of.slot)
        } else {
            self.of.announce(&mut threads, self.set);
            false
        };
        let left = of_set(&mut threads, self.set);
        left.all -= 1;
        left.listed -= 1;
        std::mem::take(&mut left.rung) || claimed
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
