//! What providers say of their calls, and of their errors, from outside.

mod kit;

use std::time::Duration;

use baton::{Code, Error, Payload, Result, Start, Value};
use kit::{Broker, part_session, until};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn calls_and_errors_are_counted_with_their_times() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let counted = || caller.functions("f").map(|all| all[0].counted);
    let slow = provider.provide("f")?.concurrency(3).serve(|args, call| {
        if args.get::<bool>(0)? {
            return Err(Error::of_kind("ValueError", "as asked"));
        }
        call.wait_cancelled(Duration::from_millis(20))?;
        Ok(())
    })?;
    assert_eq!((counted()?.calls, counted()?.p50), (0, None));
    for _ in 0..3 {
        caller.call::<()>("f", (false,))?;
    }
    assert_eq!(caller.call::<()>("f", (true,)).unwrap_err().code(), Code::Remote);
    let all = counted()?;
    assert_eq!((all.calls, all.errors), (4, 1));
    assert!(all.p50.unwrap() >= 0.02 && all.p99 >= all.p50, "{all:?}");
    let info = caller.functions("f")?.remove(0);
    assert_eq!(info.providers[0].counted, all);
    drop(slow);
    let _next = provider.function("f", |_, _| Ok(()))?;
    until("the next one counts anew", || {
        let info = caller.functions("f").unwrap().remove(0);
        info.providers.len() == 1 && info.providers[0].counted.calls == 0 && info.counted.calls == 4
    });
    Ok(())
}

#[test]
fn traces_stay_where_the_broker_says_so() -> Result<()> {
    for stay in [true, false] {
        let Some(broker) = Broker::start_with(if stay { &["--no-remote-traces"] } else { &[] }) else { return Ok(()) };
        let s = broker.session();
        let _fails = s.function("fails", |_, _| {
            let cause = serde_json::json!({"kind": "KeyError", "message": "inner", "trace": "line 2"});
            Err::<(), _>(Error::of_kind("ValueError", "bad").traced("line 1".into(), Some(cause)))
        })?;
        let e = s.call::<()>("fails", ()).unwrap_err();
        let (detail, cause) = (e.detail(), &e.detail()["cause"]);
        assert_eq!((&detail["kind"], &detail["message"]), (&"ValueError".into(), &"bad".into()));
        assert_eq!((&cause["kind"], &cause["message"]), (&"KeyError".into(), &"inner".into()));
        assert_eq!(detail["trace"], if stay { "" } else { "line 1" });
        assert_eq!(cause.get("trace").is_some_and(|t| t == "line 2"), !stay, "{cause}");
    }
    Ok(())
}

/// Another process, which provides until it ends.
#[test]
#[ignore = "a process of another test"]
fn provider() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let own = s.clone();
    let provided = s.function("f", move |args, call| {
        match args.get::<String>(0)?.as_str() {
            "exit" => std::process::exit(3),
            "fail" => return Err(Error::of_kind("ValueError", "bad").traced("line 1".into(), None)),
            _ => {}
        }
        own.topic("ran")?.send(Payload::default())?;
        call.wait_cancelled(None)?;
        Ok(())
    })?;
    s.topic("up")?.send(Payload::default())?;
    provided.join()
}

#[test]
fn traces_stay_where_the_environment_says_so() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    for stay in [true, false] {
        let _apart = broker.apart(&s, |c| {
            if stay {
                c.env("BATON_NO_REMOTE_TRACES", "1");
            }
        })?;
        let e = s.call::<()>("f", ("fail",)).unwrap_err();
        assert_eq!(
            (&e.detail()["message"], &e.detail()["trace"]),
            (&"bad".into(), &(if stay { "" } else { "line 1" }).into())
        );
    }
    Ok(())
}

#[test]
fn a_provider_that_died_is_told_with_how_it_ended_and_when() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let s = broker.session();
    let mut ran = s.topic("ran")?.reader(Start::New)?;
    let mut killed = broker.apart(&s, |_| {})?;
    let e = std::thread::scope(|threads| {
        let call = threads.spawn(|| s.call::<Value>("f", ("wait",)));
        ran.recv(SOON)?;
        killed.0.kill().unwrap(); // it is waited for later: until then the kernel tells
        Ok::<_, Error>(call.join().unwrap().unwrap_err())
    })?;
    let told = |e: &Error| {
        assert_eq!(e.code(), Code::ProviderDied, "{e}");
        assert!(e.detail()["seconds"].as_f64().is_some_and(|s| s >= 0.0), "{e:#?}");
        let number = |key: &str| e.detail().get(key).and_then(serde_json::Value::as_i64);
        (number("signal"), number("status"))
    };
    assert_eq!(told(&e), (Some(9), None));
    assert!(e.to_string().contains("was killed by SIGKILL"), "{e}");
    let _exits = broker.apart(&s, |_| {})?;
    let e = s.call::<Value>("f", ("exit",)).unwrap_err();
    assert_eq!(told(&e), (None, Some(3)));
    Ok(())
}
