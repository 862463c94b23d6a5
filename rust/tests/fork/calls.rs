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
