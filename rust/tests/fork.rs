//! Children made by fork: they use what they inherited in a session of their own.

mod kit;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use baton::{Code, QueueOptions, Session, Start, Tensor, TopicOptions};
use kit::Broker;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn alarm(seconds: u32) -> u32;
    fn kill(pid: i32, signal: i32) -> i32;
    fn _exit(status: i32) -> !;
    fn syscall(number: i64, ...) -> i64;
}

/// One test at a time: a child inherits what all threads of the process hold.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|p| p.into_inner())
}

const PATIENCE: Duration = Duration::from_secs(90);

/// What went wrong in a child: the line where it was seen. A child must not panic: another thread of the
/// parent may have held the lock of standard error.
type Seen = Result<(), u32>;

macro_rules! check {
    ($ok:expr) => {
        if !$ok {
            return Err(line!());
        }
    };
}

macro_rules! ok {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(_) => return Err(line!()),
        }
    };
}

/// Runs a closure in a child. Its status is the line modulo 256, and 0 when all was well.
fn child(f: impl FnOnce() -> Seen) -> i32 {
    // SAFETY: the C library makes its own locks usable in the child; of this program's others the
    // closures touch those of the crate only, which is what is tested.
    run(unsafe { fork() }, f)
}

/// As `child`, by a fork that the C library does not hear of.
fn raw_child(f: impl FnOnce() -> Seen) -> i32 {
    const CLONE: i64 = if cfg!(target_arch = "x86_64") { 56 } else { 220 };
    const SIGCHLD: i64 = 17;
    // SAFETY: without CLONE_VM it is a fork.
    run(unsafe { syscall(CLONE, SIGCHLD, 0, 0, 0, 0) } as i32, f)
}

fn run(forked: i32, f: impl FnOnce() -> Seen) -> i32 {
    assert!(forked >= 0, "fork failed");
    if forked > 0 {
        return forked;
    }
    // SAFETY: what hangs is killed by SIGALRM, which `end_of` tells.
    unsafe { alarm(2 * PATIENCE.as_secs() as u32) };
    let status = f().map_or_else(|line| (line % 255 + 1) as i32, |()| 0);
    // SAFETY: it ends the child without running what belongs to the parent.
    unsafe { _exit(status) }
}

/// Waits for the end of a child, which must have found all well.
fn ends_well(child: i32) {
    assert_eq!(end_of(child), 0, "line (modulo 255, plus 1) at which the child saw something else");
}

fn end_of(child: i32) -> i32 {
    let mut status = -1;
    // SAFETY: the child is this process's, and the status is its own.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status & 0x7f, 0, "the child was killed by signal {}", status & 0x7f);
    status >> 8
}

/// Two ends of a connection. A child of a test that fails does not wait for ever.
fn ends() -> (UnixStream, UnixStream) {
    let both = UnixStream::pair().unwrap();
    both.1.set_read_timeout(Some(PATIENCE)).unwrap();
    both
}

fn keep_nothing() -> TopicOptions {
    TopicOptions::default().linger(Duration::ZERO)
}

fn made(s: &Session, values: &[u64]) -> Tensor {
    s.from_slice(&[values.len() as i64], values).unwrap().freeze()
}

fn is(t: &Tensor, values: &[u64]) -> bool {
    t.to_vec::<u64>().is_ok_and(|v| v == values)
}

#[test]
fn a_child_uses_all_that_it_inherited() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &keep_nothing()).unwrap();
    let queue = s.queue("q").unwrap();
    let mut reader = topic.reader(Start::New).unwrap();
    topic.send(made(&s, &[7, 8])).unwrap();
    topic.send(made(&s, &[9, 10])).unwrap();
    let m = reader.recv(PATIENCE).unwrap();
    let t = m.tensor().unwrap();
    let (parent, theirs) = (s.serial(), (s.clone(), topic.clone(), queue.clone(), t.clone()));
    ends_well(child(move || {
        let (s, topic, queue, t) = theirs;
        check!(is(&t, &[7, 8]) && is(&ok!(m.tensor()), &[7, 8]));
        check!(s.serial() != parent && s.serial() != 0 && !s.is_ended());
        // The reader goes on where the parent's was.
        check!(is(&ok!(ok!(reader.recv(PATIENCE)).tensor()), &[9, 10]));
        // What is sent is held by the child's lane, in place.
        ok!(topic.send(&t));
        check!(is(&ok!(ok!(reader.recv(PATIENCE)).tensor()), &[7, 8]));
        ok!(queue.put(&t, PATIENCE));
        ok!(queue.put(ok!(s.from_slice(&[1], &[1u64])).freeze(), PATIENCE));
        check!(is(&ok!(ok!(queue.get(PATIENCE)).tensor()), &[7, 8]));
        ok!(s.set("n", &t));
        let handle = ok!(t.handle(baton::Lease::default()));
        check!(is(&ok!(s.open(&handle)), &[7, 8]));
        check!(t.holders().iter().any(|h| h.pid == std::process::id()));
        ok!(s.release_handle(&handle));
        drop((reader, m, t, topic));
        Ok(())
    }));
    // What the child has dropped is still the parent's.
    assert!(is(&t, &[7, 8]));
    assert_eq!(s.get("n", PATIENCE).unwrap().first().unwrap().to_vec::<u64>().unwrap(), [7, 8]);
    assert!(is(&queue.get(PATIENCE).unwrap().tensor().unwrap(), &[1]));
    s.delete("n").unwrap();
    drop((topic, queue, t));
    s.close();
    b.nothing_is_held();
}

#[test]
fn what_a_child_inherited_outlives_the_parent() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let queue = s.queue("q").unwrap();
    let (mut here, there) = ends();
    let address = b.address();
    let dies = child(move || {
        let s = ok!(Session::builder().address(address).connect());
        let queue = ok!(s.queue("q"));
        let t = ok!(s.from_slice(&[2], &[3u64, 4])).freeze();
        let heir = child(move || {
            // Until the other end is told that the parent is dead, and says so.
            check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
            check!(is(&t, &[3, 4]));
            ok!(queue.put(&t, PATIENCE));
            ok!(queue.put(ok!(s.from_slice(&[1], &[5u64])).freeze(), PATIENCE));
            drop(t);
            check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
            Ok(())
        });
        // SAFETY: the child is this process's; nothing of this process is dropped in order.
        unsafe { if heir > 0 { _exit(0) } else { Err(line!()) } }
    });
    ends_well(dies);
    kit::until("the parent's session is over", || b.listed("sessions").iter().all(|s| s["pid"] != dies));
    assert_eq!(b.listed("storages").len(), 1, "what the heir holds");
    here.write_all(&[1]).unwrap();
    let t = queue.get(PATIENCE).unwrap().into_tensor().unwrap();
    assert!(is(&t, &[3, 4]));
    assert!(is(&queue.get(PATIENCE).unwrap().tensor().unwrap(), &[5]));
    here.write_all(&[1]).unwrap();
    drop((t, queue));
    s.close();
    b.nothing_is_held();
}

#[test]
fn a_parent_that_drops_at_once_recycles_nothing_that_a_child_holds() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let (mut here, there) = ends();
    let t = made(&s, &[3; 1000]);
    let u = t.as_strided(&[500], None, 500).unwrap();
    // What is moved here the parent drops as soon as it has forked, and the child has alone.
    let heir = child(move || {
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        check!(is(&t, &[3; 1000]));
        drop(t);
        check!(is(&u, &[3; 500]));
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        check!(is(&u, &[3; 500]));
        drop(u);
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        Ok(())
    });
    let overwrite = || (0..20).for_each(|i| drop(made(&s, &[i; 1000])));
    // Until the child's page is mapped here, it may hold anything.
    let live = |n| {
        kit::until("so much is held", || {
            s.collect();
            s.stats().pool.live == n
        })
    };
    live(1);
    overwrite();
    here.write_all(&[1]).unwrap();
    here.read_exact(&mut [0]).unwrap();
    overwrite();
    live(1); // the child has a view of it yet
    here.write_all(&[1]).unwrap();
    here.read_exact(&mut [0]).unwrap();
    live(0); // the child has dropped it, and lives
    here.write_all(&[1]).unwrap();
    ends_well(heir);
    s.close();
    b.nothing_is_held();
}

#[test]
fn what_lanes_keep_is_the_parents() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let queue = s.queue("q").unwrap();
    let (mut here, there) = ends();
    let t = made(&s, &[1]);
    queue.put(&t, PATIENCE).unwrap();
    queue.put(made(&s, &[2]), PATIENCE).unwrap();
    let heir = child(move || {
        drop(t);
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        Ok(())
    });
    here.read_exact(&mut [0]).unwrap();
    (0..2).for_each(|_| drop(queue.get(PATIENCE).unwrap()));
    kit::until("nothing is held by the child, which inherited the tensor alone, and dropped it", || {
        s.collect();
        s.stats().pool.live == 0
    });
    here.write_all(&[1]).unwrap();
    ends_well(heir);
}

#[test]
fn children_of_children_inherit_too() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let queue = s.queue("q").unwrap();
    let t = made(&s, &[1, 2]);
    let theirs = (s.clone(), queue.clone(), t.clone());
    ends_well(child(move || {
        let (s, queue, t) = theirs;
        let u = ok!(s.from_slice(&[1], &[3u64])).freeze();
        let grandchild = child(move || {
            check!(is(&t, &[1, 2]) && is(&u, &[3]));
            ok!(queue.put(baton::Payload::named([("t", t), ("u", u)]), PATIENCE));
            Ok(())
        });
        check!(end_of(grandchild) == 0);
        Ok(())
    }));
    let got = queue.get(PATIENCE).unwrap().bundle().unwrap();
    assert!(is(got.get("t").unwrap(), &[1, 2]) && is(got.get("u").unwrap(), &[3]));
    drop((got, t, queue));
    s.close();
    b.nothing_is_held();
}

#[test]
fn members_of_a_group_are_joined_by_children() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &keep_nothing().overwrite(false)).unwrap();
    let mut reader = topic.group_reader("g").unwrap();
    let theirs = (topic.clone(), topic.group_reader("g").unwrap());
    ends_well(child(move || {
        let (topic, mut reader) = theirs;
        check!(ok!(reader.try_recv()).is_none());
        ok!(topic.send(baton::Payload::default()));
        check!(ok!(reader.recv(PATIENCE)).sequence() == 1);
        ok!(topic.send(baton::Payload::default()));
        Ok(())
    }));
    assert_eq!(reader.recv(PATIENCE).unwrap().sequence(), 2);
    assert!(reader.try_recv().unwrap().is_none());
}

#[test]
fn a_child_that_inherits_nothing_connects_when_it_must() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let queue = s.queue("q").unwrap();
    let live = || b.listed("sessions").len();
    let (mut here, there) = ends();
    let before = live();
    let theirs = (s.clone(), queue.clone());
    let idle = child(move || {
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        ok!(theirs.1.put(ok!(theirs.0.from_slice(&[1], &[3u64])).freeze(), PATIENCE));
        Ok(())
    });
    here.read_exact(&mut [0]).unwrap();
    assert_eq!(live(), before);
    here.write_all(&[1]).unwrap();
    ends_well(idle);
    assert!(is(&queue.get(PATIENCE).unwrap().tensor().unwrap(), &[3]));
}

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
fn a_raw_fork_is_refused() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &keep_nothing()).unwrap();
    let mut reader = topic.reader(Start::New).unwrap();
    let t = made(&s, &[7, 8]);
    let theirs = (s.clone(), topic.clone(), t.clone(), b.address());
    ends_well(raw_child(move || {
        let (s, topic, t, address) = theirs;
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
    }));
    assert!(is(&t, &[7, 8]));
    drop((topic, t));
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
        lost(&theirs.0, &theirs.1)
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
    std::thread::scope(|all| {
        all.spawn(|| {
            std::thread::sleep(Duration::from_secs(3)); // longer than a broker is looked for
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

#[test]
#[ignore = "a measurement: run it with --release --ignored --nocapture"]
fn what_a_fork_costs() {
    let _alone = alone();
    let median = |what: &str| {
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let began = Instant::now();
                let child = child(|| Ok(()));
                let took = began.elapsed();
                ends_well(child);
                took
            })
            .collect();
        times.sort();
        println!("{what}: {:?} at the median, {:?} at the 99th percentile", times[100], times[197]);
    };
    median("no session");
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    median("a session, nothing held");
    let one = made(&s, &[1]);
    median("one tensor held");
    let mut many: Vec<_> = (1..1_000).map(|i| made(&s, &[i])).collect();
    median("1,000 tensors held");
    many.extend((1_000..10_000).map(|i| made(&s, &[i])));
    median("10,000 tensors held");
    drop((one, many));
}

#[test]
fn children_of_a_busy_process_do_not_hang() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &keep_nothing()).unwrap();
    let queue = s.queue_with("q", &QueueOptions::default().linger(Duration::ZERO)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for i in 0..2 {
            let (s, topic, over) = (&s, &topic, &over);
            scope.spawn(move || {
                let (mut reader, name) = (topic.reader(Start::New).unwrap(), format!("n/{i}"));
                while !over.load(Ordering::Relaxed) {
                    topic.send(s.alloc::<u64>(&[100]).unwrap().freeze()).unwrap();
                    drop(reader.try_recv().unwrap());
                    s.set(&name, made(s, &[i])).unwrap();
                    let waits = s.topic_with("", &keep_nothing()).unwrap().reader(Start::New).unwrap();
                    drop((waits, vec![0u8; 100_000]));
                }
                s.delete(&name).unwrap();
            });
        }
        let waits = scope.spawn(|| queue.get(PATIENCE * 10).map(drop));
        let forking: Vec<_> = (0..3)
            .map(|i| {
                let (s, topic) = (&s, &topic);
                scope.spawn(move || {
                    for k in 0..20 {
                        let t = made(s, &[i, k]);
                        let theirs = (t.clone(), s.clone(), topic.clone());
                        ends_well(child(move || {
                            let (t, s, topic) = theirs;
                            check!(is(&t, &[i, k]));
                            let mut reader = ok!(topic.reader(Start::New));
                            ok!(topic.send(&t));
                            ok!(reader.recv(PATIENCE));
                            let mine = ok!(s.topic_with("", &keep_nothing()));
                            let mut reader = ok!(mine.reader(Start::New));
                            ok!(mine.send(&t));
                            check!(is(&ok!(ok!(reader.recv(PATIENCE)).tensor()), &[i, k]));
                            drop((t, s, topic));
                            Ok(())
                        }));
                        assert!(is(&t, &[i, k]));
                    }
                })
            })
            .collect();
        let done: Vec<_> = forking.into_iter().map(|f| f.join()).collect();
        over.store(true, Ordering::Relaxed);
        queue.put(baton::Payload::default(), PATIENCE).unwrap();
        waits.join().unwrap().unwrap();
        done.into_iter().for_each(|d| d.unwrap());
    });
    drop((topic, queue));
    s.close();
    b.nothing_is_held();
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
fn a_child_inherits_a_storage_of_which_there_are_as_many_references_as_there_may_be() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[1, 2]);
    let all = kit::all_references(&s, &t);
    let (mut here, there) = ends();
    let (theirs, one) = (t.clone(), all[0].clone());
    let forked = child(move || {
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1)); // the parent holds nothing any more
        check!(is(&theirs, &[1, 2]) && is(&one, &[1, 2]));
        Ok(())
    });
    drop((all, t));
    s.collect();
    here.write_all(&[1]).unwrap();
    ends_well(forked);
    s.close();
    b.nothing_is_held();
}

/// What a child says of the tensors that it has, or was told why not.
fn inherited(all: &[Tensor], said: &mut UnixStream) -> Seen {
    let (mut there, mut full) = (0u8, 0u8);
    for (i, t) in all.iter().enumerate() {
        match t.to_vec::<u64>() {
            Ok(v) => {
                check!(v == [i as u64]);
                there += 1;
            }
            Err(e) => {
                check!(e.code() == Code::OutOfMemory);
                full += 1;
            }
        }
    }
    ok!(said.write_all(&[there, full]));
    Ok(())
}

#[test]
fn a_child_misses_only_what_it_could_not_count() {
    let _alone = alone();
    let Some(full) = kit::FullDir::new(32 << 20) else { return };
    let memory = full.path().join("memory");
    let Some(b) = Broker::start_with(&["--memory-dir", memory.to_str().unwrap(), "--memory", "4MiB"]) else { return };
    let s = b.session();
    // Each lies in a chunk of its own, whose part of the child's row needs a page at times.
    let owners: Vec<_> = (0..16).map(|_| b.session()).collect();
    let all: Vec<_> = owners
        .iter()
        .enumerate()
        .map(|(i, o)| s.open(&made(o, &[i as u64]).handle(baton::Lease::default()).unwrap()).unwrap())
        .collect();
    let sessions = b.listed("sessions").len();
    let mut some = false;
    for pages in 0.. {
        full.leave(4096 * pages);
        let (mut here, mut there) = ends();
        let theirs = all.clone();
        ends_well(child(move || inherited(&theirs, &mut there)));
        let mut said = [0; 2];
        here.read_exact(&mut said).unwrap();
        full.leave(1 << 20);
        kit::until("the child's session is over", || b.listed("sessions").len() == sessions);
        assert_eq!(usize::from(said[0] + said[1]), all.len());
        some |= said[0] > 0 && said[1] > 0;
        if said[1] == 0 {
            break;
        }
    }
    assert!(some, "there was never room for some of them only");
    assert!(all.iter().enumerate().all(|(i, t)| is(t, &[i as u64])), "the parent's are as they were");
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
    // SAFETY: the process is a child of this one, and was not waited for.
    assert_eq!(unsafe { kill(parent, 9) }, 0);
    // SAFETY: as `end_of`.
    assert_eq!(unsafe { waitpid(parent, std::ptr::null_mut(), 0) }, parent);
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
