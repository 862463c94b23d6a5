//! How much is kept for children that could not count it, and for how long.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::kept::{Array, end, live, look, looks, overwrite, sleeps};
use super::*;

/// While it lives, this process and its children may open no more files.
struct Full {
    before: Rlimit,
    files: Vec<std::fs::File>,
}

impl Full {
    fn new() -> Full {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..before }).unwrap();
        Full { before, files: std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect() }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).unwrap();
        self.files.clear();
    }
}

fn traces() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = files.filter_map(|f| std::fs::read_link(f.unwrap().path()).ok());
    links.filter(|l| l.to_string_lossy().contains("baton-fork")).count()
}

/// Makes many children that can open no file, and looks what they cost where the parent may open so many more.
fn many(files: usize) {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[4711; 1000]);
    let array = Array::of(&t);
    let pairs: Vec<_> = (0..20).map(|_| ends()).collect();
    let mut full = Full::new();
    let mut children = Vec::new();
    for (i, (_, there)) in pairs.iter().enumerate() {
        if i > 0 && i <= files {
            full.files.pop();
        }
        let t = t.clone();
        children.push(child(|| looks(array, t, there, Code::TooMany)));
    }
    drop(full);
    drop(t);
    let times = (1 + files).min(8);
    assert_eq!(traces(), times);
    let held = b.listed("storages");
    assert!(held.len() == 1 && held[0]["holders"].as_array().unwrap().len() == 1, "{held:?}");
    assert_eq!(held[0]["holders"][0]["count"], times);
    let mut children: Vec<_> = pairs.into_iter().map(|(here, _)| here).zip(children).collect();
    overwrite(&s);
    children.iter_mut().for_each(|(here, _)| look(here));
    let (mut last, child) = children.pop().unwrap();
    children.into_iter().for_each(|(mut here, child)| end(&mut here, child));
    s.collect();
    overwrite(&s);
    look(&mut last);
    end(&mut last, child);
    live(&s, 0);
    s.close();
    b.nothing_is_held();
}

#[test]
fn many_children_without_a_descriptor_keep_it_once() {
    many(0);
}

#[test]
fn many_children_keep_it_eight_times_at_most() {
    many(8);
}

#[test]
fn what_a_child_counted_is_not_kept_with_what_it_did_not() {
    let _alone = alone();
    let (Some(a), Some(mut b)) = (Broker::start(), Broker::start()) else { return };
    let (s, away) = (a.session(), b.session());
    let (t, u) = (made(&s, &[1, 2]), made(&away, &[4711; 1000]));
    let array = Array::of(&u);
    b.kill();
    let (mut here, there) = ends();
    // What is moved here the parent drops as soon as it has forked.
    let forked = child(move || {
        check!(is(&t, &[1, 2]));
        drop(t);
        looks(array, u, &there, Code::BrokerLost)
    });
    here.read_exact(&mut [0]).expect("the child saw something else");
    live(&s, 0);
    here.write_all(&[1]).unwrap();
    overwrite(&away);
    b.restart();
    away.queue("q").unwrap();
    overwrite(&away);
    end(&mut here, forked);
    live(&away, 0);
    a.nothing_is_held();
    b.nothing_is_held();
}

/// The parent ends before such a child: it is killed, or replaced by another program.
fn ends_first(by_exec: bool) {
    let _alone = alone();
    let Some(mut b) = Broker::start() else { return };
    let (mut ours, theirs) = ends();
    let (mut here, there) = ends();
    let address = b.address();
    let parent = child(move || {
        let s = ok!(Session::builder().address(address).connect());
        let t = made(&s, &[4711; 1000]);
        let array = Array::of(&t);
        ok!((&theirs).write_all(&[1]));
        ok!((&theirs).read_exact(&mut [0])); // the broker is killed
        child(move || looks(array, t, &there, Code::BrokerLost));
        ok!(s.queue("q")); // another is there
        ok!((&theirs).write_all(&[1]));
        ok!((&theirs).read_exact(&mut [0])); // until it is killed
        sleeps()
    });
    ours.read_exact(&mut [0]).unwrap();
    b.kill();
    ours.write_all(&[1]).unwrap();
    look(&mut here);
    b.restart();
    ours.read_exact(&mut [0]).unwrap();
    let other = b.session();
    let of_parent = || b.listed("sessions").into_iter().find(|s| s["pid"] == parent);
    if by_exec {
        ours.write_all(&[1]).unwrap();
        kit::until("another program runs", || of_parent().is_none_or(|s| s["state"] == "disconnected"));
    } else {
        ends_by_kill(parent);
        kit::until("its end is noted", || of_parent().is_none_or(|s| s["state"] == "closed"));
        assert_eq!(of_parent().map(|s| s["for_children"].clone()), Some(true.into()));
    }
    overwrite(&other);
    look(&mut here);
    overwrite(&other);
    here.read_exact(&mut [0]).expect("the child saw something else");
    assert!(of_parent().is_some(), "its refcounts stay for the child");
    here.write_all(&[0]).unwrap();
    kit::until("the parent's session is over", || of_parent().is_none());
    if by_exec {
        ends_by_kill(parent);
    }
    drop(other);
    b.nothing_is_held();
}

#[test]
fn the_broker_keeps_it_when_the_parent_is_killed_before_such_a_child() {
    ends_first(false);
}

#[test]
fn the_broker_keeps_it_when_the_parent_execs_before_such_a_child() {
    ends_first(true);
}

#[test]
fn a_parent_that_waits_no_longer_keeps_it_for_a_child_that_stands_still() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[4711; 1000]);
    let array = Array::of(&t);
    let (mut here, there) = ends();
    b.pause();
    let forks = Forked::here();
    let forked = std::thread::scope(|all| {
        all.spawn(|| {
            // SAFETY: the child is this process's, and was not waited for.
            assert_eq!(unsafe { kill(forks.child(), STOP) }, 0);
            b.go_on();
        });
        child(move || {
            check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
            // It may have counted, or have been too late.
            check!(t.to_vec::<u64>().map_or_else(|e| e.code() == Code::BrokerLost, |v| v == [4711; 1000]));
            check!(array.is(4711));
            Ok(())
        })
    });
    overwrite(&s); // the parent has dropped it
    // SAFETY: as above.
    assert_eq!(unsafe { kill(forked, CONT) }, 0);
    overwrite(&s);
    here.write_all(&[1]).unwrap();
    ends_well(forked);
    live(&s, 0);
    s.close();
    b.nothing_is_held();
}
