//! How many threads a call wakes, where many of a session wait.

mod kit;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use baton::{Result, Session, Value};
use kit::Broker;

const CALLS: u32 = 300;
/// Threads that are woken for one call: the one that takes it, those that sleep on the bell, and the next one that does.
const MOST: u64 = 6;

/// How often threads of a name have slept, and how many there are.
fn slept(name: &str) -> (u64, u64) {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|t| t.unwrap().path());
    let of_name = |t: &std::path::PathBuf| fs::read_to_string(t.join("comm")).is_ok_and(|n| n.trim() == name);
    let counts = tasks.filter(of_name).filter_map(|t| {
        let status = fs::read_to_string(t.join("status")).ok()?;
        status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok())
    });
    counts.fold((0, 0), |(all, n), count| (all + count, n + 1))
}

/// Calls a function again and again, with pauses in which what provides it falls asleep.
fn call_often(session: &Session, function: &str, threads: &str, least: u64) -> Result<()> {
    let f = session.get_function(function)?;
    f.call::<i64>((0,))?;
    std::thread::sleep(Duration::from_millis(300)); // those that have just started sleep
    let (before, n) = slept(threads);
    assert!(n >= least, "{n} threads");
    let begun = Instant::now();
    for i in 0..i64::from(CALLS) {
        assert_eq!(f.call::<i64>((i,))?, i);
        std::thread::sleep(Duration::from_millis(1));
    }
    let woken = slept(threads).0 - before;
    // Each looks once a second by itself.
    let looks = n * (begun.elapsed().as_secs() + 2);
    assert!(woken <= MOST * u64::from(CALLS) + looks, "{n} threads slept {woken} times in {CALLS} calls");
    Ok(())
}

/// One test: the threads of others would be counted too.
#[test]
fn a_call_wakes_few_of_the_threads_that_wait() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let caller = broker.session();
    {
        let provider = broker.session();
        let _one = provider.provide("one")?.concurrency(32).serve(|args, _| args.get::<Value>(0))?;
        call_often(&caller, "one", "baton-function", 32)?;
    }
    let provider = broker.session();
    let many: Result<Vec<_>> =
        (0..200).map(|n| provider.function(&format!("f/{n}"), |args, _| args.get::<Value>(0))).collect();
    let many = many?;
    call_often(&caller, "f/0", "baton-function", 200)?;
    call_often(&caller, "f/199", "baton-function", 200)?;
    drop(many);

    // Threads of the caller wait for calls that take long.
    let over = AtomicBool::new(false);
    let _slow = provider.provide("slow")?.concurrency(64).serve(|_, call| {
        call.wait_cancelled(None)?;
        Ok(())
    })?;
    let _quick = broker.session().function("quick", |args, _| args.get::<Value>(0))?;
    std::thread::scope(|s| {
        for _ in 0..50 {
            let waits = || {
                let e = caller.get_function("slow").unwrap().call::<()>(()).unwrap_err();
                assert!(over.load(Ordering::SeqCst), "{e}");
            };
            std::thread::Builder::new().name("that-waits".into()).spawn_scoped(s, waits).unwrap();
        }
        let called = call_often(&caller, "quick", "that-waits", 50);
        over.store(true, Ordering::SeqCst);
        provider.close();
        called
    })
}
