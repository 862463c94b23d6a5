//! The function of the tests of deaths across languages (`integration/langs`): with `BATON_FUNCTIONS=serve` it provides
//! de/work, as deaths_role_test.go says, else it calls it as it is told.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton::{Call, Code, Error, FunctionValue, Result, Session, Value};

/// Says a word on the standard output.
fn say(word: impl std::fmt::Display) {
    println!("{}", serde_json::Value::from(word.to_string()));
}

/// What is read from the standard input, as a line of JSON.
fn heard() -> impl Iterator<Item = String> {
    std::io::stdin().lock().lines().map_while(|line| serde_json::from_str(&line.ok()?).ok())
}

/// Says that it runs, and waits until it is told to go on, or wanted no more.
fn hold(call: &Call, told: &AtomicU64) -> Result<()> {
    let before = told.load(Ordering::SeqCst);
    say("begun");
    while told.load(Ordering::SeqCst) == before {
        if call.wait_cancelled(Duration::from_millis(1))? {
            say("cancelled");
            return call.check();
        }
    }
    Ok(())
}

/// Has a child of a fork end at once, and waits for it.
fn fork() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }
    // SAFETY: the child does nothing but end.
    unsafe {
        match fork() {
            0 => _exit(0),
            child => waitpid(child, std::ptr::null_mut(), 0),
        };
    }
}

fn work(session: &Session, how: &str, call: &Call, told: &AtomicU64) -> Result<Value> {
    match how {
        "hold" => hold(call, told)?,
        "raise" => return Err(Error::of_kind("test.Raised", "as asked")),
        "panic" => panic!("as asked"),
        "exit" => std::process::exit(3),
        "fork" => fork(),
        "exec" => {
            use std::os::unix::process::CommandExt;
            return Err(Error::of_kind("exec", std::process::Command::new("true").exec().to_string()));
        }
        "tensor" => return Ok(session.zeros::<f32>(&[256])?.freeze().into()),
        "unsendable" => return Ok(FunctionValue::new(|_, _| Ok(())).into()),
        _ => {}
    }
    Ok(i64::from(std::process::id()).into())
}

fn serve(session: &Session) -> Result<()> {
    let told = Arc::new(AtomicU64::new(0));
    let (goes_on, own) = (told.clone(), session.clone());
    let provided = session
        .provide("de/work")?
        .parameter("how", "str")
        .serve(move |args, call| work(&own, &args.get::<String>("how")?, call, &told))?;
    say("ready");
    for _ in heard() {
        goes_on.fetch_add(1, Ordering::SeqCst);
    }
    drop(provided);
    Ok(())
}

/// How many parts come, and how the stream ends.
fn parts(session: &Session, how: &str) -> Result<String> {
    let mut n = 0;
    for part in session.get_function("de/parts")?.stream::<Value>((how,))? {
        match part {
            Ok(_) => n += 1,
            Err(e) => return Ok(format!("{n} {}", e.code())),
        }
    }
    Ok(n.to_string())
}

fn ask(session: &Session) -> Result<()> {
    say("ready");
    for line in heard() {
        if let Some(how) = line.strip_prefix("parts:") {
            say(parts(session, how)?);
            continue;
        }
        let (how, limit) = line.split_once(' ').unwrap_or((&line, ""));
        let mut calling = session.calling("de/work")?;
        if let Ok(ms) = limit.parse() {
            calling = calling.timeout(Duration::from_millis(ms));
        }
        match calling.call::<Value>((how,)) {
            Ok(Value::Int(pid)) => say(pid),
            Ok(Value::Tensor(x)) => say(format_args!("{} bytes", 4 * x.len())),
            Ok(other) => say(format_args!("{other:?}")),
            Err(e) if e.code() == Code::Remote => say(e.detail()["kind"].as_str().unwrap_or_default()),
            Err(e) => say(e.code()),
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let serves = std::env::var("BATON_FUNCTIONS").is_ok_and(|v| v == "serve");
    let session = Session::builder().name(if serves { "provider" } else { "caller" }).connect()?;
    if serves { serve(&session) } else { ask(&session) }
}
