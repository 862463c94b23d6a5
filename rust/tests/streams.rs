//! Functions that give parts: backpressure, places, and processes that end in mid-stream.

mod kit;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use baton::{Code, Error, Payload, Result, Session, Start, Tensor, Value};
use kit::{Apart, Broker, numbers, part_session, until};

const SOON: Duration = Duration::from_secs(60);

fn code<T>(got: Result<T>) -> Code {
    match got {
        Ok(_) => panic!("it was no error"),
        Err(e) => e.code(),
    }
}

/// Calls that providers have, and those that none has taken.
fn calls(s: &Session, name: &str) -> (usize, usize) {
    let f = &s.functions(name).unwrap()[0];
    (f.running, f.waiting)
}

#[test]
fn parts_come_in_their_order_and_the_result_at_the_end() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let own = provider.clone();
    let _count =
        provider.provide("count")?.parameter("n", "int").result("any").serve_parts(move |args, _, parts| {
            let n = args.get::<i64>("n")?;
            for i in 0..n {
                parts.send(i)?;
                parts.send(numbers(&own, i as u64))?;
            }
            Ok(("end", n))
        })?;
    let count = caller.get_function("count")?;
    assert_eq!(count.signature(), "(n: int) -> parts of any");
    for n in [0, 1, 100] {
        let mut parts = count.stream::<Value>((n,))?;
        for i in 0..n {
            assert!(matches!(parts.next().unwrap()?, Value::Int(k) if k == i));
            let Value::Tensor(x) = parts.next().unwrap()? else { panic!("it is no tensor") };
            kit::check(&x, i as u64);
        }
        assert!(parts.next().is_none() && parts.next().is_none());
        assert_eq!(parts.result::<(String, i64)>()?, ("end".to_owned(), n));
    }
    assert_eq!(count.stream::<Value>((50,))?.result::<(String, i64)>()?.1, 50, "parts that nobody takes");
    drop(caller);
    drop(provider);
    Ok(())
}

#[test]
fn a_stream_and_a_plain_call_are_not_mistaken() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let _plain = s.function("plain", |_, _| Ok(1))?;
    let _parts = s.provide("parts")?.serve_parts(|_, _, parts| parts.send(1))?;
    let (plain, parts) = (s.get_function("plain")?, s.get_function("parts")?);
    assert_eq!(code(plain.stream::<i64>(())), Code::InvalidArgument);
    let e = parts.call::<i64>(()).unwrap_err();
    assert!(e.code() == Code::InvalidArgument && e.message().contains("parts"), "{e}");
    assert_eq!(code(parts.submit(())), Code::InvalidArgument);
    for odd in [0, 64, u32::MAX] {
        assert_eq!(code(parts.clone().ahead(odd).stream::<i64>(())), Code::InvalidArgument);
    }
    assert_eq!(parts.ahead(63).stream::<i64>(())?.map(Result::unwrap).collect::<Vec<_>>(), [1]);
    Ok(())
}

#[test]
fn a_provider_is_ahead_as_far_as_it_may() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let sent = Arc::new(AtomicUsize::new(0));
    let _f = provider.provide("f")?.concurrency(8).serve_parts({
        let sent = sent.clone();
        move |_, _, parts| {
            (0..).try_for_each(|i: i64| {
                parts.send(i)?;
                sent.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Error>(())
            })
        }
    })?;
    let f = caller.get_function("f")?;
    for ahead in [1, 5, 63] {
        sent.store(0, Ordering::SeqCst);
        let mut parts = f.clone().ahead(ahead).stream::<i64>(())?;
        for taken in 0..3 {
            let most = taken + ahead as usize;
            until("it is ahead", || sent.load(Ordering::SeqCst) == most);
            assert_eq!(parts.next().unwrap()?, taken as i64);
        }
    }
    until("they are cancelled", || calls(&caller, "f") == (0, 0));
    // As many as there are: the default.
    sent.store(0, Ordering::SeqCst);
    let _unread = f.stream::<i64>(())?;
    until("it is ahead", || sent.load(Ordering::SeqCst) == 16);
    Ok(())
}

#[test]
fn a_loop_over_parts_calls_their_provider() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let _count = provider.provide("count")?.serve_parts({
        let (now, most) = (now.clone(), most.clone());
        move |args, _, parts| {
            let n = args.get::<i64>(0)?;
            for i in 0..n {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                now.fetch_sub(1, Ordering::SeqCst);
                parts.send(i)?;
            }
            Ok(())
        }
    })?;
    let count = caller.get_function("count")?.ahead(1);
    let mut all = Vec::new();
    for i in count.stream::<i64>((5,))? {
        let mut beside = count.stream::<i64>((4,))?;
        let k = beside.next().unwrap()?;
        let inner: i64 = count.stream::<i64>((3,))?.sum::<Result<_>>()?;
        all.push((i?, k, inner));
    }
    assert_eq!(all, (0..5).map(|i| (i, 0, 3)).collect::<Vec<_>>());
    assert_eq!(most.load(Ordering::SeqCst), 1, "one at a time");
    Ok(())
}

#[test]
fn streams_that_nobody_reads_hold_up_nothing() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller, other) = (broker.session(), broker.session(), broker.session());
    let _f = provider.provide("f")?.serve_parts(|args, _, parts| {
        let n = args.get::<i64>(0)?;
        (0..n).try_for_each(|i| parts.send(i))?;
        Ok(n)
    })?;
    let _plain = provider.function("plain", |_, _| Ok(7))?;
    let f = caller.get_function("f")?.ahead(2);
    let mut unread = (0..20).map(|_| f.stream::<i64>((1000,))).collect::<Result<Vec<_>>>()?;
    until("all of them wait", || calls(&caller, "f") == (20, 0));
    for _ in 0..50 {
        assert_eq!(other.get_function("f")?.stream::<i64>((10,))?.result::<i64>()?, 10);
        assert_eq!(caller.call::<i64>("plain", ())?, 7);
    }
    let mut last = unread.pop().unwrap();
    assert_eq!(last.by_ref().sum::<Result<i64>>()?, 499_500);
    drop(unread);
    until("they are cancelled", || calls(&caller, "f") == (0, 0));
    assert_eq!(f.stream::<i64>((3,))?.result::<i64>()?, 3);
    Ok(())
}

#[test]
fn as_many_run_at_a_time_as_it_says() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let _f = provider.provide("f")?.concurrency(2).serve_parts({
        let (now, most) = (now.clone(), most.clone());
        move |_, _, parts| {
            for i in 0..200i64 {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                parts.send(i)?;
            }
            Ok(())
        }
    })?;
    let f = caller.get_function("f")?.ahead(3);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..12).map(|_| s.spawn(|| f.stream::<i64>(())?.sum::<Result<i64>>())).collect();
        all.into_iter().try_for_each(|t| {
            assert_eq!(t.join().unwrap()?, 19_900);
            Ok::<_, Error>(())
        })
    })?;
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
    Ok(())
}

#[test]
fn a_stream_that_is_left_early_is_cancelled() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let own = provider.clone();
    let _f = provider.provide("f")?.serve_parts(move |_, call, parts| {
        let e = (0..).find_map(|i| parts.send(numbers(&own, i)).err()).unwrap();
        say.send((e.code(), call.cancelled())).unwrap();
        Err::<(), _>(e)
    })?;
    let f = caller.get_function("f")?;
    for taken in [0, 1, 40] {
        let mut parts = f.stream::<Tensor>(())?;
        for i in 0..taken {
            kit::check(&parts.next().unwrap()?, i);
        }
        if taken > 1 {
            parts.cancel()
        } else {
            drop(parts)
        }
        if taken > 0 {
            assert_eq!(said.recv_timeout(SOON).unwrap(), (Code::Cancelled, true));
        }
    }
    until("nothing runs", || calls(&caller, "f") == (0, 0));
    until("their topics for replies have gone", || broker.listed("topics").iter().all(|t| t["name"] != ""));
    broker.nothing_is_held();
    Ok(())
}

#[test]
fn an_error_in_mid_stream_comes_behind_the_parts() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller, other) = (broker.session(), broker.session(), broker.session());
    let _f = provider.provide("f")?.serve_parts(move |args, _, parts| {
        (0..3).try_for_each(|i| parts.send(i))?;
        match args.get::<String>(0)?.as_str() {
            "panic" => panic!("out of luck"),
            "foreign" => parts.send(numbers(&other, 1)),
            what => Err(Error::of_kind("ValueError", what)),
        }
    })?;
    let f = caller.get_function("f")?;
    for (what, kind) in [("bad", "ValueError"), ("panic", "panic"), ("foreign", "baton.InvalidArgument")] {
        let mut parts = f.stream::<i64>((what,))?;
        assert_eq!(parts.by_ref().take(3).collect::<Result<Vec<_>>>()?, [0, 1, 2]);
        let e = parts.next().unwrap().unwrap_err();
        assert_eq!((e.code(), e.detail()["kind"].as_str()), (Code::Remote, Some(kind)));
        assert!(parts.next().is_none());
        assert_eq!(code(parts.result::<i64>()), Code::Closed);
        let e = f.stream::<i64>((what,))?.result::<()>().unwrap_err();
        assert_eq!(e.detail()["kind"].as_str(), Some(kind));
    }
    // A part that is not what is asked for is an error of its own.
    let all: Vec<_> = f.stream::<String>(("bad",))?.map(code).collect();
    assert_eq!(all, [Code::InvalidArgument, Code::InvalidArgument, Code::InvalidArgument, Code::Remote]);
    Ok(())
}

#[test]
fn a_deadline_is_of_the_whole_stream() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let _f = provider.provide("f")?.serve_parts(move |_, _, parts| {
        let e = (0..).find_map(|i: i64| parts.send(i).err()).unwrap();
        say.send(e.code()).unwrap();
        Err::<(), _>(e)
    })?;
    let f = caller.get_function("f")?;
    // As long as it is not read, its provider waits. A call whose time is over before it begins is not run: then it gets
    // more.
    let mut time = Duration::from_millis(20);
    let (mut parts, ended) = loop {
        let parts = f.clone().timeout(time).stream::<i64>(())?;
        until("nothing waits or runs", || calls(&caller, "f") == (0, 0));
        if let Ok(ended) = said.try_recv() {
            break (parts, ended);
        }
        time *= 2;
    };
    assert!(matches!(ended, Code::Timeout | Code::Cancelled), "{ended:?}");
    let last = parts.by_ref().find_map(Result::err).unwrap();
    assert_eq!(last.code(), Code::Timeout);
    assert!(parts.next().is_none());
    Ok(())
}

/// Gives parts without an end; of the function's `die`th part it ends, the first time.
#[test]
#[ignore = "a process of another test"]
fn provider() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let f = s.provide("f")?.idempotent(std::env::var("IDEMPOTENT").is_ok()).concurrency(2);
    let own = s.clone();
    let provided = f.serve_parts(move |args, call, parts| {
        let (n, die): (i64, i64) = (args.get(0)?, args.get(1)?);
        for i in 0..n {
            if i == die && call.attempt() == 1 {
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
            }
            if let Err(e) = parts.send(vec![i.into(), Value::Tensor(numbers(&own, i as u64))]) {
                own.topic("left")?.send(Payload::default())?;
                return Err(e);
            }
        }
        Ok(i64::from(call.attempt()))
    })?;
    s.topic("up")?.send(Payload::default())?;
    provided.join()
}

/// The number of a part, whose tensor is looked at.
fn checked(part: (i64, Tensor)) -> i64 {
    kit::check(&part.1, part.0 as u64);
    part.0
}

#[test]
fn a_provider_that_ends_in_mid_stream() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let p = broker.apart(&s, |_| {})?;
    let mut parts = s.get_function("f")?.stream::<(i64, Tensor)>((100, 10))?;
    let got = parts.by_ref().take(10).map(|p| p.map(checked)).collect::<Result<Vec<_>>>()?;
    assert_eq!(got, (0..10).collect::<Vec<_>>(), "what was sent is given");
    let e = parts.next().unwrap().unwrap_err();
    assert_eq!((e.code(), e.detail()["pid"].as_u64()), (Code::ProviderDied, Some(u64::from(p.0.id()))), "{e}");
    assert!(parts.next().is_none());
    drop(parts);
    broker.nothing_is_held();
    Ok(())
}

#[test]
fn an_idempotent_stream_goes_on_at_another_provider() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let set = |c: &mut Command| _ = c.env("IDEMPOTENT", "1");
    for (die, ahead) in [(0, 16), (1, 16), (50, 16), (60, 1), (99, 63)] {
        let _both = [broker.apart(&s, set)?, broker.apart(&s, set)?];
        let mut parts = s.get_function("f")?.ahead(ahead).stream::<(i64, Tensor)>((100, die))?;
        let got = parts.by_ref().map(|p| p.map(checked)).collect::<Result<Vec<_>>>()?;
        assert_eq!(got, (0..100).collect::<Vec<_>>(), "each once, in their order");
        assert!(parts.result::<i64>()? >= 2);
        drop(_both);
        until("they have left", || s.get_function("f").unwrap().providers() == 0);
    }
    broker.nothing_is_held();
    Ok(())
}

/// Takes some parts, and is killed then.
#[test]
#[ignore = "a process of another test"]
fn caller() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let mut parts = s.get_function("f")?.stream::<(i64, Tensor)>((i64::MAX, -1))?;
    let _some = parts.by_ref().take(20).collect::<Result<Vec<_>>>()?;
    s.topic("reads")?.send(Payload::default())?;
    parts.try_for_each(|p| p.map(drop))
}

#[test]
fn a_caller_that_ends_in_mid_stream() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let (mut reads, mut left) = (s.topic("reads")?.reader(Start::New)?, s.topic("left")?.reader(Start::New)?);
    let _provider = broker.apart(&s, |_| {})?;
    let mut caller = Apart(broker.part("caller").spawn().unwrap());
    reads.recv(SOON)?;
    caller.0.kill().unwrap();
    caller.0.wait().unwrap();
    left.recv(SOON)?;
    until("nothing runs", || calls(&s, "f") == (0, 0));
    broker.nothing_is_held();
    assert_eq!(s.get_function("f")?.stream::<Value>((5, -1))?.result::<i64>()?, 1, "others are served");
    Ok(())
}

#[test]
fn streams_go_on_without_a_broker() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let _provider = broker.apart(&s, |_| {})?;
    let f = s.get_function("f")?;
    let mut parts = f.stream::<(i64, Tensor)>((200, -1))?;
    assert_eq!(checked(parts.next().unwrap()?), 0);
    broker.kill();
    for i in 1..100 {
        assert_eq!(checked(parts.next().unwrap()?), i);
    }
    broker.restart();
    for i in 100..200 {
        assert_eq!(checked(parts.next().unwrap()?), i);
    }
    assert_eq!(parts.result::<i64>()?, 1);
    Ok(())
}

#[test]
fn a_session_that_is_closed_ends_its_streams() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _f = provider.provide("f")?.serve_parts(|_, _, parts| (0..).try_for_each(|i: i64| parts.send(i)))?;
    let mut parts = caller.get_function("f")?.stream::<i64>(())?;
    parts.next().unwrap()?;
    caller.clone().close();
    let last = parts.by_ref().find_map(Result::err).unwrap();
    assert_eq!(last.code(), Code::Closed);
    let other = broker.session();
    let mut parts = other.get_function("f")?.stream::<i64>(())?;
    parts.next().unwrap()?;
    provider.close();
    let last = parts.by_ref().find_map(Result::err).unwrap();
    assert_eq!(last.code(), Code::ProviderDied);
    Ok(())
}

#[test]
fn parts_for_tasks() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _f = provider.provide("f")?.serve_parts(|args, _, parts| {
        let n = args.get::<i64>(0)?;
        (0..n).try_for_each(|i| parts.send(i))?;
        if n == 7 { Err(Error::of_kind("ValueError", "seven")) } else { Ok(n) }
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let f = caller.get_function("f")?.ahead(2);
        let unread = f.stream::<i64>((100,))?;
        for n in [0, 1, 50] {
            let mut parts = f.stream::<i64>((n,))?;
            for i in 0..n {
                assert_eq!(parts.next_async().await.unwrap()?, i);
            }
            assert!(parts.next_async().await.is_none());
            assert_eq!(parts.result::<i64>()?, n);
        }
        let mut parts = f.stream::<i64>((7,))?;
        for _ in 0..7 {
            parts.next_async().await.unwrap()?;
        }
        assert_eq!(code(parts.next_async().await.unwrap()), Code::Remote);
        assert!(parts.next_async().await.is_none());
        let brief = f.clone().timeout(Duration::from_millis(30));
        let mut parts = brief.stream::<i64>((i64::MAX,))?;
        let last = loop {
            match parts.next_async().await.unwrap() {
                Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(e) => break e,
            }
        };
        assert_eq!(last.code(), Code::Timeout);
        drop(unread);
        Ok(())
    })
}

/// A part that is sent as its caller leaves: the topic for it may be gone before the provider has opened it.
#[test]
fn a_first_part_for_a_caller_that_leaves() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (ends, ended) = mpsc::channel();
    let provided = provider.provide("late")?.serve_parts(move |_, call, parts| {
        let left = call.deadline().unwrap().saturating_duration_since(Instant::now());
        call.wait_cancelled(left.saturating_sub(Duration::from_micros(100)))?;
        let sent = loop {
            if let Err(e) = parts.send(1) {
                break e;
            }
        };
        let _ = ends.send(sent.code());
        Err::<(), _>(sent)
    })?;
    let late = caller.get_function("late")?.timeout(Duration::from_millis(2));
    for _ in 0..300 {
        let mut parts = match late.stream::<i64>(()) {
            Err(e) if e.code() == Code::Timeout => continue, // before it was sent, on a machine that is busy
            parts => parts?,
        };
        while let Some(Ok(_)) = parts.next() {}
        drop(parts);
    }
    drop(provided);
    let codes: std::collections::BTreeSet<&str> = ended.try_iter().map(|c: Code| c.as_str()).collect();
    assert!(codes.iter().all(|c| ["Cancelled", "Timeout"].contains(c)), "{codes:?}");
    Ok(())
}
