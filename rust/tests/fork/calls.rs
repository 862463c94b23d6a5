//! A function that forks: its child is within no call, and makes its own.

use super::*;

#[test]
fn the_child_of_a_function_is_within_no_call() {
    let _alone = alone();
    let Some(broker) = Broker::start() else { return };
    let (provider, caller) = (broker.session(), broker.session());
    let _one = provider.function("one", |_, _| Ok(1)).unwrap();
    let within = provider.clone();
    let forks = move |_: &baton::Args, call: &baton::Call| {
        ends_well(child(|| {
            check!(!call.cancelled() && call.check().is_ok());
            check!(call.wait_cancelled(None).is_err_and(|e| e.code() == Code::Closed));
            check!(ok!(within.call::<i64>("one", ())) == 1);
            let f = ok!(within.get_function("one"));
            check!(ok!(ok!(f.submit(())).wait::<i64>()) == 1);
            Ok(())
        }));
        Ok(!call.cancelled())
    };
    let _forks = provider.function("forks", forks).unwrap();
    for _ in 0..2 {
        assert!(caller.call::<bool>("forks", ()).unwrap());
    }
}

#[test]
fn a_function_that_forked_returns_in_the_child() {
    let _alone = alone();
    let Some(broker) = Broker::start() else { return };
    let (provider, caller) = (broker.session(), broker.session());
    let t = made(&provider, &[1, 2, 3]);
    let forked = |_: &baton::Args, _: &baton::Call| Ok(forks(|| {}));
    let parts = |_: &baton::Args, _: &baton::Call, parts: &baton::PartSender| {
        let closed = || parts.send(1).is_err_and(|e| e.code() == Code::Closed);
        // It ends with the signal of a line that is not reached otherwise.
        let child = forks(|| {
            if !closed() {
                std::process::abort()
            }
        });
        if child == 0 { Ok(()) } else { parts.send(child) }
    };
    let _forked = provider.function("forked", forked).unwrap();
    let _parts = provider.provide("parts").unwrap().serve_parts(parts).unwrap();
    for _ in 0..5 {
        assert_eq!(end_of(caller.call::<i32>("forked", ()).unwrap()), 0);
        let mut parts = caller.get_function("parts").unwrap().stream::<i32>(()).unwrap();
        assert_eq!(end_of(parts.next().unwrap().unwrap()), 0);
    }
    drop(t);
}

#[test]
fn calls_of_the_parent_are_closed_in_the_child_and_go_on_in_the_parent() {
    let _alone = alone();
    let Some(broker) = Broker::start() else { return };
    let (provider, caller) = (broker.session(), broker.session());
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let goes = std::sync::Mutex::new(goes);
    let held = move |_: &baton::Args, _: &baton::Call| {
        let _ = goes.lock().unwrap().recv();
        Ok(7)
    };
    let _held = provider.function("held", held).unwrap();
    let parts = |_: &baton::Args, _: &baton::Call, parts: &baton::PartSender| (0..20).try_for_each(|i| parts.send(i));
    let _parts = provider.provide("parts").unwrap().serve_parts(parts).unwrap();
    let held = caller.get_function("held").unwrap();
    let (first, mut second) = (held.submit(()).unwrap(), held.submit(()).unwrap());
    let third = held.submit(()).unwrap();
    let parts = caller.get_function("parts").unwrap();
    let (mut before, later) = (parts.stream::<i64>(()).unwrap(), parts.stream::<i64>(()).unwrap());
    assert_eq!(before.next().unwrap().unwrap(), 0);

    // In the child each is used; nothing of them is dropped in the parent, to which they belong.
    let mut mine = Some((first, third, later));
    ends_well(child(|| {
        let closed = |e: &baton::Error| e.code() == Code::Closed;
        let (first, third, later) = mine.take().unwrap();
        check!(first.wait::<i64>().is_err_and(|e| closed(&e)));
        check!(second.wait_for(std::time::Duration::from_secs(60)) && second.is_over());
        check!(before.next().unwrap().is_err_and(|e| closed(&e)) && before.next().is_none());
        check!(later.result::<()>().is_err_and(|e| closed(&e)));
        drop(third);
        Ok(())
    }));

    for _ in 0..3 {
        go.send(()).unwrap();
    }
    let (first, third, later) = mine.take().unwrap();
    assert_eq!((first.wait::<i64>().unwrap(), second.wait::<i64>().unwrap(), third.wait::<i64>().unwrap()), (7, 7, 7));
    assert_eq!(before.map(Result::unwrap).sum::<i64>(), (1..20).sum::<i64>());
    assert_eq!(later.map(Result::unwrap).sum::<i64>(), (0..20).sum::<i64>());
}
