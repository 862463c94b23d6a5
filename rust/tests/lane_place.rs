//! The place of a lane in its sender's file is used by one lane after the other. A reader with an old view
//! receives nothing of the next one.

mod kit;

use std::time::Duration;

use baton::{Code, Payload, Queue, Reader, Session, Start, Topic, TopicOptions};
use kit::{Broker, until};

const SOON: Duration = Duration::from_secs(90);
const BRIEFLY: Duration = Duration::from_millis(200);

fn value(s: &Session, text: &str) -> Payload {
    Payload::from(s.from_slice(&[1], &[7u8]).unwrap().freeze()).meta(&text).unwrap()
}

fn text(m: &baton::Message) -> String {
    serde_json::from_slice(&m.meta().unwrap()).unwrap()
}

/// The broker lets the reader's view grow old: it is killed, or is suspended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    There,
    Killed,
    Stopped,
}

const STATES: [State; 3] = [State::There, State::Killed, State::Stopped];

fn put(b: &mut Broker, state: State) {
    match state {
        State::There => {}
        State::Killed => b.kill(),
        State::Stopped => b.pause(),
    }
}

fn adopted(b: &Broker) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&b.tool(&["status", "--json"])).unwrap();
    status["counts"]["adopted_lanes"].as_u64().unwrap_or(0)
}

#[test]
fn a_taker_gets_nothing_of_another_queue() {
    for state in STATES {
        let Some(mut b) = Broker::start() else { return };
        let (w, r, other) = (b.session(), b.session(), b.session());
        let taker = r.queue("a").unwrap();
        let from = w.queue("a").unwrap();
        for k in 0..5 {
            from.put(value(&w, &format!("a{k}")), SOON).unwrap();
            assert_eq!(text(&taker.get(SOON).unwrap()), format!("a{k}"));
        }
        drop(from);
        until("the lane is no more", || adopted(&b) == 0);
        // One of them has its place, and each sends the numbers that the taker waits for.
        let many: Vec<(Queue, Queue)> = (0..10)
            .map(|k| {
                let (out, to) = (w.queue(&format!("b{k}")).unwrap(), other.queue(&format!("b{k}")).unwrap());
                (0..8).for_each(|i| out.put(value(&w, &format!("b{i}")), SOON).unwrap());
                assert_eq!(text(&to.get(SOON).unwrap()), "b0"); // it has joined
                (out, to)
            })
            .collect();
        put(&mut b, state);
        let e = taker.get(BRIEFLY).expect_err("an item of another queue");
        assert!(matches!(e.code(), Code::Empty | Code::Timeout | Code::BrokerLost), "{state:?}: {e}");
        for (_, to) in &many {
            for i in 1..8 {
                assert_eq!(text(&to.get(SOON).unwrap()), format!("b{i}"), "{state:?}");
            }
        }
        if state == State::Stopped {
            b.go_on();
        }
    }
}

fn topic(s: &Session, name: &str, tall: bool) -> Topic {
    // 16 slots of 1088 bytes, or 8 of 2176: as many bytes.
    let of = match tall {
        false => TopicOptions::default().depth(8),
        true => TopicOptions::default().depth(7).description(2136),
    };
    s.topic_with(name, &of).unwrap()
}

fn heard(r: &mut Reader) -> Option<String> {
    match r.recv(BRIEFLY) {
        Ok(m) => Some(text(&m)),
        Err(e) if matches!(e.code(), Code::Timeout | Code::BrokerLost) => None,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_reader_gets_nothing_of_another_topic() {
    for (tall, first) in [(false, 5), (true, 15)] {
        for state in STATES {
            let Some(mut b) = Broker::start() else { return };
            let (w, r, more) = (b.session(), b.session(), b.session());
            let mut reader = topic(&r, "a", false).reader(Start::New).unwrap();
            let from = topic(&w, "a", false);
            for k in 0..first {
                from.send(value(&w, &format!("a{k}"))).unwrap();
                assert_eq!(heard(&mut reader).unwrap(), format!("a{k}"));
            }
            drop(from);
            // The lane goes when as many newer messages are there as the topic keeps.
            let beside = topic(&more, "a", false);
            (0..8).for_each(|k| beside.send(value(&more, &format!("more{k}"))).unwrap());
            until("the lane is no more", || adopted(&b) == 0);
            let many: Vec<Topic> = (0..10).map(|k| topic(&w, &format!("b{k}"), tall)).collect();
            for t in &many {
                (0..first + 2).for_each(|i| t.send(value(&w, &format!("b{i}"))).unwrap());
            }
            put(&mut b, state);
            while let Some(text) = heard(&mut reader) {
                assert!(text.starts_with("more"), "{state:?}: {text}");
            }
            if state == State::Stopped {
                b.go_on();
            }
        }
    }
}
