//! Forks of a closed session, without a broker, unknown to the C library, or cut short.

use std::panic::AssertUnwindSafe;

use super::*;

#[test]
fn a_closed_session_is_closed_in_children() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[1]);
    s.end();
    let theirs = (s.clone(), t.clone());
    ends_well(child(move || {
        let (s, t) = theirs;
        check!(s.is_ended() && s.alloc::<u8>(&[1]).is_err_and(|e| e.code() == Code::Closed));
        drop((s, t));
        Ok(())
    }));
    let s = b.session();
    let theirs = s.clone();
    ends_well(child(move || {
        ok!(theirs.topic("t"));
        theirs.end();
        check!(theirs.is_ended() && theirs.topic("t").is_err_and(|e| e.code() == Code::Closed));
        Ok(())
    }));
    s.topic("t").unwrap(); // the parent's goes on
}

#[test]
fn a_child_has_what_was_left_of_a_closed_session() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let (mut ours, mut theirs) = ends();
    let s = b.session();
    let (t, closed) = (made(&s, &[1, 2]), s.clone());
    s.close();
    let (next, inherited) = (b.session(), t.clone());
    let u = made(&next, &[3, 4]);
    let of_next = u.clone();
    next.close();
    let forked = child(move || {
        check!(closed.alloc::<u8>(&[1]).unwrap_err().code() == Code::Closed);
        ok!(theirs.read_exact(&mut [0])); // the parent holds nothing any more
        check!(is(&inherited, &[1, 2]) && is(&of_next, &[3, 4]));
        Ok(())
    });
    drop((t, u));
    let other = b.session();
    for i in 0..100 {
        drop(made(&other, &[i, i]));
    }
    ours.write_all(&[1]).unwrap();
    ends_well(forked);
    drop(other);
    b.nothing_is_held();
}

#[test]
fn a_raw_fork_is_refused() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &keep_nothing()).unwrap();
    let mut reader = topic.reader(Start::New).unwrap();
    let t = made(&s, &[7, 8]);
    let mut x = s.from_slice(&[2], &[9u64, 10]).unwrap();
    let theirs = (s.clone(), topic.clone(), t.clone(), b.address());
    // A child must not print: see `Seen`.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let child_of = &mut x;
    let forked = raw_child(move || {
        let (s, topic, t, address) = theirs;
        check!(std::panic::catch_unwind(AssertUnwindSafe(|| child_of[0])).is_err());
        check!(std::panic::catch_unwind(AssertUnwindSafe(|| child_of.fill(0))).is_err());
        let refused =
            |e: Option<baton::Error>| e.is_some_and(|e| e.code() == Code::Closed && e.message().contains("forked"));
        check!(refused(s.alloc::<u8>(&[1]).err()) && s.is_ended());
        check!(refused(topic.send(&t).err()) && refused(reader.try_recv().err()) && refused(s.set("n", &t).err()));
        check!(refused(t.to_vec::<u64>().err()));
        drop((reader, t, topic, s));
        // It may open a session here, and that is inherited as any.
        let s = ok!(Session::builder().address(address).connect());
        let t = ok!(s.from_slice(&[1], &[1u64])).freeze();
        check!(end_of(child(|| if is(&t, &[1]) { Ok(()) } else { Err(line!()) })) == 0);
        Ok(())
    });
    std::panic::set_hook(hook);
    ends_well(forked);
    assert!(is(&t, &[7, 8]) && x[..] == [9, 10]);
    drop((topic, t, x));
    s.close();
    b.nothing_is_held();
}

#[test]
fn without_a_broker_fork_goes_on_and_the_child_is_told() {
    let _alone = alone();
    let Some(mut b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[7, 8]);
    let lost = |t: &Tensor, s: &Session| -> Seen {
        let seen = t.to_vec::<u64>();
        check!(seen.is_err_and(|e| e.code() == Code::BrokerLost));
        check!(s.topic("t").is_ok());
        check!(s.topic("t").is_ok_and(|topic| topic.send(t).is_err_and(|e| e.code() == Code::BrokerLost)));
        Ok(())
    };
    b.pause();
    let began = Instant::now();
    let (mut here, there) = ends();
    let theirs = (t.clone(), s.clone());
    let waits = child(move || {
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        lost(&theirs.0, &theirs.1)?;
        // Its own session has taken the place of the inherited one, and counts.
        let own = ok!(theirs.1.from_slice(&[1], &[9u64])).freeze();
        let grandchild = child(move || {
            check!(is(&own, &[9]));
            lost(&theirs.0, &theirs.1)
        });
        check!(end_of(grandchild) == 0);
        Ok(())
    });
    assert!(began.elapsed() >= Duration::from_secs(1), "it waits a while for the broker");
    // The child has given up, too: an answer that comes before it looks would still serve it.
    here.read_exact(&mut [0]).unwrap();
    b.go_on();
    here.write_all(&[1]).unwrap();
    ends_well(waits);
    b.child.kill().unwrap();
    b.child.wait().unwrap();
    let theirs = t.clone();
    ends_well(child(move || {
        check!(theirs.to_vec::<u64>().is_err_and(|e| e.code() == Code::BrokerLost));
        Ok(())
    }));
    assert!(is(&t, &[7, 8]), "the parent's is where it was");
}

#[test]
fn a_broker_that_stands_still_for_a_while_is_waited_for() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[7, 8]);
    b.pause();
    let (mut here, there) = ends();
    let forked = Forked::here();
    std::thread::scope(|all| {
        all.spawn(|| {
            forked.child();
            b.go_on();
        });
        let theirs = t.clone();
        let forked = child(move || {
            check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
            check!(is(&theirs, &[7, 8]));
            Ok(())
        });
        drop(t);
        here.write_all(&[1]).unwrap();
        ends_well(forked);
    });
    drop(s);
    b.nothing_is_held();
}

/// A program that forks only to run another one would wait as long.
#[test]
fn a_broker_that_stays_suspended_is_not_waited_for() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[7, 8]);
    b.pause();
    let theirs = t.clone();
    let why = |e: baton::Error| e.code() == Code::BrokerLost && e.message().ends_with("the broker is suspended");
    ends_well(child(move || {
        check!(theirs.to_vec::<u64>().is_err_and(why));
        Ok(())
    }));
    b.go_on();
    drop((t, s));
    b.nothing_is_held();
}

/// A process that holds a tensor and forks, killed after so many microseconds, or not in time. What the
/// child saw, if it came back from fork: 0: all was there; 1: it was told that it is gone; 2: other bytes.
fn killed_in_fork(b: &Broker, after: Duration) -> Option<u8> {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let parent = child(|| {
        let s = b.session();
        let t = made(&s, &[4711; 1000]);
        ok!(theirs.write_all(b"r"));
        let _ = child(|| {
            let told = t.to_vec::<u64>().is_err();
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until && !told {
                let changed = !is(&t, &[4711; 1000]);
                if changed {
                    ok!(theirs.write_all(&[2]));
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            ok!(theirs.write_all(&[u8::from(told)]));
            Ok(())
        });
        std::thread::sleep(PATIENCE);
        Ok(())
    });
    drop(theirs);
    let mut byte = [0];
    ours.read_exact(&mut byte).unwrap();
    std::thread::sleep(after);
    ends_by_kill(parent);
    let mut said = Vec::new();
    ours.read_to_end(&mut said).unwrap();
    said.first().copied()
}

#[test]
fn a_child_whose_parent_is_killed_in_fork_has_what_it_inherited() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let rounds = std::env::var("BATON_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40u64);
    let mut seen = [0; 4];
    for round in 0..rounds {
        let saw = killed_in_fork(&b, Duration::from_micros(round * 97 % 3000));
        seen[saw.map_or(3, usize::from)] += 1;
    }
    println!("all there {}, gone and told {}, changed {}, no child {}", seen[0], seen[1], seen[2], seen[3]);
    assert_eq!((seen[1], seen[2]), (0, 0), "gone and told, changed");
    assert!(seen[0] > 0);
    b.nothing_is_held();
}

#[test]
fn a_child_may_stand_still_while_its_parent_dies() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let (mut ours, mut theirs) = ends();
    let mut heard = theirs.try_clone().unwrap();
    let parent = child(|| {
        let s = b.session();
        let t = made(&s, &[4711; 1000]);
        ok!(theirs.write_all(b"r"));
        ok!(heard.read_exact(&mut [0])); // the broker is suspended
        let _ = child(|| {
            ok!(theirs.write_all(&[u8::from(is(&t, &[4711; 1000]))]));
            check!(heard.read(&mut [0]).is_ok_and(|n| n == 1));
            ok!(theirs.write_all(&[u8::from(is(&t, &[4711; 1000]))]));
            Ok(())
        });
        Ok(())
    });
    ours.read_exact(&mut [0]).unwrap();
    b.pause();
    ours.write_all(b"g").unwrap();
    let children = format!("/proc/{parent}/task/{parent}/children");
    let mut heir = None;
    kit::until("the parent forks", || {
        heir = std::fs::read_to_string(&children).ok().and_then(|c| c.trim().parse::<i32>().ok());
        heir.is_some()
    });
    let (forked, heir) = (Instant::now(), heir.unwrap());
    // SAFETY: it is suspended until it is told to go on, with its hello said or not.
    assert_eq!(unsafe { kill(heir, STOP) }, 0);
    ends_by_kill(parent);
    let long = Duration::from_millis(3100); // more than a child has of whose parent there is no file
    kit::until("a long time has passed", || forked.elapsed() > long);
    b.go_on();
    let mut of_parent = Vec::new();
    kit::until("the broker has seen the end of the parent", || {
        of_parent = b.listed("sessions").into_iter().filter(|s| s["pid"] == parent).collect();
        of_parent.iter().all(|s| s["state"] == "closed")
    });
    assert_eq!(of_parent.len(), 1, "its refcounts stay for the child");
    // SAFETY: its parent is dead, it was not killed, and it has not ended.
    assert_eq!(unsafe { kill(heir, CONT) }, 0);
    let mut said = [0];
    ours.read_exact(&mut said).unwrap();
    assert_eq!(said[0], 1, "the child has what it inherited");
    kit::until("the parent's session is over", || b.listed("sessions").iter().all(|s| s["pid"] != parent));
    let other = b.session();
    (0..100).for_each(|i| drop(made(&other, &[i; 1000])));
    ours.write_all(b"g").unwrap();
    ours.read_exact(&mut said).unwrap();
    assert_eq!(said[0], 1, "and keeps it");
    drop(other);
    b.nothing_is_held();
}
