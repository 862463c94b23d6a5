//! Functions whose provider, caller or broker ends while they have calls.

mod kit;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use baton::{Code, Error, Payload, Result, Start, TopicOptions, Value};
use kit::{Apart, Broker, calls, code, numbers, part_session, until};

const SOON: Duration = Duration::from_secs(60);

/// What other processes provide: what it is given says when it ends.
#[test]
#[ignore = "a process of another test"]
fn provider() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let own = s.clone();
    let calls = std::env::var("CONCURRENCY").map_or(1, |n| n.parse().unwrap());
    let f = s.provide("f")?.concurrency(calls).idempotent(std::env::var("IDEMPOTENT").is_ok());
    let provided = f.serve(move |args, call| {
        match args.get::<String>(0)?.as_str() {
            "die" if call.attempt() == 1 => die(),
            "exit" => std::process::exit(3),
            "wait" => {
                own.topic("ran")?.send(Payload::default())?;
                call.wait_cancelled(None)?;
                own.topic("cancelled")?.send(Payload::default())?;
            }
            _ => {}
        }
        Ok((i64::from(std::process::id()), i64::from(call.attempt())))
    })?;
    s.topic("up")?.send(Payload::default())?;
    provided.join()
}

fn die() {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

/// A function whose session is over can reply to no caller: it learns that as it learns that its caller wants no reply.
#[test]
fn a_function_learns_that_its_session_is_over() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    for (ends, why) in [("closed", Code::Closed), ("lost", Code::SessionLost)] {
        let (s, provider) = (broker.session(), broker.session());
        let (tell, told) = std::sync::mpsc::channel();
        let _ran = provider.function(ends, move |_, call| {
            let why = || call.check().err().map(|e| e.code());
            tell.send((call.cancelled(), why())).unwrap();
            let over = call.wait_cancelled(SOON)?;
            tell.send((over && call.cancelled(), why())).unwrap();
            Ok(())
        })?;
        let called = s.get_function(ends)?.submit(())?;
        assert!(matches!(told.recv().unwrap(), (false, None)));
        match ends {
            "closed" => provider.close(),
            _ => {
                // Another broker at the same socket, which knows nothing of the previous one.
                broker.kill();
                std::fs::remove_file(broker.dir.path().join("state.json")).unwrap();
                broker.restart();
            }
        }
        let (cancelled, error) = told.recv().unwrap();
        assert!(cancelled && error == Some(why), "{ends}: {error:?}");
        drop(called);
    }
    Ok(())
}

/// Calls of an evicted session end because it is over, whichever thread finds first that something of it has ended.
#[test]
fn calls_that_wait_end_with_an_evicted_session() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (s, provider) = (broker.session(), broker.session());
    let (tell, told) = std::sync::mpsc::channel();
    let f = provider.provide("f")?.concurrency(20);
    let _f = f.serve(move |_, call| {
        tell.send(()).unwrap();
        call.wait_cancelled(SOON)
    })?;
    let topic = s.topic_with("t", &TopicOptions::default().overwrite(false))?;
    std::thread::scope(|threads| {
        let mut all = Vec::new();
        for _ in 0..20 {
            all.push(threads.spawn(|| code(s.call::<Value>("f", ()))));
            let mut reader = topic.group_reader("g").unwrap();
            all.push(threads.spawn(move || code(reader.recv(SOON))));
            let mut watch = s.watch("name").unwrap();
            all.push(threads.spawn(move || code(watch.next(SOON))));
        }
        for _ in 0..20 {
            told.recv().unwrap();
        }
        broker.tool(&["evict", &broker.listed("sessions")[0]["serial"].to_string(), "--yes"]);
        for waits in all {
            assert_eq!(waits.join().unwrap(), Code::SessionLost);
        }
    });
    Ok(())
}

/// A call within a function is rung when the outer one is cancelled, whichever session of the process makes it.
#[test]
fn a_call_by_another_session_ends_with_the_outer_one() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (s, outer, inner) = (broker.session(), broker.session(), broker.session());
    let (tell, told) = std::sync::mpsc::channel();
    let begun = tell.clone();
    let _waits = s.function("waits", move |_, call| {
        begun.send(None).unwrap();
        call.wait_cancelled(SOON)
    })?;
    let _outer = outer.function("outer", move |_, _| {
        tell.send(Some(code(inner.call::<Value>("waits", ())))).unwrap();
        Ok(())
    })?;
    let call = s.get_function("outer")?.submit(())?;
    assert_eq!(told.recv().unwrap(), None);
    call.cancel();
    assert_eq!(told.recv().unwrap(), Some(Code::Cancelled));
    Ok(())
}

#[test]
fn the_only_provider_ends() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    for (what, idempotent) in [("die", false), ("exit", false), ("die", true), ("exit", true)] {
        let p = broker.apart(&s, |c| _ = idempotent.then(|| c.env("IDEMPOTENT", "1")))?;
        let e = s.call::<Value>("f", (what,)).unwrap_err();
        assert_eq!(e.code(), Code::ProviderDied, "{e}");
        assert_eq!(e.detail()["pid"], p.0.id(), "{e}");
        let why = if what == "die" { "signal" } else { "status" };
        assert!(e.detail().get(why).is_some() && e.detail().get("seconds").is_some(), "{e}");
        until("it has left", || s.get_function("f").unwrap().providers() == 0);
        assert_eq!(code(s.call::<Value>("f", (what,))), Code::NoProvider);
        let (long, short) = (Duration::from_secs(600), Duration::from_millis(10));
        let f = s.get_function("f")?;
        assert_eq!(code(f.clone().wait(short).timeout(long).call::<Value>((what,))), Code::NoProvider);
        assert_eq!(code(f.clone().wait(long).timeout(short).call::<Value>((what,))), Code::Timeout);
        assert_eq!(code(f.wait(long).timeout(short).submit((what,)).and_then(|p| p.wait::<Value>())), Code::Timeout);
    }
    Ok(())
}

#[test]
fn what_no_provider_has_begun_is_anothers() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let mut ran = s.topic("ran")?.reader(Start::New)?;
    let first = broker.apart(&s, |_| {})?;
    std::thread::scope(|threads| {
        let running = threads.spawn(|| s.call::<Value>("f", ("wait",)));
        ran.recv(SOON)?;
        let waiting = threads.spawn(|| s.call::<(i64, i64)>("f", ("",)));
        until("it waits", || calls(&s).1 == 1);
        let (a, mut other) = (threads.spawn(|| s.call::<Value>("f", ("wait",))), None);
        until("they wait", || calls(&s).1 == 2);
        // Without another one they end: with it they are its.
        drop(first);
        assert_eq!(code(running.join().unwrap()), Code::ProviderDied);
        assert_eq!(code(waiting.join().unwrap()), Code::NoProvider);
        assert_eq!(code(a.join().unwrap()), Code::NoProvider);
        let first = broker.apart(&s, |_| {})?;
        let running = threads.spawn(|| s.call::<Value>("f", ("wait",)));
        ran.recv(SOON)?;
        let waiting = threads.spawn(|| s.call::<(i64, i64)>("f", ("",)));
        until("it waits", || calls(&s).1 == 1);
        other.replace(broker.apart(&s, |_| {})?); // which takes it
        let (pid, attempt) = waiting.join().unwrap()?;
        assert_eq!((pid, attempt), (i64::from(other.as_ref().unwrap().0.id()), 1));
        drop(first);
        assert_eq!(code(running.join().unwrap()), Code::ProviderDied);
        Ok(())
    })
}

#[test]
fn an_idempotent_call_is_begun_again() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let set = |c: &mut Command| _ = c.env("IDEMPOTENT", "1");
    let providers = [broker.apart(&s, set)?, broker.apart(&s, set)?];
    let (pid, attempt) = s.call::<(i64, i64)>("f", ("die",))?;
    assert!(attempt >= 2 && providers.iter().any(|p| i64::from(p.0.id()) == pid));
    assert_eq!(s.get_function("f")?.providers(), 1);
    Ok(())
}

/// Calls, and is killed meanwhile.
#[test]
#[ignore = "a process of another test"]
fn caller() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let x = numbers(&s, 3);
    s.call::<Value>("f", ("wait", &x))?;
    Ok(())
}

#[test]
fn a_caller_that_ends_leaves_nothing() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let (mut ran, mut cancelled) = (s.topic("ran")?.reader(Start::New)?, s.topic("cancelled")?.reader(Start::New)?);
    let provider = broker.apart(&s, |_| {})?;
    let mut callers = [Apart(broker.part("caller").spawn().unwrap()), Apart(broker.part("caller").spawn().unwrap())];
    ran.recv(SOON)?;
    until("the other one waits", || calls(&s).1 == 1);
    for c in &mut callers {
        c.0.kill().unwrap();
        c.0.wait().unwrap();
    }
    cancelled.recv(SOON)?;
    assert_eq!(s.call::<(i64, i64)>("f", ("",))?.1, 1, "others are served");
    broker.nothing_is_held();
    let topics = || broker.listed("topics").iter().filter(|t| t["name"] == "").count();
    until("their topics for replies have gone", || topics() == 1);
    drop(provider);
    Ok(())
}

#[test]
fn calls_go_on_without_a_broker() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let _apart = broker.apart(&s, |_| {})?;
    let f = s.get_function("f")?;
    f.call::<Value>(("",))?;
    broker.kill();
    for _ in 0..100 {
        f.call::<Value>(("",))?;
        s.call::<Value>("f", ("",))?;
    }
    broker.restart();
    for _ in 0..100 {
        f.call::<Value>(("",))?;
    }
    until("the broker serves", || s.topic("fresh").is_ok());
    f.call::<Value>(("",))?;
    assert_eq!(code(f.call::<Value>(("die",))), Code::ProviderDied);
    Ok(())
}

#[test]
fn provider_and_broker_end_together() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let mut ran = s.topic("ran")?.reader(Start::New)?;
    for comes_back in [true, false] {
        let provider = broker.apart(&s, |_| {})?;
        std::thread::scope(|threads| {
            let running = threads.spawn(|| s.call::<Value>("f", ("wait",)));
            ran.recv(SOON)?;
            let waiting = threads.spawn(|| s.call::<Value>("f", ("",)));
            until("it waits", || calls(&s).1 == 1);
            broker.kill();
            drop(provider);
            let began = Instant::now();
            if comes_back {
                broker.restart();
            }
            let (a, b) = (code(running.join().unwrap()), code(waiting.join().unwrap()));
            match comes_back {
                true => assert_eq!((a, b), (Code::ProviderDied, Code::NoProvider)),
                false => assert_eq!((a, b), (Code::BrokerLost, Code::BrokerLost)),
            }
            assert!(comes_back || began.elapsed() >= Duration::from_secs(5), "a broker may come");
            Ok::<_, Error>(())
        })?;
    }
    Ok(())
}

#[cfg(feature = "tokio")]
#[test]
fn async_calls() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let mut ran = s.topic("ran")?.reader(Start::New)?;
    let other = broker.apart(&s, |c| _ = c.env("CONCURRENCY", "2"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let f = s.get_function("f")?;
        for _ in 0..50 {
            let beside = tokio::spawn({
                let f = f.clone();
                async move { f.call_async::<(i64, i64)>(("",)).await }
            });
            let one = f.call_async::<(i64, i64)>(("",)).await?;
            assert_eq!(beside.await.unwrap()?, one);
        }
        let mut cancelled = s.topic("cancelled")?.reader(Start::New)?;
        let dropped = tokio::spawn({
            let f = f.clone();
            async move { f.call_async::<Value>(("wait",)).await }
        });
        ran.recv_async(SOON).await?;
        dropped.abort();
        cancelled.recv_async(SOON).await?;
        let brief = f.clone().timeout(Duration::from_millis(5));
        assert_eq!(code(brief.call_async::<Value>(("wait",)).await), Code::Timeout);
        until("nothing runs", || calls(&s) == (0, 0));
        let dies = tokio::spawn({
            let f = f.clone();
            async move { f.call_async::<Value>(("wait",)).await }
        });
        until("it runs", || calls(&s).0 == 1);
        drop(other);
        assert_eq!(code(dies.await.unwrap()), Code::ProviderDied);
        assert_eq!(code(f.call_async::<Value>(("",)).await), Code::NoProvider);
        Ok(())
    })
}

#[test]
fn a_provider_whose_session_an_operator_ends_says_so() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let provider = broker.session();
    let (lost, removed) = (provider.function("lost", |_, _| Ok(()))?, provider.function("removed", |_, _| Ok(()))?);
    provider.remove_function("removed")?;
    removed.join()?;
    broker.tool(&["evict", &broker.listed("sessions")[0]["serial"].to_string(), "--yes"]);
    let e = lost.join().unwrap_err();
    assert_eq!(e.code(), Code::SessionLost);
    assert!(e.to_string().contains("an operator evicted it"), "{e}");
    Ok(())
}

/// A call may end by its deadline after its function was removed: no command shows it, so that the error says so.
#[test]
fn a_timeout_of_a_call_whose_function_was_removed_says_so() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, s) = (broker.session(), broker.session());
    let _removed = provider.function("removed", |_, _| Ok(()))?;
    let f = s.get_function("removed")?;
    provider.remove_function("removed")?;
    let f = f.wait(Duration::from_secs(3600)).timeout(Duration::from_millis(10));
    let e = f.call::<Value>(()).unwrap_err();
    assert_eq!(e.code(), Code::Timeout);
    let expected = "no process provides the function: it was deleted, or its providers have ended";
    assert!(e.to_string().contains(expected), "{e}");
    Ok(())
}

#[test]
fn calls_that_were_given_up_hold_up_no_other() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, s) = (broker.session(), broker.session());
    let (gate, begun) = (Arc::new(OnceLock::new()), Arc::new(AtomicUsize::new(0)));
    let (open, count) = (gate.clone(), begun.clone());
    let provided = provider.provide("holds")?.concurrency(3).serve(move |args, _| {
        if args.get::<bool>(0)? {
            count.fetch_add(1, Ordering::SeqCst);
            open.wait(); // and looks at nothing else
        }
        Ok(1)
    });
    let _provided = provided?;
    let f = s.get_function("holds")?;
    for n in 1..=2 {
        let given_up = f.submit((true,))?;
        until("it has begun", || begun.load(Ordering::SeqCst) == n);
        drop(given_up);
    }
    for _ in 0..300 {
        assert_eq!(f.call::<i64>((false,))?, 1);
    }
    gate.set(()).unwrap();
    for _ in 0..300 {
        assert_eq!(f.call::<i64>((false,))?, 1);
    }
    Ok(())
}

/// A provider that gets no memory for the place of its reply ends the call without one, and its caller has the reason.
#[test]
fn a_call_whose_reply_gets_no_memory_says_so() -> Result<()> {
    let Some(broker) = Broker::start_with(&["--memory", "64MiB"]) else { return Ok(()) };
    let (first, second, caller) = (broker.session(), broker.session(), broker.session());
    let provided = first.function("f", |_, _| Ok(1))?;
    assert_eq!(caller.call::<i64>("f", ())?, 1); // the caller has all that a call needs
    let _second = second.function("f", |_, _| Ok(2))?;
    drop(provided);
    let (mut all, mut n) = (Vec::new(), 16 << 20);
    while n >= 4096 {
        match caller.alloc::<u8>(&[n]) {
            Ok(x) => all.push(x),
            Err(_) => n /= 2,
        }
    }
    let e = caller.call::<i64>("f", ()).unwrap_err();
    assert_eq!(e.code(), Code::OutOfMemory, "{e}");
    assert!(e.to_string().contains("got no memory for one"), "{e}");
    assert_eq!(e.detail()["function"], "f");
    drop(all);
    assert_eq!(caller.call::<i64>("f", ())?, 2);
    Ok(())
}
