//! A program that opens a session, keeps something of it and closes it, again and again. Alone in its process,
//! whose descriptors and mappings it counts.

mod kit;

use baton::{Start, Tensor, TopicOptions};
use kit::{Broker, check, numbers, until};

/// Rounds of the tests that repeat something; more by `BATON_ROUNDS`.
fn rounds() -> u32 {
    std::env::var("BATON_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(5000)
}

fn count(path: &str) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn sessions_that_are_closed_one_after_the_other_use_up_nothing() {
    let Some(b) = Broker::start() else { return };
    let theirs = b.session();
    let topic = theirs.topic_with("t", &TopicOptions::default().linger(std::time::Duration::ZERO)).unwrap();
    topic.send(numbers(&theirs, 77)).unwrap();
    let mut kept: Vec<(Tensor, u64)> = Vec::new();
    let mut before = None;
    for i in 0..u64::from(rounds()) {
        let s = b.session();
        kept.push((numbers(&s, i), i));
        if i % 10 == 0 {
            let mut reader = s
                .topic_with("t", &TopicOptions::default().linger(std::time::Duration::ZERO))
                .unwrap()
                .reader(Start::Last)
                .unwrap();
            kept.push((reader.recv(None).unwrap().into_tensor().unwrap(), 77));
        }
        s.close();
        if i == 100 {
            before = Some((count("/proc/self/fd"), count("/proc/self/task"), mappings(), b.rust_sessions().len()));
        }
    }
    let after = (count("/proc/self/fd"), count("/proc/self/task"), mappings(), b.rust_sessions().len());
    if let Some((fds, threads, maps, ours)) = before {
        assert_eq!((after.1, after.3), (threads, ours));
        // The tensors themselves take a segment or two more.
        assert!(after.0 < fds + 5, "{fds} descriptors became {}", after.0);
        assert!(after.2 < maps + 20, "{maps} mappings became {}", after.2);
    }
    kept.iter().for_each(|(x, i)| check(x, *i));
    drop(kept);
    drop((topic, theirs));
    until("all sessions are over", || b.rust_sessions().is_empty());
    b.nothing_is_held();
}
