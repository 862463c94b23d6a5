//! Calls that run beside others: deadlines, cancelling, threads of a provider, and one provider in another's place.

mod kit;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use baton::{Code, Error, Pending, Provided, Result, Session, Tensor};
use kit::{Broker, calls, code, until};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_deadline_ends_a_call_at_both_sides() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let begun = Arc::new(AtomicUsize::new(0));
    let _waits = provider.function("waits", {
        let begun = begun.clone();
        move |_, call| {
            begun.fetch_add(1, Ordering::Relaxed);
            assert!(call.deadline().is_some() && call.attempt() == 1);
            let seen = call.wait_cancelled(None)?;
            say.send((seen, call.cancelled(), call.check().map_err(|e| e.code()))).unwrap();
            Ok(())
        }
    })?;
    let f = caller.get_function("waits")?;
    let brief = f.clone().timeout(Duration::from_millis(10));
    // More than there is room for late replies; one that the provider has not begun by then it never begins.
    until("it has begun so many", || {
        assert_eq!(code(brief.call::<()>(())), Code::Timeout);
        begun.load(Ordering::Relaxed) > 70
    });
    let nothing_runs = || caller.functions("waits").unwrap().iter().all(|f| (f.running, f.waiting) == (0, 0));
    until("nothing runs", nothing_runs);
    for _ in 0..begun.load(Ordering::Relaxed) {
        let (seen, cancelled, ended) = said.recv_timeout(SOON).unwrap();
        assert!(seen && cancelled && matches!(ended, Err(Code::Cancelled | Code::Timeout)), "{ended:?}");
    }
    // One that waits for another is past its deadline before it is begun.
    let before = begun.load(Ordering::Relaxed);
    let long = f.timeout(SOON).submit(())?;
    until("it runs", || begun.load(Ordering::Relaxed) > before);
    assert_eq!(code(brief.call::<()>(())), Code::Timeout);
    drop(long);
    assert!(said.recv_timeout(SOON).unwrap().1);
    until("nothing runs", nothing_runs);
    assert_eq!(begun.load(Ordering::Relaxed), before + 1);
    Ok(())
}

#[test]
fn calls_within_calls_end_with_them() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (outer, inner, caller) = (broker.session(), broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let _inner = inner.function("inner", move |_, call| {
        say.send(call.deadline().is_some()).unwrap();
        call.wait_cancelled(None)?;
        say.send(call.cancelled()).unwrap();
        Ok(())
    })?;
    let within = outer.clone();
    let _outer = outer.function("outer", move |_, _| within.call::<()>("inner", ()))?;
    let f = caller.get_function("outer")?;
    let pending = f.clone().timeout(SOON).submit(())?;
    assert!(said.recv_timeout(SOON).unwrap(), "it has the outer one's deadline");
    drop(pending);
    assert!(said.recv_timeout(SOON).unwrap(), "it is cancelled with the outer one");
    assert_eq!(code(f.timeout(Duration::from_millis(20)).call::<()>(())), Code::Timeout);
    // A function that calls itself, with one thread and with enough of them.
    let within = outer.clone();
    let down = move |args: &baton::Args, _: &baton::Call| match args.get::<i64>(0)? {
        0 => Ok(0),
        n => Ok(1 + within.call::<i64>("down", (n - 1,))?),
    };
    let one = outer.provide("down")?.serve(down.clone())?;
    let e = caller.call::<i64>("down", (1,)).unwrap_err();
    assert!(e.message().contains("down > down"), "{e}");
    drop(one);
    let _many = outer.provide("down")?.concurrency(80).serve(down)?;
    for session in [caller, outer] {
        assert_eq!(session.call::<i64>("down", (63,))?, 63);
        let e = session.call::<i64>("down", (64,)).unwrap_err();
        assert!(e.message().contains("64 deep"), "{e}");
    }
    Ok(())
}

/// Provides "inner", which says that it has begun, and then that it is cancelled.
fn waits(session: &Session) -> Result<(Provided, mpsc::Receiver<bool>)> {
    let (say, said) = mpsc::channel();
    let inner = session.provide("inner")?.concurrency(2).serve(move |_, call| {
        say.send(call.cancelled()).unwrap();
        call.wait_cancelled(SOON)?;
        say.send(call.cancelled()).unwrap();
        Ok(())
    })?;
    Ok((inner, said))
}

#[test]
fn calls_that_another_thread_waits_for_end_with_that_within_which_they_were_made() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (_inner, said) = waits(&provider)?;
    let heard = || said.recv_timeout(SOON).unwrap();
    let within = provider.clone();
    let (leave, left) = mpsc::channel();
    let _outer = provider.function("outer", move |args, call| {
        let pending = within.get_function("inner")?.submit(())?;
        if args.get::<bool>(0)? {
            let waiter = std::thread::spawn(move || code(pending.wait::<()>()));
            assert_eq!(waiter.join().unwrap(), Code::Cancelled);
            assert!(call.cancelled());
        } else {
            leave.send(pending).unwrap();
        }
        Ok(())
    })?;
    let outer = caller.get_function("outer")?;
    let pending = outer.submit((true,))?;
    assert!(!heard());
    drop(pending);
    assert!(heard(), "it is cancelled with the outer one");
    // One that its function does not wait for goes on, though the caller goes then.
    caller.call::<()>("outer", (false,))?;
    assert!(!heard());
    caller.close();
    until("the caller has gone", || provider.functions("outer").unwrap().iter().all(|f| f.callers == 0));
    let mut pending = left.recv_timeout(SOON).unwrap();
    assert!(!pending.is_over() && said.try_recv().is_err());
    drop(pending);
    assert!(heard());
    Ok(())
}

#[test]
fn a_function_that_was_lent_within_a_call_is_cancelled_with_that() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller, other) = (broker.session(), broker.session(), broker.session());
    let _apply = other.function("apply", |args, _| args.get::<baton::Function>(0)?.call::<()>(()))?;
    let (say, said) = mpsc::channel();
    let within = provider.clone();
    let _outer = provider.function("outer", move |_, _| {
        let say = say.clone();
        let lent = baton::FunctionValue::new(move |_, call| {
            say.send(call.cancelled()).unwrap();
            call.wait_cancelled(SOON)?;
            say.send(call.cancelled()).unwrap();
            Ok(())
        });
        within.call::<()>("apply", (lent,))
    })?;
    let pending = caller.get_function("outer")?.submit(())?;
    assert!(!said.recv_timeout(SOON).unwrap());
    drop(pending);
    assert!(said.recv_timeout(SOON).unwrap());
    Ok(())
}

#[test]
fn a_provider_runs_as_many_calls_as_it_says() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (all, most) = (Arc::new(Barrier::new(3)), Arc::new(AtomicUsize::new(0)));
    let now = Arc::new(AtomicUsize::new(0));
    let _f = provider.provide("f")?.concurrency(3).serve({
        let (all, most, now) = (all.clone(), most.clone(), now.clone());
        move |_, _| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            all.wait();
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    })?;
    std::thread::scope(|s| {
        let calls: Vec<_> = (0..12).map(|_| s.spawn(|| caller.call::<()>("f", ()))).collect();
        calls.into_iter().try_for_each(|c| c.join().unwrap())
    })?;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    Ok(())
}

#[test]
fn many_callers_each_have_their_own_result() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (first, second, caller) = (broker.session(), broker.session(), broker.session());
    let _first = first.provide("double")?.concurrency(2).serve(|args, _| Ok(2 * args.get::<i64>(0)?))?;
    let _second = second.provide("double")?.concurrency(2).serve(|args, _| Ok(2 * args.get::<i64>(0)?))?;
    std::thread::scope(|s| {
        let work = |k: i64| {
            let f = caller.get_function("double")?;
            (0..300).try_for_each(|i| {
                assert_eq!(f.call::<i64>((1000 * k + i,))?, 2 * (1000 * k + i));
                Ok::<_, Error>(())
            })
        };
        let all: Vec<_> = (0..6).map(|k| s.spawn(move || work(k))).collect();
        all.into_iter().try_for_each(|t| t.join().unwrap())
    })
}

#[test]
fn a_provider_that_replaces_another_has_what_waits() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (old, new, caller) = (broker.session(), broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let goes = std::sync::Mutex::new(goes);
    let first = old.provide("f")?.parameter("x", "int").serve(move |_, _| {
        say.send(()).unwrap();
        goes.lock().unwrap().recv_timeout(SOON).unwrap();
        Ok("old")
    })?;
    std::thread::scope(|s| {
        let running = s.spawn(|| caller.call::<String>("f", (1,)));
        said.recv_timeout(SOON).unwrap();
        let waiting = s.spawn(|| caller.call::<String>("f", (1,)));
        until("it waits", || calls(&caller).1 == 1);
        let _second = new.provide("f")?.parameter("x", "int").replace(true).serve(|_, _| Ok("new"))?;
        assert_eq!(waiting.join().unwrap()?, "new");
        assert!(!first.is_current() && first.running() == 1);
        go.send(()).unwrap();
        assert_eq!(running.join().unwrap()?, "old");
        first.join()?; // replaced, and the session goes on
        assert_eq!(caller.call::<String>("f", (1,))?, "new");
        Ok(())
    })
}

#[test]
fn a_registration_that_ends_waits_for_its_calls() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let provided = provider.function("f", move |_, _| {
        say.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(20)); // that it is still running when it is dropped
        Ok(7)
    })?;
    std::thread::scope(|s| {
        let call = s.spawn(|| caller.call::<i64>("f", ()));
        said.recv_timeout(SOON).unwrap();
        drop(provided);
        assert_eq!(call.join().unwrap()?, 7);
        assert_eq!(code(caller.call::<i64>("f", ())), Code::NoProvider);
        Ok(())
    })
}

#[test]
fn a_session_that_is_closed_ends_its_calls() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let _f = provider.function("f", move |_, call| {
        say.send(()).unwrap();
        call.wait_cancelled(SOON)
    })?;
    std::thread::scope(|s| {
        let call = s.spawn(|| caller.call::<bool>("f", ()));
        said.recv_timeout(SOON).unwrap();
        caller.clone().close();
        assert_eq!(code(call.join().unwrap()), Code::Closed);
    });
    let other = broker.session();
    std::thread::scope(|s| {
        let call = s.spawn(|| other.call::<bool>("f", ()));
        said.recv_timeout(SOON).unwrap();
        provider.close();
        assert_eq!(code(call.join().unwrap()), Code::ProviderDied);
    });
    Ok(())
}

#[test]
fn calls_that_are_waited_for_later() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let _f = provider.provide("f")?.concurrency(4).serve(move |args, call| {
        if args.get::<i64>(0)? < 0 {
            say.send("begun").unwrap();
            call.wait_cancelled(None)?;
            say.send(if call.cancelled() { "cancelled" } else { "woken" }).unwrap();
            call.check()?;
        }
        args.get::<i64>(0)
    })?;
    let f = caller.get_function("f")?;
    let pending = (0..40).map(|i| f.submit((i,))).collect::<Result<Vec<_>>>()?;
    for (i, p) in pending.into_iter().enumerate().rev() {
        assert_eq!(p.wait::<i64>()?, i as i64);
    }
    // One that is dropped, one that is given up, one that has no time.
    let heard = || said.recv_timeout(SOON).unwrap();
    let mut first = f.submit((-1,))?;
    assert_eq!(heard(), "begun"); // else it would be withdrawn
    assert!(!first.wait_for(Duration::from_millis(1)) && !first.is_over());
    drop(first);
    assert_eq!(heard(), "cancelled");
    let second = f.submit((-1,))?;
    assert_eq!(heard(), "begun");
    second.cancel();
    assert_eq!(heard(), "cancelled");
    let late = f.clone().timeout(Duration::from_millis(5)).submit((-1,))?;
    assert_eq!(code(late.wait::<i64>()), Code::Timeout);
    let mut done = f.submit((7,))?;
    until("it is over", || done.is_over());
    assert_eq!(done.wait::<i64>()?, 7);
    Ok(())
}

/// Results that come when their calls were given up are held by nothing, whether they had come by then or not.
#[test]
fn results_of_cancelled_calls_are_let_go() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let own = provider.clone();
    let _big = provider.provide("big")?.serve(move |args, _| Ok(own.alloc::<u8>(&[args.get(0)?])?.freeze()))?;
    let big = caller.get_function("big")?;
    let come = || -> Result<Vec<_>> {
        let all = (0..12).map(|_| big.submit((1 << 20,))).collect();
        big.call::<Tensor>((1,))?; // after those before it: there is one thread
        all
    };
    let all = come()?;
    until("all results are there", || broker.listed("storages").len() == 12);
    all.into_iter().for_each(Pending::cancel);
    broker.nothing_is_held();
    for _ in 0..300 {
        big.submit((1 << 20,))?.cancel();
    }
    broker.nothing_is_held();
    for _ in 0..100 {
        let pending = big.submit((1 << 20,))?;
        std::thread::yield_now();
        pending.cancel();
    }
    broker.nothing_is_held();
    Ok(())
}

/// What came for calls that were given up refuses no memory to others.
#[test]
fn results_of_calls_that_ended_at_their_deadlines_leave_memory_for_others() -> Result<()> {
    let Some(broker) = Broker::start_with(&["--memory", "64MiB"]) else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let own = provider.clone();
    let _big = provider.provide("big")?.serve(move |args, _| Ok(own.alloc::<u8>(&[args.get(0)?])?.freeze()))?;
    let big = caller.get_function("big")?;
    for _ in 0..20 {
        let all = (0..4).map(|_| big.submit((8 << 20,))).collect::<Result<Vec<_>>>()?;
        big.call::<Tensor>((1,))?;
        drop(all);
        big.call::<Tensor>((40 << 20,))?;
    }
    Ok(())
}
