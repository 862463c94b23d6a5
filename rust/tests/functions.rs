//! Functions, from outside: with a broker, and with processes that end while they have calls.

mod kit;

use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use baton::{Arguments, Code, DType, Error, Payload, Result, Session, Start, Tensor, Value};
use kit::{Broker, numbers, part_session, until};

const SOON: Duration = Duration::from_secs(60);

/// Calls that providers have, and those that none has taken.
fn calls(s: &Session) -> (usize, usize) {
    let f = &s.functions("f").unwrap()[0];
    (f.running, f.waiting)
}

fn code<T>(got: Result<T>) -> Code {
    match got {
        Ok(_) => panic!("it was no error"),
        Err(e) => e.code(),
    }
}

/// What a value is, with the numbers of its tensors.
fn text(v: &Value) -> String {
    match v {
        Value::Tensor(t) => format!("tensor{:?}", t.to_vec::<u64>().unwrap()),
        Value::List(all) => format!("[{}]", all.iter().map(text).collect::<Vec<_>>().join(", ")),
        Value::Tuple(all) => format!("({})", all.iter().map(text).collect::<Vec<_>>().join(", ")),
        Value::Dict(all) => {
            format!(
                "{{{}}}",
                all.iter().map(|(k, v)| format!("{}: {}", text(k), text(v))).collect::<Vec<_>>().join(", ")
            )
        }
        v => format!("{v:?}"),
    }
}

#[test]
fn values_of_each_kind_go_there_and_back() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _one = provider.function("one", |args, _| args.get::<Value>(0))?;
    let _all = provider.function("all", |args, _| {
        // A dtype and a device stand in no other value.
        let plain = |v| if matches!(v, Value::DType(_) | Value::Device(..)) { text(&v).into() } else { v };
        let named: Vec<_> = args.all()?.into_iter().map(|(k, v)| Value::from((Value::Text(k), plain(v)))).collect();
        Ok(named)
    })?;
    let x = |n| Value::Tensor(caller.from_slice(&[2], &[n, n + 1u64]).unwrap().freeze());
    let each = || {
        vec![
            Value::Null,
            true.into(),
            Value::Int(i64::MIN),
            Value::BigInt("123456789012345678901234567890".into()),
            Value::Float(-0.0),
            Value::Float(f64::INFINITY),
            "größe".into(),
            "".into(),
            Value::Bytes(vec![0, 255]),
            x(1),
            Value::DType(DType::BFLOAT16),
            Value::Device(2, 7),
            Value::List(vec![x(3), 1.into(), Value::List(vec![])]),
            Value::Tuple(vec![]),
            Value::dict([("a", x(5)), ("b", Value::Bytes(vec![1]))]),
            Value::Dict(vec![(Value::Int(3), Value::Text("three".into()))]),
        ]
    };
    for v in each() {
        let back: Value = caller.call("one", (v.clone(),))?;
        assert_eq!(text(&back), text(&v));
    }
    assert!(caller.call::<f64>("one", (f64::NAN,))?.is_nan());
    // All of them in one call, by position and by name.
    let args = each().into_iter().fold(Arguments::new(), Arguments::arg);
    let args = each().into_iter().enumerate().fold(args, |args, (i, v)| args.named(&format!("p{i}"), v));
    let back: Vec<(String, Value)> = caller.call("all", args)?;
    let n = each().len();
    assert_eq!(back.len(), 2 * n);
    for (i, ((name, got), sent)) in back.iter().zip(each().into_iter().chain(each())).enumerate() {
        assert_eq!(*name, if i < n { String::new() } else { format!("p{}", i - n) });
        match sent {
            Value::DType(_) | Value::Device(..) => assert_eq!(text(got), format!("Text({:?})", text(&sent))),
            sent => assert_eq!(text(got), text(&sent)),
        }
    }
    // More than a slot has room for.
    let long = "x".repeat(100_000);
    assert_eq!(caller.call::<String>("one", (long.as_str(),))?, long);
    let many: Vec<Value> = (0..2000).map(x).collect();
    let back: Vec<(String, Tensor)> = caller.call("all", many)?;
    assert_eq!(
        back.iter().map(|(_, t)| t.to_vec::<u64>().unwrap()[0]).collect::<Vec<_>>(),
        (0..2000).collect::<Vec<_>>()
    );
    drop(back);
    Ok(())
}

#[test]
fn nothing_of_a_call_is_held_when_all_have_let_go() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let one = provider.function("one", |args, _| args.get::<Value>(0))?;
    let x = numbers(&caller, 7);
    let back: Tensor = caller.call("one", (&x,))?;
    kit::check(&back, 7);
    let made = provider.clone();
    let fresh = provider.function("fresh", move |_, _| Ok(numbers(&made, 9)))?;
    kit::check(&caller.call::<Tensor>("fresh", ())?, 9);
    drop((x, back));
    drop((one, fresh));
    caller.close();
    drop(provider);
    broker.nothing_is_held();
    Ok(())
}

#[test]
fn a_function_writes_the_tensors_of_its_caller() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _fill = provider.function("fill", |args, _| {
        let (mut a, mut b): (Tensor, Tensor) = (args.get(0)?, args.get("out")?);
        // SAFETY: the caller waits, and nothing else has the tensor.
        unsafe { a.as_mut_slice::<u64>()?.fill(1) };
        // SAFETY: as above.
        unsafe { b.as_mut_slice::<u64>()?.fill(2) };
        Ok(())
    })?;
    let (a, b) = (numbers(&caller, 5), numbers(&caller, 5));
    caller.call::<()>("fill", Arguments::new().arg(&a).named("out", &b))?;
    assert_eq!((a.to_vec::<u64>()?, b.to_vec::<u64>()?), (vec![1; 100], vec![2; 100]));
    let e = caller.call::<()>("fill", Arguments::new().arg(a.as_read_only()).named("out", &b)).unwrap_err();
    assert_eq!((e.code(), e.detail()["kind"].as_str()), (Code::Remote, Some("baton.ReadOnly")));
    Ok(())
}

#[test]
fn errors_of_a_function_are_those_of_its_call() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller, other) = (broker.session(), broker.session(), broker.session());
    let _fails = provider.function("fails", move |args, _| match args.get::<String>(0)?.as_str() {
        "kind" => Err(Error::of_kind("ValueError", "bad value 3")),
        "panic" => panic!("out of luck"),
        "foreign" => Ok(Value::Tensor(numbers(&other, 1))),
        "nested" => Ok(Value::List(vec![Value::Device(1, 0)])),
        "deep" => Ok((0..200).fold(Value::Null, |v, _| Value::List(vec![v]))),
        what => Ok(what.into()),
    })?;
    let kind = |what: &str| {
        let e = caller.call::<Value>("fails", (what,)).unwrap_err();
        assert_eq!((e.code(), e.detail()["function"].as_str()), (Code::Remote, Some("fails")));
        (e.detail()["kind"].as_str().unwrap().to_owned(), e.detail()["message"].as_str().unwrap().to_owned())
    };
    assert_eq!(kind("kind"), ("ValueError".into(), "bad value 3".into()));
    assert_eq!(kind("panic"), ("panic".into(), "out of luck".into()));
    for what in ["foreign", "nested", "deep"] {
        assert_eq!(kind(what).0, "baton.InvalidArgument", "{what}");
    }
    let e = caller.call::<Value>("fails", (1,)).unwrap_err();
    assert_eq!(e.detail()["kind"].as_str(), Some("baton.InvalidArgument"));
    assert_eq!(caller.call::<String>("fails", ("fine",))?, "fine", "the thread goes on");
    assert_eq!(code(caller.call::<i64>("fails", ("fine",))), Code::InvalidArgument, "another result than is wanted");
    Ok(())
}

#[test]
fn a_call_that_nobody_can_take() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    assert_eq!(code(caller.call::<()>("vision/normalize", ())), Code::NotFound);
    assert_eq!(code(caller.call::<()>("a b", ())), Code::InvalidArgument);
    let provided = provider.function("vision/normalize", |_, _| Ok(1))?;
    let e = caller.call::<()>("normalize", ()).unwrap_err();
    assert!(e.code() == Code::NotFound && e.message().contains("vision/normalize"), "{e}");
    let f = caller.get_function("vision/normalize")?;
    assert_eq!((f.call::<i64>(())?, f.providers()), (1, 1));
    drop(provided);
    assert_eq!((code(f.call::<i64>(())), f.providers()), (Code::NoProvider, 0));
    assert_eq!(code(caller.call::<i64>("vision/normalize", ())), Code::NoProvider);
    let brief = f.clone().wait(Duration::from_millis(10));
    assert_eq!(code(brief.call::<i64>(())), Code::NoProvider);
    // A provider that comes while it is waited for, of a function that was there, and of one that was not.
    let waits = [("vision/normalize", f), ("late", caller.get_function("vision/normalize")?)];
    for (name, known) in waits {
        let (waiting, caller) = (known.wait(SOON), caller.clone());
        let thread = std::thread::spawn(move || match name {
            "late" => caller.calling("late")?.wait(SOON).call::<i64>(()),
            _ => waiting.call::<i64>(()),
        });
        let _provided = provider.function(name, |_, _| Ok(2))?;
        assert_eq!(thread.join().unwrap()?, 2);
    }
    Ok(())
}

#[test]
fn versions_of_a_function() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _old = provider.function("f@1.9", |_, _| Ok("old"))?;
    let _new = provider.function("f@1.10", |_, _| Ok("new"))?;
    assert_eq!(caller.call::<String>("f", ())?, "new");
    assert_eq!(caller.call::<String>("f@1.9", ())?, "old");
    assert_eq!(caller.get_function("f")?.name(), "f@1.10");
    Ok(())
}

#[test]
fn arguments_that_do_not_fit_are_not_sent() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let ran = Arc::new(AtomicUsize::new(0));
    let f = provider.provide("f")?.parameter("x", "tensor|none").parameter("n", "int64").optional("by", "float", 0.5);
    let f = f.by_name().parameter("label", "str").by_name().result("float");
    let _f = f.serve({
        let ran = ran.clone();
        move |args, _| {
            ran.fetch_add(1, Ordering::Relaxed);
            let (n, by, label): (i64, f64, String) = (args.get("n")?, args.get("by")?, args.get("label")?);
            Ok(n as f64 * by + label.len() as f64)
        }
    })?;
    let call = |args: Arguments| caller.call::<f64>("f", args);
    let good = || Arguments::new().arg(Value::Null).arg(3).named("label", "ab");
    assert_eq!(call(good())?, 3.5);
    assert_eq!(call(good().named("by", 2))?, 8.0);
    assert_eq!(call(Arguments::new().named("n", true).named("label", "").named("x", ()).named("by", true))?, 1.0);
    let scalar = caller.from_slice(&[], &[4i32])?.freeze();
    assert_eq!(call(Arguments::new().arg(()).arg(&scalar).named("label", ""))?, 2.0);
    let before = ran.load(Ordering::Relaxed);
    assert_eq!(before, 4);
    for (args, what) in [
        (Arguments::new(), "x is not given"),
        (good().named("more", 1), "no parameter more"),
        (good().named("n", 1), "n is given twice"),
        (good().named("by", "text"), "by is float, and str is given"),
        (Arguments::new().arg(()).arg(1.5).named("label", ""), "n is int64, and float is given"),
        (Arguments::new().arg(()).arg(u64::MAX).named("label", ""), "does not fit"),
        (Arguments::new().arg(1).arg(1).named("label", ""), "x is tensor|none, and int is given"),
        (Arguments::new().arg(()).arg(1).arg(2).named("label", ""), "3 arguments by position are too many"),
        (Arguments::new().arg(()).arg(numbers(&caller, 1)).named("label", ""), "a tensor with dimensions"),
        (Arguments::new().arg(()).arg(Value::List(vec![])).named("label", ""), "list is given"),
        (Arguments::new().named("label", "").arg(1), "comes behind one by name"),
    ] {
        let e = call(args).unwrap_err();
        assert!(e.code() == Code::InvalidArgument && e.message().contains(what), "{what}: {e}");
    }
    assert_eq!(ran.load(Ordering::Relaxed), before, "nothing was sent");
    assert_eq!(
        caller.get_function("f")?.signature(),
        "(x: tensor|none, n: int64, *, by: float = 0.5, label: str) -> float"
    );
    Ok(())
}

#[test]
fn who_may_register() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (a, b) = (broker.session(), broker.session());
    let of = |s: &Session, types: &str| s.provide("f").map(|f| f.parameter("x", types));
    let first = of(&a, "int")?.doc("One.").serve(|_, _| Ok(1))?;
    assert_eq!(code(of(&a, "int")?.serve(|_, _| Ok(1))), Code::Conflict, "a session provides it once");
    assert_eq!(code(of(&b, "str")?.serve(|_, _| Ok(2))), Code::Conflict, "another signature");
    let second = of(&b, "int")?.doc("Two.").serve(|_, _| Ok(2))?;
    assert_eq!(a.get_function("f")?.providers(), 2);
    drop((first, second));
    until("both have left", || a.functions("f").unwrap().iter().all(|f| f.providers.is_empty()));
    let _only = of(&a, "str")?.exclusive(true).serve(|_, _| Ok(1))?;
    assert_eq!(code(a.provide("g")?.concurrency(0).serve(|_, _| Ok(1))), Code::InvalidArgument);
    assert_eq!(code(a.provide("g@")?.serve(|_, _| Ok(1))), Code::InvalidArgument);
    assert_eq!(
        code(a.provide("g")?.parameter("x", "int").parameter("x", "int").serve(|_, _| Ok(1))),
        Code::InvalidArgument
    );
    Ok(())
}

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
        assert_eq!(said.recv_timeout(SOON).unwrap(), (true, true, Err(Code::Cancelled)));
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
    assert_eq!(caller.call::<i64>("down", (64,))?, 64);
    let e = caller.call::<i64>("down", (65,)).unwrap_err();
    assert!(e.message().contains("64 deep"), "{e}");
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

/// A provider in a process of its own, which is killed with its value.
struct Apart(Child);

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn apart(broker: &Broker, s: &Session, set: impl FnOnce(&mut Command)) -> Result<Apart> {
    let mut up = s.topic("up")?.reader(Start::New)?;
    let mut command = broker.part("provider");
    set(&mut command);
    let child = Apart(command.spawn().unwrap());
    up.recv(SOON)?;
    Ok(child)
}

#[test]
fn the_only_provider_ends() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    for what in ["die", "exit"] {
        let p = apart(&broker, &s, |_| {})?;
        let e = s.call::<Value>("f", (what,)).unwrap_err();
        assert_eq!(e.code(), Code::ProviderDied, "{e}");
        assert_eq!(e.detail()["pid"], p.0.id(), "{e}");
        until("it has left", || s.get_function("f").unwrap().providers() == 0);
        assert_eq!(code(s.call::<Value>("f", (what,))), Code::NoProvider);
    }
    Ok(())
}

#[test]
fn what_no_provider_has_begun_is_anothers() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let mut ran = s.topic("ran")?.reader(Start::New)?;
    let first = apart(&broker, &s, |_| {})?;
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
        let first = apart(&broker, &s, |_| {})?;
        let running = threads.spawn(|| s.call::<Value>("f", ("wait",)));
        ran.recv(SOON)?;
        let waiting = threads.spawn(|| s.call::<(i64, i64)>("f", ("",)));
        until("it waits", || calls(&s).1 == 1);
        other.replace(apart(&broker, &s, |_| {})?); // which takes it
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
    let providers = [apart(&broker, &s, set)?, apart(&broker, &s, set)?];
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
    let provider = apart(&broker, &s, |_| {})?;
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
    let _apart = apart(&broker, &s, |_| {})?;
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
        let provider = apart(&broker, &s, |_| {})?;
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

#[test]
fn async_calls() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let mut ran = s.topic("ran")?.reader(Start::New)?;
    let other = apart(&broker, &s, |c| _ = c.env("CONCURRENCY", "2"))?;
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
