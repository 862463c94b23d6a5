//! Which version a name without one means, while versions come and go.

mod kit;

use std::sync::mpsc;
use std::time::Duration;

use baton::{Arguments, Code, Function, FunctionValue, Provided, Result, Session, Tensor, Value};
use kit::{Broker, code, until};

fn version(session: &Session, name: &str, says: &'static str) -> Result<Provided> {
    session.function(name, move |_, _| Ok(says))
}

fn called(session: &Session) -> String {
    session.call("up/f", ()).unwrap()
}

#[test]
fn a_name_is_opened_anew() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _one = version(&provider, "up/f@1", "one")?;
    assert_eq!(called(&caller), "one");
    let _two = version(&provider, "up/f@2", "two")?;
    broker.pause(); // no request is made
    assert_eq!(called(&caller), "one", "what it meant at first");
    broker.go_on();
    let two = caller.get_function("up/f")?;
    assert_eq!((two.name(), two.call::<String>(())?.as_str()), ("up/f@2", "two"));
    assert_eq!(caller.await_function("up/f", Duration::from_secs(1))?.name(), "up/f@2");
    assert_eq!(called(&caller), "two");
    Ok(())
}

#[test]
fn a_call_goes_to_the_version_that_has_a_provider() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let names: Vec<String> = (0..50).map(|n| format!("up/f@{n}")).collect();
    let serve = |n: usize| provider.function(&names[n], move |_, _| Ok(n as i64));
    let mut old = serve(0)?;
    let call = || caller.call::<i64>("up/f", ());
    for n in 1..names.len() {
        assert_eq!(call()?, n as i64 - 1);
        let next = serve(n)?;
        drop(old);
        assert_eq!(call()?, n as i64);
        old = next;
    }
    let _back = serve(1)?;
    drop(old);
    assert_eq!(call()?, 1, "the newest one has no provider, and this caller has it open");
    Ok(())
}

#[test]
fn a_call_that_waits_goes_to_the_new_version_as_it_was_given() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let ((say, said), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let parameters = |name: &str, by: &str| {
        let f = provider.provide(name)?.parameter("x", "tensor").parameter("more", "list").parameter("on", "function");
        Ok::<_, baton::Error>(f.parameter("label", "str").parameter("by", by))
    };
    let goes_on = std::sync::Mutex::new(goes_on);
    let _old = parameters("up/f@1", "float")?.serve(move |args, _| {
        say.send(()).unwrap();
        goes_on.lock().unwrap().recv().unwrap();
        args.get::<f64>("by")
    })?;
    // tree: the list as a binding writes it.
    let give = |tree: bool| {
        let x = caller.from_slice(&[2], &[1f32, 2.0])?.freeze();
        let y = caller.from_slice(&[3], &[1f32, 2.0, 3.0])?.freeze();
        let on = FunctionValue::new(|args, _| Ok(args.get::<i64>(0)? * 100));
        let mut args = Arguments::new().arg(x);
        if tree {
            let i = args.push_tree("", "list");
            let json = format!(r#"[{{"$":"tensor","i":{}}},"a"]"#, args.tensors_so_far());
            args.set_tree(i, json.into_bytes(), [("1/0".to_owned(), y)]);
        } else {
            args = args.arg(Value::List(vec![Value::Tensor(y), Value::Text("a".to_owned())]));
        }
        let args = args.arg(on).named("label", "b").named("by", 3);
        caller.call::<f64>("up/f", args)
    };
    std::thread::scope(|s| {
        let first = s.spawn(|| give(false));
        said.recv().unwrap();
        let others = [s.spawn(|| give(false)), s.spawn(|| give(true))];
        until("they wait", || caller.functions("up/f@1").unwrap().iter().any(|f| f.waiting == 2));
        // An int, as it was given, and no float, as the old version takes.
        let _new = parameters("up/f@2", "int")?.serve(|args, _| {
            let (x, on): (Tensor, Function) = (args.get("x")?, args.get("on")?);
            let Value::List(more) = args.get::<Value>("more")? else { panic!("no list") };
            let [Value::Tensor(y), Value::Text(a)] = &more[..] else { panic!("{more:?}") };
            assert_eq!((a.as_str(), args.get::<String>("label")?.as_str()), ("a", "b"));
            let elements = x.to_vec::<f32>()?.len() + 10 * y.to_vec::<f32>()?.len();
            Ok(elements as i64 + on.call::<i64>((args.get::<i64>("by")?,))?)
        })?;
        assert_eq!(provider.remove_function("up/f@1")?, 1);
        for other in others {
            assert_eq!(other.join().unwrap()?, 332.0);
        }
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap()?, 3.0, "what had begun ends there");
        Ok(())
    })
}

#[test]
fn what_waits_for_a_provider_finds_another_version() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let one = version(&provider, "up/f@1", "one")?;
    let held = caller.get_function("up/f")?;
    drop(one);
    let long = Duration::from_secs(60);
    std::thread::scope(|s| {
        let opened = s.spawn(|| broker.session().await_function("up/f", long).map(|f| f.name().to_owned()));
        let called = s.spawn(|| caller.calling("up/f")?.wait(long).call::<String>(()));
        assert_eq!(code(caller.calling("up/f")?.call::<()>(())), Code::NoProvider);
        let two = version(&provider, "up/f@2", "two")?;
        assert_eq!(opened.join().unwrap()?, "up/f@2");
        assert_eq!(called.join().unwrap()?, "two");
        drop(two);
        Ok::<_, baton::Error>(())
    })?;
    assert_eq!(code(held.call::<()>(())), Code::NoProvider, "what is open stays what it is");
    assert_eq!(code(caller.call::<()>("up/f@1", ())), Code::NoProvider, "a version is that version");
    let brief = caller.calling("up/f@1")?.wait(Duration::from_millis(1)).call::<()>(());
    assert_eq!(code(brief), Code::NoProvider);
    let late = caller.calling("up/f")?.wait(long).timeout(Duration::from_millis(1)).call::<()>(());
    assert_eq!(code(late), Code::Timeout);
    Ok(())
}
