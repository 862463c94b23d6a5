//! Children made by fork, which inherit sessions, tensors and readers that are not theirs.

mod kit;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton::{Code, Session, Start, TopicOptions};
use kit::Broker;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

/// Runs a closure in a child and returns its status. The closure must not panic: another thread of the
/// parent may have held the lock of standard error.
fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the C library makes its own locks usable in the child; of this program's others the
    // closures touch those of the crate only, which is what is tested.
    match unsafe { fork() } {
        0 => {
            let status = f();
            // SAFETY: it ends the child without running what belongs to the parent.
            unsafe { _exit(status) }
        }
        child => {
            let mut status = -1;
            // SAFETY: the child is this thread's, and the status is its own.
            assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
            assert_eq!(status & 0x7f, 0, "the child was killed by signal {}", status & 0x7f);
            status >> 8
        }
    }
}

/// What a child does that has nothing of its parent's.
fn on_its_own(address: &str) -> baton::Result<bool> {
    let s = Session::builder().address(address).connect()?;
    let topic = s.topic_with("", &TopicOptions::default().linger(Duration::ZERO))?;
    let mut r = topic.reader(Start::New)?;
    topic.send(s.from_slice(&[3], &[1u64, 2, 3])?.freeze())?;
    Ok(r.recv(Duration::from_secs(30))?.tensor()?.to_vec::<u64>()? == [1, 2, 3])
}

#[test]
fn a_child_is_refused_its_parents_session_and_opens_its_own() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &TopicOptions::default().linger(Duration::ZERO)).unwrap();
    let mut reader = topic.reader(Start::New).unwrap();
    topic.send(s.from_slice(&[2], &[7u64, 8]).unwrap().freeze()).unwrap();
    let m = reader.recv(Duration::from_secs(30)).unwrap();
    let t = m.tensor().unwrap();
    let (address, mine) = (b.address(), s.clone());
    let left = (t.clone(), topic.clone());
    let status = in_child(move || {
        let clear =
            |e: Option<baton::Error>| e.is_some_and(|e| e.code() == Code::Closed && e.message().contains("forked"));
        if !clear(mine.alloc::<u8>(&[1]).err()) {
            return 1;
        }
        if !clear(left.1.send(left.0.clone()).err())
            || !clear(reader.try_recv().err())
            || !clear(mine.set("n", &left.0).err())
        {
            return 2;
        }
        if left.0.to_vec::<u64>().is_ok_and(|v| v != [7, 8]) {
            return 3;
        }
        drop((left, reader, m, mine));
        if on_its_own(&address).is_ok_and(|whole| whole) { 0 } else { 4 }
    });
    assert_eq!(status, 0);
    // What the child has dropped is still the parent's.
    assert_eq!(t.to_vec::<u64>().unwrap(), [7, 8]);
    let mut reader = topic.reader(Start::New).unwrap();
    topic.send(&t).unwrap();
    assert_eq!(reader.recv(Duration::from_secs(30)).unwrap().tensor().unwrap().to_vec::<u64>().unwrap(), [7, 8]);
    drop((reader, topic, t));
    s.close();
    b.nothing_is_held();
}

#[test]
fn children_of_a_busy_process_do_not_hang() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &TopicOptions::default().linger(Duration::ZERO)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut reader = topic.reader(Start::New).unwrap();
                while !over.load(Ordering::Relaxed) {
                    topic.send(s.alloc::<u64>(&[100]).unwrap().freeze()).unwrap();
                    drop(reader.try_recv().unwrap());
                }
            });
        }
        let forking: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let t = s.from_slice(&[2], &[7u64, 8]).unwrap().freeze();
                        let (address, theirs) = (b.address(), (t.clone(), s.clone(), topic.clone()));
                        let status = in_child(move || {
                            drop(theirs);
                            if on_its_own(&address).is_ok_and(|whole| whole) { 0 } else { 1 }
                        });
                        assert_eq!(status, 0);
                        assert_eq!(t.to_vec::<u64>().unwrap(), [7, 8]);
                    }
                })
            })
            .collect();
        let done: Vec<_> = forking.into_iter().map(|f| f.join()).collect();
        over.store(true, Ordering::Relaxed);
        done.into_iter().for_each(|d| d.unwrap());
    });
    drop(topic);
    s.close();
    b.nothing_is_held();
}
