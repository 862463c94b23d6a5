//! What a function waits for ends with its call, whatever that is and whichever session waits.

mod kit;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use baton::{Code, Function, FunctionValue, Pending, Provided, Result, Session, Value};
use kit::{Apart, Broker, code, part_session, until};

const SOON: Duration = Duration::from_secs(60);
/// More than a test lasts: what waits so long ends by something else.
const EVER: Duration = Duration::from_secs(600);
/// Calls of a function that a session has room for.
const ROOM: usize = 64;

/// How a call ends.
const ENDS: [&str; 3] = ["cancelled", "deadline", "killed"];

/// Tells which thread is about to wait.
struct Told(Sender<i32>);

impl Told {
    fn waits(&self) {
        self.0.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
    }
}

/// Whether a thread of this process sleeps.
fn sleeps(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('S')
}

/// Calls "outer", and is killed meanwhile.
#[test]
#[ignore = "a process of another test"]
fn caller() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    s.call("outer", ())
}

/// A broker, and functions to wait for: "waits", which never returns, and "calls", which calls its argument.
struct World {
    _provided: [Provided; 2],
    caller: Session,
    /// The session by which functions wait, and one that provides.
    inner: Session,
    others: Session,
    broker: Broker,
}

impl World {
    fn new() -> Option<World> {
        let broker = Broker::start()?;
        let (caller, inner, others) = (broker.session(), broker.session(), broker.session());
        let waits = others.provide("waits").unwrap().concurrency(100).serve(|_, call| call.wait_cancelled(EVER));
        let calls = others.provide("calls").unwrap().parameter("f", "function").concurrency(10);
        let calls = calls.serve(|args, _| args.get::<Function>("f")?.call::<Value>(()));
        let _provided = [waits.unwrap(), calls.unwrap()];
        Some(World { _provided, caller, inner, others, broker })
    }

    /// With what a wait has ended that a function was in when its call ended.
    fn ended(&self, how: &str, wait: impl Fn(&Told) -> Result<()> + Send + Sync + 'static) -> Code {
        self.ended_between(how, wait, || {}, || {})
    }

    /// As `ended`. `before` the call ends, and `after` its function has, something else happens.
    fn ended_between(
        &self,
        how: &str,
        wait: impl Fn(&Told) -> Result<()> + Send + Sync + 'static,
        before: impl Fn(),
        after: impl Fn(),
    ) -> Code {
        let (tell, told) = channel();
        let (end, ended) = channel();
        let outer = self.broker.session().function("outer", move |_, _| {
            let done = code(wait(&Told(tell.clone())));
            end.send((done, Instant::now())).unwrap();
            Ok(())
        });
        let (_outer, asleep) = (outer.unwrap(), |told: &Receiver<i32>| {
            let thread = told.recv_timeout(SOON).unwrap();
            until("it waits", || sleeps(thread));
            before();
        });
        let mut at = Instant::now();
        match how {
            "cancelled" => {
                let call = self.caller.get_function("outer").unwrap().submit(()).unwrap();
                asleep(&told);
                at = Instant::now();
                call.cancel();
            }
            "deadline" => {
                let limit = Duration::from_millis(300);
                let f = self.caller.get_function("outer").unwrap().timeout(limit);
                at += limit;
                let call = f.submit(()).unwrap();
                asleep(&told);
                let (code, ended) = ended.recv_timeout(SOON).unwrap();
                after();
                drop(call);
                return measured(how, at, ended, code);
            }
            _ => {
                let mut apart = Apart(self.broker.part("caller").spawn().unwrap());
                asleep(&told);
                at = Instant::now();
                apart.0.kill().unwrap();
            }
        }
        let (code, ended) = ended.recv_timeout(SOON).unwrap();
        after();
        measured(how, at, ended, code)
    }

    /// Looks at a kind of wait, however the call ends.
    fn ends(&self, what: &str, wait: impl Fn(&Told) -> Result<()> + Clone + Send + Sync + 'static) {
        for how in ENDS {
            let code = self.ended(how, wait.clone());
            match how {
                "deadline" => assert!(matches!(code, Code::Timeout | Code::Full), "{what}, {how}: {code}"),
                _ => assert_eq!(code, Code::Cancelled, "{what}, {how}"),
            }
        }
    }
}

/// Says how long it took.
fn measured(how: &str, from: Instant, to: Instant, code: Code) -> Code {
    println!("{how}: {:?}", to.saturating_duration_since(from));
    code
}

#[test]
fn a_call_ends_with_the_outer_one() {
    let Some(w) = World::new() else { return };
    let inner = w.inner.clone();
    let waits = inner.get_function("waits").unwrap();
    w.ends("a call", move |told| {
        told.waits();
        waits.call(())
    });
    w.ends("a call by name", move |told| {
        told.waits();
        inner.call("waits", ())
    });
}

/// All that it needs is there, and what it calls replies at once.
#[test]
fn what_is_made_within_a_call_that_is_over_is_refused_before_it_is_sent() -> Result<()> {
    let Some(w) = World::new() else { return Ok(()) };
    let ran = Arc::new(AtomicUsize::new(0));
    let runs = ran.clone();
    let _echo = w.others.function("echo", move |_, _| Ok(runs.fetch_add(1, Ordering::SeqCst) as i64))?;
    let _parts = w.others.provide("parts")?.serve_parts(|_, _, parts| (0..9).try_for_each(|i: i64| parts.send(i)))?;
    let (inner, echo, tiles) = (w.inner.clone(), w.inner.get_function("echo")?, w.inner.get_function("parts")?);
    let ((begin, begun), (tell, told)) = (channel(), channel());
    let _outer = w.broker.session().function("outer", move |_, call| {
        let mut parts = tiles.stream::<i64>(())?;
        let _: (i64, i64, i64) = (echo.call(())?, inner.call("echo", ())?, echo.submit(())?.wait()?);
        parts.next().unwrap()?;
        let before = ran.load(Ordering::SeqCst);
        begin.send(()).unwrap();
        call.wait_cancelled(SOON)?;
        let made = [
            code(echo.call::<i64>(())),
            code(inner.call::<i64>("echo", ())),
            code(echo.submit(())),
            code(tiles.stream::<i64>(())),
            code(parts.next().unwrap()),
        ];
        tell.send((made, ran.load(Ordering::SeqCst) - before)).unwrap();
        Ok(())
    })?;
    let call = w.caller.get_function("outer")?.submit(())?;
    begun.recv_timeout(SOON).unwrap();
    call.cancel();
    assert_eq!(told.recv_timeout(SOON).unwrap(), ([Code::Cancelled; 5], 0));
    Ok(())
}

#[test]
fn a_wait_for_room_ends_with_the_outer_call() {
    let Some(w) = World::new() else { return };
    let full = w.inner.get_function("waits").unwrap();
    let _pending: Vec<Pending> = (0..ROOM).map(|_| full.submit(()).unwrap()).collect();
    let (call, submit) = (full.clone(), full);
    w.ends("room for a call", move |told| {
        told.waits();
        call.call(())
    });
    w.ends("room for a call that is waited for later", move |told| {
        told.waits();
        submit.submit(())?.wait()
    });
}

#[test]
fn a_wait_for_a_provider_ends_with_the_outer_call() {
    let Some(w) = World::new() else { return };
    let left = w.others.function("gone", |_, _| Ok(())).unwrap();
    let f = w.inner.get_function("gone").unwrap().wait(EVER);
    drop(left);
    let submit = f.clone();
    w.ends("a provider", move |told| {
        told.waits();
        f.call(())
    });
    w.ends("a provider, for a call that is waited for later", move |told| {
        told.waits();
        submit.submit(())?.wait()
    });
    let inner = w.inner.clone();
    w.ends("a provider, by name", move |told| {
        told.waits();
        inner.calling("gone")?.wait(EVER).call(())
    });
}

#[test]
fn a_wait_for_a_name_ends_with_the_outer_call() {
    let Some(w) = World::new() else { return };
    let (inner, by_name) = (w.inner.clone(), w.inner.clone());
    w.ends("a function that no process has registered", move |told| {
        told.waits();
        inner.await_function("none", EVER).map(drop)
    });
    w.ends("a call of one", move |told| {
        told.waits();
        by_name.calling("none")?.wait(EVER).call(())
    });
}

#[test]
fn a_call_that_is_waited_for_later_ends_with_the_outer_one() {
    let Some(w) = World::new() else { return };
    let f = w.inner.get_function("waits").unwrap();
    let elsewhere = f.clone();
    w.ends("a pending call", move |told| {
        let pending = f.submit(())?;
        told.waits();
        pending.wait()
    });
    w.ends("a pending call, in another thread", move |told| {
        let pending = elsewhere.submit(())?;
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| {
                told.waits();
                pending.wait()
            });
            waits.join().unwrap()
        })
    });
}

#[test]
fn what_a_lent_function_waits_for_ends_with_the_call_that_lent_it() {
    let Some(w) = World::new() else { return };
    let (inner, third) = (w.inner.clone(), w.broker.session());
    w.ends("a lent function's call", move |told| {
        let (f, tell, ended) = (third.get_function("waits")?, Mutex::new(told.0.clone()), Arc::new(OnceLock::new()));
        let end = ended.clone();
        let lent = FunctionValue::new(move |_, _| {
            Told(tell.lock().unwrap().clone()).waits();
            end.set(f.call::<Value>(()).map(drop)).unwrap();
            Ok(())
        });
        let _ = inner.call::<Value>("calls", (lent,));
        ended.get().unwrap().clone()
    });
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_ends_with_the_outer_call() {
    let Some(w) = World::new() else { return };
    let run = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let waits = w.inner.get_function("waits").unwrap();
    w.ends("a task's call", move |told| {
        told.waits();
        run().block_on(waits.call_async(()))
    });
    let left = w.others.function("gone", |_, _| Ok(())).unwrap();
    let gone = w.inner.get_function("gone").unwrap().wait(EVER);
    drop(left);
    w.ends("a task's provider", move |told| {
        told.waits();
        run().block_on(gone.call_async(()))
    });
    let full = w.broker.session().get_function("waits").unwrap();
    let _pending: Vec<Pending> = (0..ROOM).map(|_| full.submit(()).unwrap()).collect();
    w.ends("a task's room", move |told| {
        told.waits();
        run().block_on(full.call_async(()))
    });
}

/// A broker that is suspended notices no end of a process.
#[test]
fn a_request_to_a_silent_broker_ends_with_the_outer_call() {
    let Some(w) = World::new() else { return };
    for how in ["cancelled", "deadline"] {
        let inner = w.broker.session();
        let (silent, go_on) = channel::<()>();
        let go_on = Mutex::new(go_on);
        let code = w.ended_between(
            how,
            move |told| {
                told.waits();
                let _ = go_on.lock().unwrap().recv_timeout(SOON); // the broker is suspended
                inner.call("waits", ())
            },
            || {
                w.broker.pause();
                silent.send(()).unwrap();
            },
            || w.broker.go_on(),
        );
        assert_eq!(code, if how == "deadline" { Code::Timeout } else { Code::Cancelled }, "{how}");
    }
}

/// Less than the time that a request has of its own.
const NO_REQUEST: Duration = Duration::from_secs(15);

impl World {
    /// Has "calls" wait for the next call of what a session lends in a place that this session has to ask the broker for.
    fn moves_on(&self, s: &Session) -> (FunctionValue, Pending, Provided) {
        let f = FunctionValue::new(|_, _| Ok(()));
        s.call::<Value>("calls", (&f,)).unwrap();
        let quick = self.inner.function("quick", |_, _| Ok(())).unwrap();
        let held = self.others.get_function("waits").unwrap().submit(()).unwrap(); // has the place that is known
        self.others.call::<()>("quick", ()).unwrap();
        (f, held, quick)
    }
}

#[test]
fn serving_a_lent_function_ends_with_the_call_that_lent_it() {
    for how in ["cancelled", "deadline"] {
        let Some(w) = World::new() else { return };
        let inner = w.broker.session();
        let (f, _held, _quick) = w.moves_on(&inner);
        let (silent, go_on) = channel::<()>();
        let go_on = Mutex::new(go_on);
        let code = w.ended_between(
            how,
            move |told| {
                told.waits();
                let _ = go_on.lock().unwrap().recv_timeout(SOON); // the broker is suspended
                inner.call("calls", (&f,))
            },
            || {
                w.broker.pause();
                silent.send(()).unwrap();
            },
            || w.broker.go_on(),
        );
        assert_eq!(code, if how == "deadline" { Code::Timeout } else { Code::Cancelled }, "{how}");
    }
}

#[test]
fn serving_a_lent_function_ends_with_the_deadline_and_with_a_signal() {
    static SIGNALLED: AtomicBool = AtomicBool::new(false);
    for how in ["deadline", "signal"] {
        let Some(w) = World::new() else { return };
        let hook = || SIGNALLED.load(Ordering::SeqCst);
        let s = Session::builder().address(w.broker.address()).interrupted(hook).connect().unwrap();
        let (f, _held, _quick) = w.moves_on(&s);
        let mut calls = s.get_function("calls").unwrap();
        if how == "deadline" {
            calls = calls.timeout(Duration::from_millis(300));
        }
        w.broker.pause();
        let (end, ended) = channel();
        let (tell, told) = channel();
        let call = std::thread::spawn(move || {
            Told(tell).waits();
            end.send(code(calls.call::<Value>((&f,)))).unwrap();
        });
        let thread = told.recv_timeout(SOON).unwrap();
        if how == "signal" {
            until("it waits", || sleeps(thread));
            SIGNALLED.store(true, Ordering::SeqCst);
        }
        let code = ended.recv_timeout(NO_REQUEST);
        w.broker.go_on();
        assert_eq!(code, Ok(Code::Timeout), "{how}");
        call.join().unwrap();
    }
}

/// What a wait within a call has taken of another's lent function is answered by what waits longer.
#[test]
fn a_call_of_a_lent_function_outlives_the_inner_wait_that_took_it() {
    let Some(w) = World::new() else { return };
    let inner = w.broker.session();
    let (f, _held, _quick) = w.moves_on(&inner);
    let short = inner.get_function("waits").unwrap().timeout(Duration::from_millis(300));
    let (broker, inner_calls) = (Arc::new(w.broker), inner.clone());
    let paused = broker.clone();
    // Two lent functions: the first waits while the second is called from elsewhere.
    let waits = FunctionValue::new(move |_, _| {
        paused.pause();
        let ended = code(short.call::<Value>(()));
        paused.go_on();
        Ok(ended.as_str())
    });
    let both = w.others.provide("both").unwrap().parameter("waits", "function").parameter("f", "function");
    let _both = both.concurrency(10).serve(|args, _| {
        let (waits, f): (Function, Function) = (args.get("waits")?, args.get("f")?);
        std::thread::scope(|threads| {
            let first = threads.spawn(move || waits.call::<String>(()));
            f.call::<Value>(())?;
            first.join().unwrap()
        })
    });
    assert_eq!(inner_calls.call::<String>("both", (waits, &f)).unwrap(), "Timeout");
}
