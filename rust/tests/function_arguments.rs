//! Functions as arguments of calls: where they run, how long they live, and processes that end meanwhile.

mod kit;

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use baton::{Arguments, Code, Error, Function, FunctionValue, Payload, Result, Session, Start, Tensor, Value};
use kit::{Apart, Broker, numbers, part_session, until};

const SOON: Duration = Duration::from_secs(60);

fn code<T>(got: Result<T>) -> Code {
    match got {
        Ok(_) => panic!("it was no error"),
        Err(e) => e.code(),
    }
}

/// Adds one, and notes in which thread.
fn adds(threads: &Arc<Mutex<Vec<ThreadId>>>) -> FunctionValue {
    let threads = threads.clone();
    FunctionValue::new(move |args, _| {
        threads.lock().unwrap().push(std::thread::current().id());
        Ok(args.get::<i64>(0)? + 1)
    })
}

#[test]
fn a_function_runs_in_the_thread_that_waits() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _twice = provider.provide("twice")?.parameter("f", "function").parameter("x", "int").serve(|args, _| {
        let f: Function = args.get("f")?;
        assert!(f.is_lent());
        f.call::<i64>((f.call::<i64>((args.get::<i64>("x")?,))?,))
    })?;
    let threads = Arc::new(Mutex::new(Vec::new()));
    for i in 0..20 {
        assert_eq!(caller.call::<i64>("twice", (adds(&threads), i))?, i + 2);
    }
    assert_eq!(*threads.lock().unwrap(), [std::thread::current().id(); 40]);
    let e = caller.call::<i64>("twice", (1, 2)).unwrap_err();
    assert!(e.code() == Code::InvalidArgument && e.message().contains("f is function"), "{e}");
    assert_eq!(code(caller.call::<i64>("twice", (adds(&threads), adds(&threads)))), Code::InvalidArgument);
    // Each thread has its own.
    std::thread::scope(|s| {
        let work = || {
            let threads = Arc::new(Mutex::new(Vec::new()));
            for i in 0..20 {
                assert_eq!(caller.call::<i64>("twice", (adds(&threads), i))?, i + 2);
            }
            assert_eq!(*threads.lock().unwrap(), [std::thread::current().id(); 40]);
            Ok::<_, Error>(())
        };
        let all: Vec<_> = (0..4).map(|_| s.spawn(work)).collect();
        all.into_iter().try_for_each(|t| t.join().unwrap())
    })
}

#[test]
fn functions_stand_anywhere_in_the_arguments() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _sum = provider.function("sum", |args, _| {
        let Value::Dict(all) = args.get::<Value>("of")? else { panic!("it is no dict") };
        let mut sum = 0;
        for (_, v) in all {
            let Value::List(all) = v else { panic!("it is no list") };
            for f in all {
                let Value::Function(f) = f else { panic!("it is no function") };
                sum += f.function()?.call::<i64>((1,))?;
            }
        }
        Ok(sum)
    })?;
    let of = |n: i64| Value::Function(FunctionValue::new(move |args, _| Ok(n * args.get::<i64>(0)?)));
    let _known = caller.function("known", |args, _| Ok(1000 * args.get::<i64>(0)?))?;
    let known = Value::from(&caller.get_function("known")?);
    let all = Value::dict([("a", Value::List(vec![of(1), of(10)])), ("b", Value::List(vec![of(100), known]))]);
    assert_eq!(caller.call::<i64>("sum", Arguments::new().named("of", all))?, 1111);
    let topic = caller.topic("t")?;
    assert_eq!(code(Value::List(vec![of(1)]).payload().and_then(|p| topic.send(p))), Code::InvalidArgument);
    Ok(())
}

#[test]
fn a_function_takes_and_gives_tensors_and_errors() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _apply =
        provider.function("apply", |args, _| args.get::<Function>(0)?.call::<Value>((args.get::<Value>(1)?,)))?;
    let fill = FunctionValue::new(|args, _| {
        let mut x: Tensor = args.get(0)?;
        // SAFETY: caller and function wait, and nothing else has the tensor.
        unsafe { x.as_mut_slice::<u64>()?[0] = 77 };
        Ok(x)
    });
    let x = numbers(&caller, 1);
    let y: Tensor = caller.call("apply", (fill, &x))?;
    assert_eq!((x.to_vec::<u64>()?[0], y.to_vec::<u64>()?[0]), (77, 77));
    let fails = FunctionValue::new(|_, _| Err::<(), _>(Error::of_kind("ValueError", "bad value 3")));
    let e = caller.call::<()>("apply", (fails, 0)).unwrap_err();
    assert_eq!((e.code(), e.detail()["kind"].as_str()), (Code::Remote, Some("ValueError")), "{e}");
    let panics = FunctionValue::new(|_, _| -> Result<()> { panic!("out of luck") });
    let e = caller.call::<()>("apply", (panics, 0)).unwrap_err();
    assert_eq!(e.detail()["kind"].as_str(), Some("panic"));
    drop((x, y));
    broker.nothing_is_held();
    Ok(())
}

#[test]
fn functions_of_calls_that_are_waited_for_later_have_a_thread() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _apply = provider
        .provide("apply")?
        .concurrency(3)
        .serve(|args, _| args.get::<Function>(0)?.call::<i64>((args.get::<i64>(1)?,)))?;
    let _each = provider.provide("each")?.serve_parts(|args, _, parts| {
        let f: Function = args.get(0)?;
        (0..args.get::<i64>(1)?).try_for_each(|i| parts.send(f.call::<i64>((i,))?))
    })?;
    let threads = Arc::new(Mutex::new(Vec::new()));
    let apply = caller.get_function("apply")?;
    let pending = (0..20).map(|i| apply.submit((adds(&threads), i))).collect::<Result<Vec<_>>>()?;
    for (i, p) in pending.into_iter().enumerate() {
        assert_eq!(p.wait::<i64>()?, i as i64 + 1);
    }
    let each = caller.get_function("each")?.ahead(1);
    assert_eq!(each.stream::<i64>((adds(&threads), 5))?.collect::<Result<Vec<_>>>()?, [1, 2, 3, 4, 5]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert_eq!(runtime.block_on(apply.call_async::<i64>((adds(&threads), 7)))?, 8);
    let threads = threads.lock().unwrap();
    assert_eq!(threads.len(), 26);
    assert!(threads.iter().all(|t| *t == threads[0] && *t != std::thread::current().id()), "one thread for all");
    Ok(())
}

#[test]
fn a_wait_within_a_function_serves_the_functions_around_it() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (a, b, caller) = (broker.session(), broker.session(), broker.session());
    // The function of the outer call runs in the thread that waits for the inner one, which is made by another of it.
    let apply = |args: &baton::Args, _: &baton::Call| args.get::<Function>(0)?.call::<i64>((args.get::<i64>(1)?,));
    let _a = a.provide("a")?.serve(move |args, _| {
        let (f, g): (Function, Function) = (args.get(0)?, args.get(1)?);
        std::thread::scope(|s| {
            let beside = s.spawn(|| g.call::<i64>((100,)));
            let own = f.call::<i64>((1,))?;
            Ok::<_, Error>(own + beside.join().unwrap()?)
        })
    })?;
    let _b = b.provide("b")?.serve(apply)?;
    let served = Arc::new(AtomicUsize::new(0));
    let me = std::thread::current().id();
    let g = FunctionValue::new({
        let served = served.clone();
        move |args, _| {
            assert_eq!(std::thread::current().id(), me);
            served.fetch_add(1, Ordering::SeqCst);
            args.get::<i64>(0)
        }
    });
    let inner = caller.clone();
    let f = FunctionValue::new({
        let served = served.clone();
        move |args, _| {
            let n: i64 = args.get(0)?;
            let served = served.clone();
            // It waits until the other one has run, which only this thread can do meanwhile.
            let h = FunctionValue::new(move |args, _| {
                assert_eq!(std::thread::current().id(), me);
                let n: i64 = args.get(0)?;
                Ok(n + served.load(Ordering::SeqCst) as i64)
            });
            let mut got = 0;
            until("the other one has run", || {
                got = inner.call::<i64>("b", (h.clone(), n)).unwrap();
                got == n + 1
            });
            Ok(got)
        }
    });
    assert_eq!(caller.call::<i64>("a", (f, g))?, 102);
    Ok(())
}

#[test]
fn calls_there_and_back_have_an_end() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let apply = |args: &baton::Args, _: &baton::Call| args.get::<Function>(0)?.call::<i64>((args.get::<i64>(1)?,));
    let _many = provider.provide("many")?.concurrency(100).serve(apply)?;
    let _one = provider.provide("one")?.serve(apply)?;
    /// Calls the function with a function that does the same, so many times.
    fn down(s: &Session, name: &'static str) -> FunctionValue {
        let s = s.clone();
        FunctionValue::new(move |args, _| match args.get::<i64>(0)? {
            0 => Ok(0),
            n => Ok(1 + s.call::<i64>(name, (down(&s, name), n - 1))?),
        })
    }
    assert_eq!(caller.call::<i64>("many", (down(&caller, "many"), 31))?, 31);
    let e = caller.call::<i64>("many", (down(&caller, "many"), 40)).unwrap_err();
    assert!(e.message().contains("64 deep"), "{e}");
    assert!(e.message().contains("many > a function argument > many"), "{e}");
    let e = caller.call::<i64>("one", (down(&caller, "one"), 2)).unwrap_err();
    assert!(e.message().contains("would wait for itself"), "{e}");
    assert!(e.message().contains("one > a function argument > one"), "{e}");
    assert_eq!(caller.call::<i64>("one", (down(&caller, "one"), 0))?, 0);
    Ok(())
}

#[test]
fn a_function_lives_as_long_as_its_call() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let kept = Arc::new(Mutex::new(None::<Function>));
    let (say, said) = mpsc::channel();
    let _keep = provider.provide("keep")?.concurrency(2).serve({
        let kept = kept.clone();
        move |args, _| {
            let f: Function = args.get(0)?;
            *kept.lock().unwrap() = Some(f.clone());
            if args.get::<bool>(1)? {
                let say = say.clone();
                // It runs on when the call is over, calling the function all the time.
                std::thread::spawn(move || {
                    let e = std::iter::repeat_with(|| f.call::<i64>((1,))).find_map(Result::err).unwrap();
                    say.send(e.code()).unwrap();
                });
            }
            Ok(())
        }
    })?;
    let ran = Arc::new(AtomicI64::new(0));
    let f = || {
        let ran = ran.clone();
        FunctionValue::new(move |args, _| Ok(ran.fetch_add(args.get::<i64>(0)?, Ordering::SeqCst)))
    };
    caller.call::<()>("keep", (f(), false))?;
    let late = kept.lock().unwrap().clone().unwrap();
    assert_eq!(code(late.call::<i64>((1,))), Code::Closed);
    assert_eq!(code(late.submit((1,))), Code::Closed);
    for _ in 0..50 {
        caller.call::<()>("keep", (f(), true))?;
        assert_eq!(said.recv_timeout(SOON).unwrap(), Code::Closed);
    }
    let held = Arc::new(());
    let holds = FunctionValue::new({
        let held = held.clone();
        move |_, _| Ok(Arc::strong_count(&held))
    });
    caller.call::<()>("keep", (&holds, false))?;
    caller.get_function("keep")?.submit((&holds, false))?.wait::<()>()?;
    drop(holds);
    until("what the function held is free", || Arc::strong_count(&held) == 1);
    Ok(())
}

#[test]
fn what_may_be_passed_on() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (a, b, caller) = (broker.session(), broker.session(), broker.session());
    let _double = b.function("double", |args, _| Ok(2 * args.get::<i64>(0)?))?;
    let _apply = b.function("apply", |args, _| args.get::<Function>(0)?.call::<i64>((5,)))?;
    let _gives = a.function("gives", |args, _| match args.get::<Value>(0)? {
        Value::Text(name) => Ok(Value::from(FunctionValue::named(&name)?)),
        Value::Function(f) => Ok(f.into()), // its caller's
        _ => Ok(FunctionValue::new(|_, _| Ok(1)).into()),
    })?;
    let own = a.clone();
    let _passes = a.function("passes", move |args, _| own.call::<i64>("apply", (args.get::<Value>(0)?,)))?;
    // A registered one anywhere.
    assert_eq!(caller.call::<i64>("passes", (FunctionValue::named("double")?,))?, 10);
    let double: Function = caller.call("gives", ("double",))?;
    assert_eq!((double.name(), double.is_lent(), double.call::<i64>((4,))?), ("double", false, 8));
    assert_eq!(code(FunctionValue::named("a b")), Code::InvalidArgument);
    assert_eq!(code(caller.call::<Function>("gives", ("nothing",))), Code::NotFound);
    // One that came as an argument is its receiver's alone; and no result is another.
    for args in [Value::from(FunctionValue::new(|_, _| Ok(1))), 1.into()] {
        let e = caller.call::<Value>("gives", (args,)).unwrap_err();
        assert_eq!(e.detail()["kind"].as_str(), Some("baton.InvalidArgument"), "{e}");
    }
    let e = caller.call::<i64>("passes", (FunctionValue::new(|_, _| Ok(1)),)).unwrap_err();
    assert_eq!(e.detail()["kind"].as_str(), Some("baton.InvalidArgument"), "{e}");
    Ok(())
}

#[test]
fn private_functions_are_not_listed() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let (say, said) = mpsc::channel();
    let _f = provider.function("f", |args, _| args.get::<Function>(0)?.call::<()>(()))?;
    let looks = caller.clone();
    let f = FunctionValue::new(move |_, call| {
        let names: Vec<_> = looks.functions("*")?.into_iter().map(|f| f.name).collect();
        say.send((names, call.deadline().is_some())).unwrap();
        Ok(())
    });
    caller.get_function("f")?.timeout(SOON).call::<()>((f,))?;
    let (names, has_deadline) = said.recv_timeout(SOON).unwrap();
    assert!(has_deadline, "it has that of its call");
    assert_eq!(names, ["f"]);
    Ok(())
}

/// A provider of another process: of `apply`, which calls what it is given; and of `dies`, which ends instead.
#[test]
#[ignore = "a process of another test"]
fn provider() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let applied = s.topic("applied")?;
    let _apply = s.function("apply", move |args, _| {
        let got = args.get::<Function>(0)?.call::<i64>((args.get::<i64>(1)?,));
        let e = got.as_ref().err().map_or("", |e| e.code().as_str());
        applied.send(Payload::default().meta(&e)?)?;
        got
    })?;
    let dies = s.function("dies", |args, _| {
        let f: Function = args.get(0)?;
        f.call::<i64>((1,))?;
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        Ok(())
    })?;
    s.topic("up")?.send(Payload::default())?;
    dies.join()
}

#[test]
fn a_provider_that_ends_while_it_has_a_function() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let p = broker.apart(&s, |_| {})?;
    let f = FunctionValue::new(|args, _| Ok(args.get::<i64>(0)? + 1));
    assert_eq!(s.call::<i64>("apply", (&f, 5))?, 6);
    assert_eq!(code(s.call::<()>("dies", (&f,))), Code::ProviderDied);
    drop(p);
    // While the function runs that it has called.
    let p = Mutex::new(Some(broker.apart(&s, |_| {})?));
    let kills = FunctionValue::new(move |_, call| {
        p.lock().unwrap().take(); // it is killed
        call.wait_cancelled(None)?;
        Ok(call.cancelled())
    });
    assert_eq!(code(s.call::<i64>("apply", (kills, 5))), Code::ProviderDied);
    let _p = broker.apart(&s, |_| {})?;
    assert_eq!(s.call::<i64>("apply", (&f, 7))?, 8, "the door is used again");
    broker.nothing_is_held();
    Ok(())
}

/// Calls with a function in which it is killed.
#[test]
#[ignore = "a process of another test"]
fn caller() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let f = FunctionValue::new(|_, _| {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        Ok(1)
    });
    s.call::<i64>("apply", (f, 1)).map(drop)
}

#[test]
fn a_caller_that_ends_in_its_function() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let _p = broker.apart(&s, |_| {})?;
    let mut applied = s.topic("applied")?.reader(Start::New)?;
    let mut caller = Apart(broker.part("caller").spawn().unwrap());
    let message = applied.recv(SOON)?;
    let how = String::from_utf8_lossy(message.bundle()?.meta()).into_owned();
    assert!(["\"ProviderDied\"", "\"Cancelled\""].contains(&&*how), "{how}");
    caller.0.wait().unwrap();
    until("nothing runs", || s.functions("apply").unwrap()[0].running == 0);
    broker.nothing_is_held();
    // The provider has that in which it waited for its own call's reply, for the next one.
    let private = || broker.listed("topics").iter().filter(|t| t["name"] == "").count();
    until("the private topics have gone", || private() <= 1);
    Ok(())
}

#[test]
fn functions_are_lent_without_a_broker() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let _p = broker.apart(&s, |_| {})?;
    let f = FunctionValue::new(|args, _| Ok(args.get::<i64>(0)? + 1));
    let apply = s.get_function("apply")?;
    assert_eq!(apply.call::<i64>((&f, 5))?, 6);
    broker.kill();
    for i in 0..50 {
        assert_eq!(apply.call::<i64>((&f, i))?, i + 1);
    }
    broker.restart();
    for i in 0..50 {
        assert_eq!(apply.call::<i64>((&f, i))?, i + 1);
    }
    until("the broker serves", || s.topic("fresh").is_ok());
    assert_eq!(apply.call::<i64>((&f, 5))?, 6);
    assert_eq!(s.functions("*")?.len(), 2);
    Ok(())
}

#[test]
fn a_session_that_is_closed_in_its_function() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _apply = provider.function("apply", |args, _| args.get::<Function>(0)?.call::<i64>((1,)))?;
    let own = caller.clone();
    let closes = FunctionValue::new(move |_, _| {
        own.clone().close();
        Ok(1)
    });
    assert_eq!(code(caller.call::<i64>("apply", (closes,))), Code::Closed);
    let other = broker.session();
    let pending = other.get_function("apply")?.submit((FunctionValue::new(|_, _| Ok(3)),))?;
    assert_eq!(pending.wait::<i64>()?, 3);
    drop(other); // with the thread that it keeps
    until("both have gone", || broker.rust_sessions().len() == 1);
    Ok(())
}
