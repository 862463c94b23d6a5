//! Functions of the tests across languages (`integration/langs`): with `BATON_FUNCTIONS=serve` it provides those that
//! functions_role_test.go lists, until its standard input ends; else it calls them, whichever language provides them.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use baton::{Arguments, Code, Error, KindedError, Payload, Provided, Result, Session, Tensor, Value};
use serde_json::json;

/// What the kind test.Own is in Rust.
#[derive(Debug)]
struct Own;

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an own error")
    }
}

impl std::error::Error for Own {}

impl KindedError for Own {
    fn kind(&self) -> &str {
        "test.Own"
    }
}

fn serve(session: &Session) -> Result<()> {
    let sum = Arc::new(AtomicI64::new(0));
    let (count, marks) = (sum.clone(), session.clone());
    let mut all: Vec<Provided> = Vec::new();
    all.push(session.provide("fn/same")?.parameter("x", "any").serve(|args, _| args.get::<Value>(0))?);
    all.push(session.function("fn/given", |args, _| {
        let (named, positions): (Vec<_>, Vec<_>) = args.all()?.into_iter().partition(|(name, _)| !name.is_empty());
        Ok(Value::List(vec![positions.len().into(), Value::dict(named)]))
    })?);
    let scale = session.provide("fn/scale")?.parameter("x", "tensor").optional("by", "float", 2.0).by_name();
    all.push(scale.result("tensor").serve(|args, _| {
        let (mut x, by): (Tensor, f32) = (args.get("x")?, args.get("by")?);
        // SAFETY: the caller waits, and nothing else has the tensor.
        unsafe { x.as_mut_slice::<f32>()? }.iter_mut().for_each(|x| *x *= by);
        Ok(x)
    })?);
    all.push(session.provide("fn/add")?.parameter("a", "int64").parameter("b", "int64").serve(move |args, _| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(args.get::<i64>("a")? + args.get::<i64>("b")?)
    })?);
    all.push(session.provide("fn/added")?.no_parameters().serve(move |_, _| Ok(sum.load(Ordering::Relaxed)))?);
    all.push(session.provide("fn/fail")?.parameter("message", "str").serve(|args, _| -> Result<()> {
        let e = Error::of_kind("ValueError", args.get::<String>("message")?);
        Err(e.traced("here".into(), Some(json!({"kind": "KeyError", "message": "k"}))))
    })?);
    all.push(session.provide("fn/own")?.no_parameters().serve(|_, _| -> Result<()> { Err(Own)? })?);
    all.push(session.provide("fn/hold")?.no_parameters().concurrency(2).serve(move |_, call| {
        marks.set("fn/begun", Payload::default())?;
        call.wait_cancelled(None)?;
        marks.set("fn/cancelled", Payload::default())?;
        call.check()
    })?);
    let waiting = Arc::new(AtomicI64::new(0));
    let waits = waiting.clone();
    all.push(session.provide("fn/wait")?.no_parameters().concurrency(2).serve(move |_, call| {
        waiting.fetch_add(1, Ordering::SeqCst);
        call.wait_cancelled(None)?;
        waiting.fetch_sub(1, Ordering::SeqCst);
        call.check()
    })?);
    all.push(session.provide("fn/waits")?.no_parameters().serve(move |_, _| Ok(waits.load(Ordering::SeqCst)))?);
    all.push(session.provide("fn/die")?.no_parameters().serve(|_, _| {
        let me = std::process::id().to_string();
        let _ = std::process::Command::new("kill").args(["-9", &me]).status();
        Ok(())
    })?);
    println!("\"ready\"");
    std::io::stdin().lines().for_each(drop);
    drop(all);
    Ok(())
}

fn call(session: &Session) -> Result<()> {
    let x = session.from_slice(&[3], &[1f32, 2.0, 3.0])?.freeze();
    let digits = Value::BigInt("-1180591620717411303424".into());
    let nested = Value::List(vec![1.into(), Value::dict([("k", Value::Tuple(vec![x.clone().into(), Value::Null]))])]);
    for v in [Value::Null, true.into(), (-3).into(), 0.5.into(), "a\0bü".into(), vec![0u8, 255].into(), digits, nested]
    {
        let back: Value = session.call("fn/same", (v.clone(),))?;
        assert_eq!(format!("{back:?}"), format!("{v:?}"));
    }
    let args = Arguments::new().arg(1).arg(2).named("k", 3);
    let given: Vec<Value> = session.call("fn/given", args)?;
    assert_eq!(format!("{given:?}"), format!("{:?}", [Value::Int(2), Value::dict([("k", 3.into())])]));
    session.call::<Tensor>("fn/scale", Arguments::new().arg(&x).named("by", 3))?;
    session.call::<Tensor>("fn/scale", (&x,))?;
    assert_eq!(x.to_vec::<f32>()?, [6.0, 12.0, 18.0]);

    assert_eq!(session.call::<i64>("fn/add", Arguments::new().arg(2).named("b", true))?, 3);
    let refused = [
        Arguments::new().arg("2").arg(1),
        Arguments::new().arg(0.5).arg(1),
        Arguments::new().arg(&x).arg(1),
        Arguments::new().arg(1),
        Arguments::new().arg(1).arg(2).arg(3),
        Arguments::new().arg(1).named("c", 2),
        Arguments::new().arg(1).named("a", 2),
    ];
    for args in refused {
        assert_eq!(session.call::<i64>("fn/add", args).unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(session.call::<i64>("fn/added", ())?, 1);
    let e = session.call::<()>("fn/fail", ("no such thing",)).unwrap_err();
    assert_eq!(
        (e.code(), &e.detail()["kind"], &e.detail()["message"]),
        (Code::Remote, &json!("ValueError"), &json!("no such thing"))
    );
    assert_eq!(e.detail()["cause"]["kind"], "KeyError");

    baton::register_error("test.Own", |_| Own)?;
    let e = session.call::<()>("fn/own", ()).unwrap_err();
    assert!(e.source().is_some_and(|e| e.is::<Own>()) && e.message().contains("own error"), "{e}");

    let hold = session.get_function("fn/hold")?;
    let taken = |name| session.get(name, None).and_then(|_| session.delete(name));
    let pending = hold.submit(())?;
    taken("fn/begun")?;
    pending.cancel();
    taken("fn/cancelled")?;
    let late = session.get_function("fn/wait")?.timeout(Duration::from_millis(20));
    assert_eq!(late.call::<()>(()).unwrap_err().code(), Code::Timeout);
    while session.call::<i64>("fn/waits", ())? > 0 {} // until one that has begun has ended
    assert_eq!(session.call::<()>("fn/die", ()).unwrap_err().code(), Code::ProviderDied);
    assert_eq!(session.call::<i64>("fn/added", ()).unwrap_err().code(), Code::NoProvider);
    println!("\"done\"");
    Ok(())
}

fn main() -> Result<()> {
    let serves = std::env::var("BATON_FUNCTIONS").is_ok_and(|v| v == "serve");
    let session = Session::builder().name(if serves { "provider" } else { "caller" }).connect()?;
    if serves { serve(&session) } else { call(&session) }
}
