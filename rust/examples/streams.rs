//! Streams and functions as arguments of the tests across languages (`integration/langs`): with `BATON_FUNCTIONS=serve` it
//! provides those that streams_role_test.go lists, until its standard input ends; else it calls them, whichever language
//! provides them. With `BATON_FUNCTIONS=lend` it gives one function to a call.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use baton::{
    Args, Call, Code, Error, Function, FunctionValue, Parts, Payload, Provided, Result, Session, Tensor, Value,
};
use serde_json::json;

fn floats(s: &Session, n: usize, value: f32) -> Result<Tensor> {
    Ok(s.from_slice(&[n as i64], &vec![value; n])?.freeze())
}

fn step(args: &Args, _: &Call) -> Result<i64> {
    let mut x: Tensor = args.get(1)?;
    // SAFETY: its caller waits, and nothing else has the tensor.
    let all = unsafe { x.as_mut_slice::<f32>()? };
    all[0] += 1.0;
    args.get(0)
}

/// Calls a function as st/step is.
fn apply_to(s: &Session, f: &Function, i: i64) -> Result<i64> {
    let x = floats(s, 1, i as f32)?;
    let n = f.call::<i64>((i, &x))?;
    assert_eq!(x.to_vec::<f32>()?, [i as f32 + 1.0]);
    Ok(n)
}

fn serve(s: &Session) -> Result<()> {
    let mut all: Vec<Provided> = Vec::new();
    let own = s.clone();
    all.push(s.provide("st/count")?.parameter("n", "int64").serve_parts(move |args, _, parts| {
        let n: i64 = args.get("n")?;
        for i in 0..n {
            parts.send(Value::List(vec![i.into(), floats(&own, 3, i as f32)?.into()]))?;
        }
        Ok(n)
    })?);
    let sent = Arc::new(AtomicI64::new(0));
    let (count, own) = (sent.clone(), s.clone());
    all.push(s.provide("st/forever")?.optional("hold", "bool", false).serve_parts(move |args, call, parts| {
        count.store(0, Ordering::SeqCst);
        if args.get("hold")? {
            own.set("st/begun", Payload::default())?;
            call.wait_cancelled(None)?;
        }
        let e = (0..).find_map(|i: i64| {
            let sent = parts.send(i);
            count.fetch_add(sent.is_ok().into(), Ordering::SeqCst);
            sent.err()
        });
        own.set("st/left", Payload::default())?;
        e.map_or(Ok(()), Err)
    })?);
    all.push(s.provide("st/sent")?.no_parameters().serve(move |_, _| Ok(sent.load(Ordering::SeqCst)))?);
    all.push(s.provide("st/fail")?.no_parameters().serve_parts(|_, _, parts| {
        parts.send(0)?;
        parts.send(1)?;
        Err::<(), _>(Error::of_kind("ValueError", "enough"))
    })?);
    all.push(s.provide("st/die")?.parameter("n", "int64").serve_parts(|args, _, parts| {
        (0..args.get::<i64>("n")?).try_for_each(|i| parts.send(i))?;
        let me = std::process::id().to_string();
        let _ = std::process::Command::new("kill").args(["-9", &me]).status();
        Ok(())
    })?);
    all.push(s.provide("st/step")?.parameter("i", "int64").parameter("x", "tensor").serve(step)?);
    let own = s.clone();
    all.push(s.provide("st/apply")?.parameter("f", "function").parameter("n", "int64").serve(move |args, _| {
        let f: Function = args.get("f")?;
        (0..args.get::<i64>("n")?).try_fold(0, |sum, i| Ok(sum + apply_to(&own, &f, i)?))
    })?);
    let kept = Arc::new(Mutex::new(None));
    let keeps = kept.clone();
    all.push(s.provide("st/keep")?.parameter("f", "function").serve(move |args, _| {
        *keeps.lock().unwrap() = Some(args.get::<Function>("f")?);
        Ok(())
    })?);
    let own = s.clone();
    all.push(s.provide("st/late")?.no_parameters().serve(move |_, _| {
        let kept = kept.lock().unwrap();
        let late = kept.as_ref().map(|f| apply_to(&own, f, 0));
        Ok(late.and_then(Result::err).map_or("it can be called".to_owned(), |e| e.code().as_str().to_owned()))
    })?);
    all.push(s.provide("st/same")?.parameter("f", "function").serve(|args, _| args.get::<FunctionValue>("f"))?);
    println!("\"ready\"");
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// Waits until st/forever has given so many parts, and no more.
fn ahead(s: &Session, want: i64) -> Result<()> {
    let mut looks = 0;
    while looks < 5 {
        let n = s.call::<i64>("st/sent", ())?;
        assert!(n <= want, "{n} of {want}");
        looks += i32::from(n == want);
    }
    Ok(())
}

fn take(parts: &mut Parts<i64>, want: std::ops::Range<i64>) -> Result<()> {
    want.into_iter().try_for_each(|i| parts.next().unwrap().map(|got| assert_eq!(got, i)))
}

fn streams(s: &Session) -> Result<()> {
    let taken = |name| s.get(name, None).and_then(|_| s.delete(name));
    for n in [0i64, 3, 150] {
        let f = s.get_function("st/count")?.ahead(1 + n as u32 / 3);
        let mut parts = f.stream::<(i64, Tensor)>((n,))?;
        for (i, part) in (0..).zip(parts.by_ref()) {
            let (got, x) = part?;
            assert_eq!((got, x.to_vec::<f32>()?), (i, vec![i as f32; 3]));
        }
        let result = parts.result::<Option<i64>>()?;
        assert!(result.is_none_or(|r| r == n), "{result:?}");
    }

    let forever = s.get_function("st/forever")?;
    let mut first = forever.clone().ahead(2).stream::<i64>(())?;
    take(&mut first, 0..1)?;
    ahead(s, 3)?;
    take(&mut first, 1..3)?;
    ahead(s, 5)?;
    let mut second = forever.stream::<i64>(())?; // in the place of the first
    take(&mut second, 0..4)?;
    second.cancel();
    taken("st/left")?;
    take(&mut first, 3..4)?;
    first.cancel();
    taken("st/left")?;
    let held = forever.stream::<i64>((true,))?;
    taken("st/begun")?;
    held.cancel();
    taken("st/left")?;

    let mut fails = s.get_function("st/fail")?.stream::<i64>(())?;
    take(&mut fails, 0..2)?;
    let e = fails.next().unwrap().unwrap_err();
    assert_eq!((e.code(), &e.detail()["message"]), (Code::Remote, &json!("enough")));
    Ok(())
}

fn lent(s: &Session) -> Result<()> {
    let opened = s.get_function("st/step")?;
    let (here, runs) = (std::thread::current().id(), Arc::new(AtomicI64::new(0)));
    let count = runs.clone();
    let own = FunctionValue::new(move |args, call| {
        count.fetch_add(i64::from(std::thread::current().id() == here), Ordering::SeqCst);
        step(args, call)
    });
    let there = opened.clone();
    let passes = FunctionValue::new(move |args, _| there.call::<i64>((args.get::<i64>(0)?, args.get::<Tensor>(1)?)));
    for f in [own.clone(), passes, opened.value()] {
        assert_eq!(s.call::<i64>("st/apply", (f, 10))?, 45);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 10);
    let refuses = FunctionValue::new(|_, _| Err::<i64, _>(Error::of_kind("ValueError", "no step")));
    let e = s.call::<i64>("st/apply", (refuses, 10)).unwrap_err();
    assert_eq!((&e.detail()["kind"], &e.detail()["message"]), (&json!("ValueError"), &json!("no step")));
    s.call::<()>("st/keep", (own,))?;
    assert_eq!(s.call::<String>("st/late", ())?, "Closed");
    let same: Function = s.call("st/same", (opened.value(),))?;
    assert_eq!(apply_to(s, &same, 7)?, 7);
    Ok(())
}

fn call(s: &Session) -> Result<()> {
    streams(s)?;
    lent(s)?;
    let mut dies = s.get_function("st/die")?.stream::<i64>((3,))?;
    take(&mut dies, 0..3)?;
    assert_eq!(dies.next().unwrap().unwrap_err().code(), Code::ProviderDied);
    assert_eq!(s.call::<i64>("st/sent", ()).unwrap_err().code(), Code::NoProvider);
    println!("\"done\"");
    Ok(())
}

fn main() -> Result<()> {
    let what = std::env::var("BATON_FUNCTIONS").unwrap_or_default();
    let session = Session::builder().name(if what == "serve" { "provider" } else { "caller" }).connect()?;
    match &*what {
        "serve" => serve(&session),
        "lend" => session.call::<i64>("st/apply", (FunctionValue::new(step), 10)).map(drop),
        _ => call(&session),
    }
}
