//! What a child has that could not count what it inherited: an error at each call, and the memory as it was.

use super::*;

/// A pointer into a tensor, as an array of another library has one.
#[derive(Clone, Copy)]
pub(super) struct Array(*const u64);

impl Array {
    pub(super) fn of(t: &Tensor) -> Array {
        // SAFETY: nothing writes the elements; the slice ends here.
        Array(unsafe { t.as_slice::<u64>() }.unwrap().as_ptr())
    }

    pub(super) fn is(self, value: u64) -> bool {
        // SAFETY: the tensor has that many elements, and stays mapped in each process that calls this.
        (0..1000).all(|i| unsafe { self.0.add(i).read_volatile() } == value)
    }
}

/// Allocates and writes, so that what was let go of is used again.
pub(super) fn overwrite(s: &Session) {
    for i in 0..20 {
        drop(made(s, &[i; 1000]));
    }
}

pub(super) fn live(s: &Session, n: u64) {
    kit::until("so much is held", || {
        s.collect();
        s.stats().pool.live == n
    });
}

/// A child that looks at an array whenever it is told, until it is told to end; the tensor itself says why it is
/// not had.
pub(super) fn looks(array: Array, t: Tensor, mut there: &UnixStream, why: Code) -> Seen {
    check!(t.to_vec::<u64>().is_err_and(|e| e.code() == why));
    drop(t); // arrays stay
    let mut told = [1];
    while told[0] == 1 {
        check!(array.is(4711));
        ok!(there.write_all(&[1]));
        ok!(there.read_exact(&mut told));
    }
    Ok(())
}

pub(super) fn look(here: &mut UnixStream) {
    here.read_exact(&mut [0]).expect("the child saw something else");
    here.write_all(&[1]).unwrap();
}

pub(super) fn end(here: &mut UnixStream, child: i32) {
    here.read_exact(&mut [0]).expect("the child saw something else");
    here.write_all(&[0]).unwrap();
    ends_well(child);
}

/// Forks while `away`, and lets go of what the child inherited, which is to look at it.
fn forks(s: &Session, away: impl FnOnce()) -> (UnixStream, i32) {
    let t = made(s, &[4711; 1000]);
    let array = Array::of(&t);
    away();
    let (here, there) = ends();
    let theirs = t.clone();
    (here, child(move || looks(array, theirs, &there, Code::BrokerLost)))
}

/// The child looks at what it inherited while the broker is `away`, and when it is `back`.
fn kept(away: impl FnOnce(&mut Broker), back: impl FnOnce(&mut Broker)) {
    let _alone = alone();
    let Some(mut b) = Broker::start() else { return };
    let s = b.session();
    let (mut here, forked) = forks(&s, || away(&mut b));
    overwrite(&s);
    look(&mut here);
    back(&mut b);
    let queue = s.queue("q").unwrap(); // the broker is there again
    overwrite(&s);
    look(&mut here);
    live(&s, 1);
    end(&mut here, forked);
    live(&s, 0);
    drop(queue);
    s.close();
    b.nothing_is_held();
}

#[test]
fn without_a_broker_arrays_of_a_child_stay_as_they_were() {
    kept(Broker::kill, Broker::restart);
}

#[test]
fn while_the_broker_stands_still_arrays_of_a_child_stay_as_they_were() {
    kept(|b| b.pause(), |b| b.go_on());
}

#[test]
fn an_evicted_session_keeps_it_for_such_a_child_no_longer_than_that_lives() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let (mut here, forked) = forks(&s, || b.pause());
    look(&mut here);
    b.go_on();
    s.queue("q").unwrap();
    b.tool(&["evict", &b.listed("sessions")[0]["serial"].to_string(), "--yes"]);
    kit::until("the session is lost", || s.queue("other").is_err());
    look(&mut here);
    assert_eq!(b.listed("sessions").len(), 1, "its refcounts count for the child");
    end(&mut here, forked);
    kit::until("the session is over", || b.listed("sessions").is_empty());
    s.close();
    b.nothing_is_held();
}

#[test]
fn what_such_a_child_forks_keeps_it_too() {
    let _alone = alone();
    let Some(mut b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[4711; 1000]);
    let array = Array::of(&t);
    b.kill();
    let (mut here, there) = ends();
    let theirs = t.clone();
    ends_well(child(move || {
        // It has none of the descriptors any more that it inherited, but for this one, and execs nothing.
        child(move || looks(array, theirs, &there, Code::BrokerLost));
        Ok(())
    }));
    drop(t);
    b.restart();
    s.queue("q").unwrap();
    s.collect();
    overwrite(&s);
    look(&mut here);
    live(&s, 1);
    here.read_exact(&mut [0]).unwrap();
    here.write_all(&[0]).unwrap();
    live(&s, 0);
    s.close();
    b.nothing_is_held();
}

#[test]
fn a_closed_session_keeps_it_for_such_a_child() {
    let _alone = alone();
    let Some(mut b) = Broker::start() else { return };
    let s = b.session();
    let (mut here, forked) = forks(&s, || b.kill());
    s.close();
    b.restart();
    let other = b.session();
    overwrite(&other);
    look(&mut here);
    overwrite(&other);
    end(&mut here, forked);
    drop(other);
    b.nothing_is_held();
}

#[test]
fn nothing_is_kept_for_a_child_that_execs_or_has_ended() {
    let _alone = alone();
    let Some(mut b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[1]);
    b.kill();
    let children: Vec<_> = (0..2).map(|i| if i == 0 { child(|| Ok(())) } else { child(sleeps) }).collect();
    drop(t);
    b.restart();
    s.queue("q").unwrap();
    live(&s, 0);
    ends_well(children[0]);
    ends_by_kill(children[1]);
}

/// Replaces this program by one that does nothing for a while.
pub(super) fn sleeps() -> Seen {
    use std::os::unix::process::CommandExt;
    let _ = std::process::Command::new("sleep").arg("100").exec();
    Err(line!())
}

#[test]
fn the_next_child_inherits_nothing_that_is_kept_for_another() {
    let _alone = alone();
    let Some(mut b) = Broker::start() else { return };
    let s = b.session();
    let u = made(&s, &[7]);
    let (mut here, first) = forks(&s, || b.kill());
    b.restart();
    s.queue("q").unwrap();
    let (mut ours, there) = ends();
    let second = child(move || {
        check!(is(&u, &[7]));
        drop(u);
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        Ok(())
    });
    look(&mut here);
    end(&mut here, first);
    live(&s, 0); // the second child lives, and counts neither
    ours.write_all(&[1]).unwrap();
    ends_well(second);
    s.close();
    b.nothing_is_held();
}
