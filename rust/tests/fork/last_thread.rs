//! A child ends where its last thread does, as it does without this crate.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::thread;

use baton::{FunctionValue, Result};

use super::*;

/// Forks in a thread of its own, which ends in both processes: in the child it returns after `then`.
fn child_of_a_thread(then: impl FnOnce() + Send + 'static) -> i32 {
    thread::spawn(move || forks(then)).join().unwrap()
}

fn main_thread_has_ended() -> bool {
    std::fs::read_to_string("/proc/self/stat").unwrap().rsplit_once(')').unwrap().1.starts_with(" Z")
}

/// How often the session's thread of this process has waited; `None` before it has its name.
fn waits_of_the_sessions_thread() -> Option<u64> {
    let named = |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "baton\n");
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let status = std::fs::read_to_string(tasks.find(named)?.join("status")).unwrap();
    let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    waits?.trim().parse().ok()
}

#[test]
fn a_child_ends_with_the_thread_that_forked() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[1, 2, 3]);
    assert_eq!(end_of(child_of_a_thread(|| {})), 0);
    let used = (s.clone(), t.clone());
    let child = child_of_a_thread(move || {
        let (s, t) = used;
        let _ = s.set("kept", if is(&t, &[1, 2, 3]) { &t } else { return });
        std::mem::forget((s, t)); // as what is static is
    });
    assert_eq!(end_of(child), 0);
    assert!(is(s.get("kept", PATIENCE).unwrap().first().unwrap(), &[1, 2, 3]));
    s.delete("kept").unwrap();
    drop(t);
    s.close();
    b.nothing_is_held();
}

#[test]
fn a_child_goes_on_while_another_thread_of_it_runs() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[1, 2, 3]);
    let (mut here, mut there) = ends();
    let held = t.clone();
    let child = child_of_a_thread(move || {
        drop(thread::spawn(move || {
            kit::until("the thread that forked has ended", main_thread_has_ended);
            // The session's thread looks whether others are left, with all else that it looks at.
            let mut before = None;
            kit::until("it runs", || {
                before = waits_of_the_sessions_thread();
                before.is_some()
            });
            kit::until("it has looked", || waits_of_the_sessions_thread() > before.map(|waits| waits + 1));
            let _ = there.write_all(&[u8::from(is(&held, &[1, 2, 3]))]);
            let _ = there.read(&mut [0]);
        }));
    });
    let mut seen = [0];
    here.read_exact(&mut seen).unwrap();
    assert_eq!(seen, [1]);
    here.write_all(&[1]).unwrap();
    assert_eq!(end_of(child), 0);
    drop(t);
    s.close();
    b.nothing_is_held();
}

#[test]
fn a_child_ends_with_a_function_that_forked() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let (provider, caller) = (b.session(), b.session());
    let t = made(&provider, &[1, 2, 3]);
    let function = |_: &baton::Args, _: &baton::Call| Ok(forks(|| {}));
    let provided = provider.function("forks", function).unwrap();
    assert_eq!(end_of(caller.call::<i32>("forks", ()).unwrap()), 0);
    drop((t, provided));
    provider.close();
    caller.close();
    b.nothing_is_held();
}

#[test]
fn a_child_ends_with_a_lent_function_that_forked() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let (provider, caller) = (b.session(), b.session());
    let t = made(&caller, &[1, 2, 3]);
    let apply = |args: &baton::Args, _: &baton::Call| -> Result<()> { args.get::<baton::Function>(0)?.call(()) };
    let provided = provider.function("apply", apply).unwrap();
    let child = Arc::new(AtomicI32::new(0));
    let noted = child.clone();
    // Run by a thread of the crate, since its caller waits later.
    let lent = FunctionValue::new(move |_, _| {
        noted.store(forks(|| {}), Ordering::Relaxed); // read by a thread that has the answer
        Ok(())
    });
    caller.get_function("apply").unwrap().submit((&lent,)).unwrap().wait::<()>().unwrap();
    assert_eq!(end_of(child.load(Ordering::Relaxed)), 0);
    drop((t, lent, provided));
    provider.close();
    caller.close();
    b.nothing_is_held();
}
