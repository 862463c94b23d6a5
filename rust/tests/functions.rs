//! Functions, from outside: what calls carry, signatures and registrations.

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton::{Arguments, Code, DType, Error, Result, Session, Tensor, Value};
use kit::{Broker, code, numbers, until};

const SOON: Duration = Duration::from_secs(60);

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
    let e = caller.call::<()>("fill", Arguments::new().arg(a.to_read_only()).named("out", &b)).unwrap_err();
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
fn a_call_that_no_provider_can_take() -> Result<()> {
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
        (Arguments::new().arg(()).arg(1).named("label", "a").named("label", "b"), "label is given twice"),
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
fn sessions_that_may_register() -> Result<()> {
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
fn what_may_be_provided_is_so_in_every_language() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/testdata/functions.json");
    let table: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let provided = |p: Result<baton::Provide>| p.and_then(|p| p.serve(|_, _| Ok(()))).map(drop);
    let same = |got: Result<()>, error: &serde_json::Value, of: &serde_json::Value| match got {
        Ok(()) => assert_eq!(error, "", "{of}"),
        Err(e) => {
            assert_eq!((e.code(), e.to_string().as_str()), (Code::InvalidArgument, error.as_str().unwrap()), "{of}")
        }
    };
    let rows = |of: &str| table[of].as_array().unwrap().clone();
    assert!(rows("names").len() > 15 && rows("signatures").len() > 40);
    for row in rows("names") {
        same(provided(session.provide(row[0].as_str().unwrap())), &row[1], &row);
    }
    for row in rows("signatures") {
        let mut p = session.provide("f")?.no_parameters();
        for one in row["parameters"].as_array().unwrap() {
            p = p.parameter(one[0].as_str().unwrap(), one[1].as_str().unwrap());
        }
        same(provided(Ok(p.result(row["result"].as_str().unwrap()))), &row["error"], &row);
        until("it has left", || session.functions("f").unwrap().is_empty());
    }
    Ok(())
}

/// What panics once more where it is dropped.
struct Bad;

impl Drop for Bad {
    fn drop(&mut self) {
        panic!("from the drop of a panic");
    }
}

#[test]
fn a_panic_whose_payload_panics_is_an_error_of_its_call_and_the_thread_goes_on() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _bad = provider.function("bad", |args, _| match args.get::<i64>(0)? {
        0 => std::panic::panic_any(Bad),
        n => Ok(n),
    })?;
    let f = caller.get_function("bad")?.timeout(SOON);
    for n in 1..3 {
        let e = f.call::<i64>((0,)).unwrap_err();
        assert_eq!((e.code(), e.detail()["kind"].as_str()), (Code::Remote, Some("panic")));
        assert_eq!(f.call::<i64>((n,))?, n);
    }
    Ok(())
}
