//! The destructors of a thread's locals may use a session: all that a thread can do it can do then.

#![forbid(unsafe_code)]

mod kit;

use std::cell::RefCell;
use std::sync::mpsc::channel;
use std::thread;

use baton::{FunctionValue, Result, Session, Start, Tensor, wait_any};
use kit::{Broker, check, numbers};

/// Does something when it is dropped.
struct Last(Option<Box<dyn FnOnce()>>);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// All kinds of calls: functions, one of which is lent a function, topics, waits, and memory.
fn everything(s: &Session) -> Result<i64> {
    let lent = FunctionValue::new(|args, _| Ok(args.get::<i64>(0)? + 1));
    let called = s.call::<i64>("apply", (&lent, 20))?;
    let topic = s.topic("t")?;
    let mut reader = topic.reader(Start::New)?;
    topic.send(numbers(s, 3))?;
    assert_eq!(wait_any(&mut [&mut reader], None)?, [0]);
    check(&reader.recv(None)?.into_tensor()?, 3);
    s.set("name", numbers(s, 4))?;
    check(s.get("name", None)?.first().expect("a tensor"), 4);
    let sum: Tensor = s.call("same", (&numbers(s, 5),))?;
    check(&sum, 5);
    Ok(called)
}

#[test]
fn the_locals_of_a_thread_that_ends_may_use_a_session() {
    let Some(b) = Broker::start() else { return };
    let (s, other) = (b.session(), b.session());
    let _apply =
        other.function("apply", |args, _| args.get::<baton::Function>(0)?.call::<i64>((args.get::<i64>(1)?,))).unwrap();
    let _same = other.function("same", |args, _| args.get::<Tensor>(0)).unwrap();
    let (done, said) = channel();
    thread::spawn(move || {
        // Before the crate's own locals, so that it is dropped after them.
        LAST.set(Some(Last(None)));
        assert_eq!(everything(&s).unwrap(), 21);
        let last = move || done.send(everything(&s).map_err(|e| e.to_string())).unwrap();
        LAST.with_borrow_mut(|l| *l = Some(Last(Some(Box::new(last)))));
    })
    .join()
    .unwrap();
    assert_eq!(said.recv().expect("the destructor has run to its end"), Ok(21));
}
