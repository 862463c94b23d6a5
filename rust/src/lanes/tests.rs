//! The layer alone: a topic over files that a test has made, whose broker is the test.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use super::reader::{Reader, Start};
use super::topic::TopicState;
use super::{Lanes, Topics};
use crate::error::Code;
use crate::holding::Opening;
use crate::holding::fixture::{Parts, opening};
use crate::layout::{broker_file, lane_record, state, topic_record};
use crate::link::fixture::Broker;
use crate::memory::fixture::Files;
use crate::sys::Waker;
use crate::value::Payload;
use crate::waits::Sleeper;
use crate::wire::ops::NameRef;

const TOPIC: u32 = 4;
const ID: u64 = 21;

/// A topic that was opened, which the broker's record says is open.
fn topic() -> (Arc<Opening>, Arc<TopicState>, Broker, Files) {
    let topics = Topics::new(Arc::new(Lanes::new()));
    let (inner, mut broker, files) = opening(Parts::of(topics));
    let at = broker_file::topic(TOPIC);
    files.broker.store(at + topic_record::ID, ID);
    files.broker.store32(at + topic_record::STATE, state::TOPIC_OPEN);
    let topic = std::thread::scope(|s| {
        let opens = s.spawn(|| Topics::open(&inner, "topic.open", &NameRef { name: "t" }).unwrap());
        let request = broker.next();
        let info = json!({"opening": request["opening"], "topic": TOPIC, "topic_id": ID, "name": "t", "kind": "topic",
            "depth": 2, "slots": 4, "stride": 1088, "overwrite": true});
        broker.answer(&request, &info, &[]);
        opens.join().unwrap()
    });
    (inner, topic, broker, files)
}

/// Answers a writer, and lists its lane.
fn list_lane(broker: &mut Broker, files: &Files) {
    let request = broker.next();
    assert_eq!(request["op"], "topic.write");
    let (topic, lane) = (broker_file::topic(TOPIC), broker_file::lane(TOPIC, 0));
    files.broker.store32(lane + lane_record::SLOT, crate::memory::fixture::SLOT);
    files.broker.store(lane + lane_record::SERIAL, crate::memory::fixture::SERIAL);
    files.broker.store(lane + lane_record::OFFSET, request["offset"].as_u64().unwrap());
    files.broker.store32(lane + lane_record::STATE, state::LANE_LIVE);
    files.broker.store(lane + lane_record::INCARNATION, 1);
    files.broker.store32(topic + topic_record::LANES_END, 1);
    files.broker.store(topic + topic_record::VERSION, 1);
    broker.answer(&request, &json!({"lane": 0}), &[]);
}

#[test]
fn messages_are_taken_where_the_broker_says_no_more() {
    let (_inner, topic, mut broker, files) = topic();
    std::thread::scope(|s| {
        let reads = s.spawn(|| Reader::new(topic.clone(), Start::New, None).unwrap());
        let request = broker.next();
        assert_eq!(request["op"], "topic.read");
        broker.answer(&request, &json!({"reader": 1, "member": 0}), &[]);
        let mut reader = reads.join().unwrap();
        let sends = s.spawn(|| topic.send(&mut Payload::default(), 0, None));
        list_lane(&mut broker, &files);
        sends.join().unwrap().unwrap();
        // From here on the broker does not answer.
        topic.send(&mut Payload::default(), 0, None).unwrap();
        let taken: Vec<u64> = (0..2).map(|_| reader.try_recv().unwrap().unwrap().sequence()).collect();
        assert_eq!(taken, [1, 2]);
        assert!(reader.try_recv().unwrap().is_none());
    });
}

#[test]
fn a_topic_that_is_left_says_so_behind_its_lane() {
    let (inner, topic, mut broker, files) = topic();
    std::thread::scope(|s| {
        let sends = s.spawn(|| topic.send(&mut Payload::default(), 0, None));
        list_lane(&mut broker, &files);
        sends.join().unwrap().unwrap();
    });
    drop(topic);
    let (lane, opening) = (broker.next(), broker.next());
    assert_eq!((lane["op"].as_str(), opening["op"].as_str()), (Some("topic.leave"), Some("topic.leave")));
    assert!(lane["offset"].is_u64() && opening["opening"].is_u64(), "{lane} {opening}");
    assert!(Topics::of(&inner).unwrap().all().is_empty());
}

#[test]
fn a_closed_opening_publishes_nothing() {
    let (inner, topic, mut broker, files) = topic();
    std::thread::scope(|s| {
        let sends = s.spawn(|| topic.send(&mut Payload::default(), 0, None));
        list_lane(&mut broker, &files);
        sends.join().unwrap().unwrap();
    });
    inner.closed.set();
    Topics::of(&inner).unwrap().end_writing(Instant::now());
    assert_eq!(topic.send(&mut Payload::default(), 0, None).unwrap_err().code(), Code::Closed);
}

#[test]
fn a_poll_loop_that_counts_what_waits_is_in_the_wait_set() {
    let (inner, topic, _broker, _files) = topic();
    let sleeper = Sleeper::start(Waker::new().unwrap(), inner.waiter.parking.clone()).unwrap();
    inner.watchers.poll.set(sleeper.clone()).unwrap();
    loop {
        sleeper.arm();
        assert_eq!(topic.waiting().unwrap(), 0);
        if sleeper.is_armed() {
            break; // it was so at the look, too
        }
    }
    assert!(!topic.waiting.watch(), "a sender rings it for the next message");
    sleeper.end();
    inner.waiter.wake();
}
