//! Files, handles of several tensors, and calls that do not wait.

mod kit;

use std::path::Path;
use std::time::Duration;

use baton::{Bundle, Code, DType, Lease, Payload, QueueOptions, Session};
use kit::{Broker, Dir};

fn two(s: &Session) -> Bundle {
    let x = s.from_slice(&[4], &[1f32, 2., 3., 4.]).unwrap().freeze();
    let y = x.as_strided(&[2], None, 2).unwrap();
    let empty = s.zeros::<u8>(&[0]).unwrap().freeze();
    Payload::named([("x", x), ("y", y), ("none", empty)]).into()
}

#[test]
fn handles_of_a_bundle_are_under_one_lease_and_open_together() {
    let Some(b) = Broker::start() else { return };
    let (s, other) = (b.session(), b.session());
    let bundle = two(&s);
    let handles = bundle.handles(Lease::Once).unwrap();
    assert_eq!(handles[0].lease, handles[1].lease);
    assert!(handles[0].lease.is_some() && handles[2].lease.is_none());
    drop(bundle);
    let tensors = other.open_all(&handles).unwrap();
    assert_eq!(tensors[0].to_vec::<f32>().unwrap(), [1., 2., 3., 4.]);
    assert_eq!(tensors[1].to_vec::<f32>().unwrap(), [3., 4.]);
    assert!(tensors[2].is_empty());
}

#[test]
fn a_file_is_seen_and_not_handed_over() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let dir = Dir::new();
    let path = dir.path().join("numbers");
    std::fs::write(&path, [1u8, 0, 2, 0, 3, 0]).unwrap();
    let t = s.map_file(&path).unwrap();
    assert!(t.is_read_only() && !t.is_shared());
    let v = t.view_as(DType::UINT16, &[2], None, 2).unwrap();
    assert_eq!(v.to_vec::<u16>().unwrap(), [2, 3]);
    assert_eq!(t.view_as(DType::UINT16, &[2], None, 4).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(v.as_mut_ptr().unwrap_err().code(), Code::ReadOnly);
    assert_eq!(v.handle(Lease::default()).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(s.topic("t").unwrap().send(&v).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(s.map_file(dir.path().join("none")).unwrap_err().code(), Code::NotFound);
}

#[test]
fn what_is_no_file_of_bytes_is_not_mapped() {
    let Some(b) = Broker::start() else { return };
    let (s, dir) = (b.session(), Dir::new());
    let (empty, pipe) = (dir.path().join("empty"), dir.path().join("pipe"));
    std::fs::write(&empty, []).unwrap();
    assert_eq!(s.map_file(&empty).unwrap().shape(), [0]);
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in
        [dir.path(), &pipe, Path::new("/dev/null"), Path::new("/proc/self/status"), &b.dir.path().join("b.sock")]
    {
        let e = s.map_file(path).unwrap_err();
        assert!(!e.message().contains("address space"), "{e}");
        assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    }
}

#[test]
fn queues_say_how_much_waits_and_whether_there_is_room() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let q = s.queue_with("q", &QueueOptions::default().depth(2)).unwrap();
    let x = s.zeros::<u8>(&[1]).unwrap().freeze();
    assert!(q.try_get().unwrap().is_none());
    assert!(q.try_put(&x).unwrap() && q.try_put(&x).unwrap());
    assert_eq!(q.waiting().unwrap(), 2);
    assert!(!q.try_put(&x).unwrap());
    assert!(q.try_get().unwrap().is_some());
    assert_eq!(q.waiting().unwrap(), 1);
    assert!(q.try_put(&x).unwrap());
    q.end().unwrap();
    assert_eq!(q.try_put(&x).unwrap_err().code(), Code::Closed);
}

#[test]
fn names_are_polled() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let mut w = s.watch("w").unwrap();
    assert!(w.try_next().unwrap().is_none());
    s.set("w", &two(&s)).unwrap();
    assert_eq!(w.try_next().unwrap().unwrap().revision(), 1);
    assert!(w.try_next().unwrap().is_none());
    assert_eq!(s.allocation(&[-1]).raw(DType::UINT8).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn an_allocation_waits_for_memory() {
    let Some(b) = Broker::start_with(&["--memory", "64M"]) else { return };
    let (ours, theirs) = (b.session(), b.session());
    let most: i64 = 40 << 20;
    let brief = Duration::from_millis(1);
    // Freed by this process itself.
    let x = ours.alloc::<u8>(&[most]).unwrap();
    assert_eq!(ours.allocation(&[most]).timeout(brief).of::<u8>().unwrap_err().code(), Code::QuotaExceeded);
    let waiter = std::thread::spawn({
        let ours = ours.clone();
        move || ours.allocation(&[most]).timeout(Duration::from_secs(90)).of::<u8>().unwrap()
    });
    drop(x);
    let x = waiter.join().unwrap();
    // Freed by another's end.
    let waiter =
        std::thread::spawn(move || theirs.allocation(&[most]).timeout(None).of::<u8>().unwrap().shape().to_vec());
    drop(x);
    drop(ours);
    assert_eq!(waiter.join().unwrap(), [most]);
}

#[test]
fn what_another_session_keeps_empty_is_had_at_once() {
    let Some(b) = Broker::start_with(&["--memory", "64M"]) else { return };
    let (ours, theirs) = (b.session(), b.session());
    let most: i64 = 40 << 20;
    for _ in 0..3 {
        drop(theirs.alloc::<u8>(&[most]).unwrap());
        drop(ours.alloc::<u8>(&[most]).unwrap());
    }
    // And for a lane what it keeps itself.
    let x = ours.alloc::<u8>(&[0]).unwrap().freeze();
    drop(ours.alloc::<u8>(&[60 << 20]).unwrap());
    ours.queue("lane").unwrap().put(&x, Duration::ZERO).unwrap();
}

#[test]
fn owners_on_many_threads_let_go_once() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    for round in 0..50u64 {
        let t = s.from_slice(&[1], &[round]).unwrap().freeze();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let own = t.clone();
                scope.spawn(move || {
                    let some: Vec<_> = (0..100).map(|_| own.clone()).collect();
                    drop(own);
                    assert!(some.iter().all(|t| t.to_vec::<u64>().unwrap() == [round]));
                });
            }
            // One of the threads is the last, or this one is.
            drop(t);
        });
        assert_eq!(s.from_slice(&[1], &[0u64]).unwrap().freeze().holders()[0].references, 1);
    }
    s.collect();
    assert_eq!(s.stats().pool.live, 0);
}
