//! A tensor that its owner never sent, named or exported cannot be opened, whatever a handle says.

#![forbid(unsafe_code)]

mod kit;

use std::cell::Cell;
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use baton::{DType, Handle, Lease, Payload, Session, Tensor};
use kit::{Broker, until};

const SOON: Duration = Duration::from_secs(90);
const MARK: f64 = 42.5;

/// A tensor, and a handle to it.
fn exported(owner: &Session) -> (Tensor, Handle) {
    let seen = owner.from_slice(&[4], &[1.0f64; 4]).unwrap().freeze();
    let like = seen.handle(Lease::default()).unwrap();
    (seen, like)
}

/// Whether some handle that is like a true one opens a tensor of marked elements in the session.
fn opens(session: &Session, like: &Handle) -> bool {
    let mut v: serde_json::Value = serde_json::from_str(&like.to_json()).unwrap();
    v["lease"] = serde_json::Value::Null;
    let first = v["index"].as_u64().unwrap() / 128 * 128;
    (1..4u64).any(|generation| {
        (0..16u64).any(|at| {
            (first..first + 128).any(|index| {
                v["generation"] = generation.into();
                v["offset"] = (at * 256).into();
                v["index"] = index.into();
                let h = Handle::from_json(&v.to_string()).unwrap();
                session.open(&h).is_ok_and(|t| t.to_vec::<f64>().unwrap().contains(&MARK))
            })
        })
    })
}

#[test]
fn a_tensor_that_was_never_given_away_cannot_be_opened() {
    let Some(b) = Broker::start() else { return };
    let (owner, other) = (b.session(), b.session());
    let (_seen, like) = exported(&owner);
    assert!(other.open(&like).is_ok());
    // Before it is frozen, and after that.
    let mut mine = owner.alloc::<f64>(&[4]).unwrap();
    mine.fill(MARK);
    assert!(!opens(&owner, &like) && !opens(&other, &like));
    let mine = mine.freeze();
    assert!(!opens(&owner, &like) && !opens(&other, &like));
    mine.handle(Lease::default()).unwrap();
    assert!(opens(&owner, &like) && opens(&other, &like), "as soon as there is a handle of it");
}

#[test]
fn a_place_of_any_kind_is_a_way_to_a_tensor() {
    let Some(b) = Broker::start() else { return };
    let other = b.session();
    type Way = fn(&Session, Tensor);
    let ways: [(&str, Way); 4] = [
        ("a message", |s, x| s.topic("t").unwrap().send(x).unwrap()),
        ("an item", |s, x| s.queue("q").unwrap().put(x, SOON).unwrap()),
        ("a name", |s, x| assert!(s.set("n", x).is_ok())),
        ("a spilled name", |s, x| {
            let filler = |k| (format!("{k:0>40}"), s.zeros::<f64>(&[4]).unwrap().freeze());
            s.set("n", Payload::named((0..100).map(filler).chain([("x".to_owned(), x)]))).unwrap();
        }),
    ];
    for (what, give) in ways {
        let owner = b.session();
        let (_seen, like) = exported(&owner);
        let x = owner.from_slice(&[4], &[MARK; 4]).unwrap().freeze();
        assert!(!opens(&other, &like), "before {what}");
        give(&owner, x.clone());
        assert!(opens(&other, &like), "after {what}");
    }
}

#[test]
fn a_recycled_storage_is_private_again() {
    let Some(b) = Broker::start() else { return };
    let (owner, other) = (b.session(), b.session());
    let (_seen, like) = exported(&owner);
    owner.set("n", owner.from_slice(&[4], &[MARK; 4]).unwrap().freeze()).unwrap();
    assert!(opens(&other, &like));
    let before = owner.stats().pool.recycled;
    owner.delete("n").unwrap();
    until("the storage is used anew", || {
        drop(owner.alloc::<f64>(&[4]).unwrap());
        owner.stats().pool.recycled > before
    });
    let mut all: Vec<_> = (0..20).map(|_| owner.alloc::<f64>(&[4]).unwrap()).collect();
    all.iter_mut().for_each(|x| x.fill(MARK));
    assert!(!opens(&owner, &like) && !opens(&other, &like));
}

/// The child of such a fork runs no code of the program.
#[test]
fn a_fork_for_another_program_gives_no_way_to_what_is_held() {
    let Some(b) = Broker::start() else { return };
    let (owner, other) = (b.session(), b.session());
    let (_seen, like) = exported(&owner);
    let mut mine = owner.alloc::<f64>(&[4]).unwrap();
    mine.fill(MARK);
    // With an id to set, the standard library forks instead of spawning.
    let uid = rustix::process::getuid().as_raw();
    assert!(Command::new("true").uid(uid).status().unwrap().success());
    assert!(!opens(&owner, &like) && !opens(&other, &like));
    owner.set("n", mine.freeze()).unwrap();
    assert!(opens(&owner, &like) && opens(&other, &like));
}

/// A shape that is another one whenever it is looked at.
struct Fickle(Cell<usize>, [[i64; 1]; 2]);

impl Deref for Fickle {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        let n = self.0.replace(self.0.get() + 1);
        &self.1[n % 2]
    }
}

#[test]
fn a_shape_that_changes_reaches_no_tensor_of_others() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let (small, large) = ([256], [1 << 20]);
    for shapes in [[small, large], [large, small]] {
        let fickle = Fickle(Cell::new(0), shapes);
        let made = s.room_for([(DType::UINT8, fickle)].into_iter(), None, None).unwrap().remove(0);
        let mut mine = s.alloc::<u8>(&[1 << 16]).unwrap();
        mine.fill(42);
        let handle = made.handle(Lease::default()).unwrap();
        assert!(made.num_bytes() <= handle.bytes, "{} bytes in a storage of {}", made.num_bytes(), handle.bytes);
        assert!(!made.to_vec::<u8>().unwrap().contains(&42));
    }
}
