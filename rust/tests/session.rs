//! Sessions against a real broker: the program named by `BATON_BINARY`, or `bin/baton` of the
//! project. Without one these tests say so and pass, unless `BATON_REQUIRE` names `broker`.

mod kit;

use std::time::Duration;

use baton::dlpack::ExportOptions;
use baton::{Code, DType, Handle, Lease, NameOptions, Payload, QueueOptions, Start, TopicOptions};
use kit::{Broker, until};

const SOON: Duration = Duration::from_secs(90);

#[test]
fn a_message_is_received_as_it_was_sent() {
    let Some(b) = Broker::start() else { return };
    let (from, to) = (b.session(), b.session());
    let topic = from.topic("batches").unwrap();
    let mut reader = to.topic("batches").unwrap().reader(Start::New).unwrap();
    for k in 0..100u32 {
        let mut x = from.alloc::<f32>(&[4, 25]).unwrap();
        x.iter_mut().enumerate().for_each(|(i, v)| *v = (i as u32 * k) as f32);
        topic.send(Payload::named([("x", x.freeze())]).meta(&k).unwrap()).unwrap();
        let m = reader.recv(SOON).unwrap();
        assert_eq!((m.sequence(), m.lost(), m.meta().unwrap()), (u64::from(k) + 1, 0, k.to_string().into_bytes()));
        let x = m.bundle().unwrap().get("x").unwrap().clone();
        drop(m);
        assert_eq!(x.shape(), [4, 25]);
        assert_eq!(x.to_vec::<f32>().unwrap(), (0..100).map(|i| (i * k) as f32).collect::<Vec<_>>());
        assert!(x.is_read_only());
    }
    assert_eq!(reader.recv(Duration::ZERO).unwrap_err().code(), Code::Timeout);
    // The first ones count as held until the sender sees the reader's refcounts.
    until("what the topic does not keep is free", || {
        from.collect();
        from.stats().pool.recycled > 50
    });
}

#[test]
fn what_is_printed_of_a_tensor_is_of_the_tensor() {
    let Some(b) = Broker::start() else { return };
    let session = b.session();
    let x = session.zeros::<f32>(&[2, 3]).unwrap().freeze();
    let text = format!("{x:?} {session:?}");
    assert!(text.contains("[2, 3]") && text.len() < 4_000, "{} bytes: {text:.4000}", text.len());
}

#[test]
fn an_overtaken_reader_is_told_what_it_lost() {
    let Some(b) = Broker::start() else { return };
    let (from, to) = (b.session(), b.session());
    let topic = from.topic_with("t", &TopicOptions::default().depth(4)).unwrap();
    let mut reader = to.topic("t").unwrap().reader(Start::New).unwrap();
    for k in 0..50i64 {
        topic.send(from.from_slice(&[1], &[k]).unwrap().freeze()).unwrap();
    }
    let (mut seen, mut lost) = (0, 0);
    while let Ok(m) = reader.recv(Duration::ZERO) {
        seen += 1;
        lost += m.lost();
        assert_eq!(m.tensor().unwrap().to_vec::<i64>().unwrap(), [m.sequence() as i64 - 1]);
    }
    assert_eq!(seen + lost, 50);
    assert!(seen <= 4 && seen > 0);
    let late = to.topic("t").unwrap().reader(Start::Last).unwrap().recv(SOON).unwrap();
    assert_eq!(late.sequence(), 50);
}

#[test]
fn a_long_description_is_spilled_and_comes_back() {
    let Some(b) = Broker::start() else { return };
    let (from, to) = (b.session(), b.session());
    let mut reader = to.topic("wide").unwrap().reader(Start::New).unwrap();
    let topic = from.topic("wide").unwrap();
    for round in 0..5u32 {
        let all = (0..200u32).map(|i| (format!("layer/{i}"), from.from_slice(&[2], &[i, round]).unwrap().freeze()));
        topic.send(Payload::named(all)).unwrap();
        let bundle = reader.recv(SOON).unwrap().bundle().unwrap();
        assert_eq!(bundle.len(), 200);
        for i in 0..200u32 {
            assert_eq!(bundle.get(&format!("layer/{i}")).unwrap().to_vec::<u32>().unwrap(), [i, round]);
        }
    }
}

#[test]
fn tensors_of_one_message_keep_their_shapes_and_strides() {
    let Some(b) = Broker::start() else { return };
    let (from, to) = (b.session(), b.session());
    let mut reader = to.topic("shapes").unwrap().reader(Start::New).unwrap();
    let x = from.from_slice(&[3, 1, 2, 1, 2, 2], &(0..24u16).collect::<Vec<_>>()).unwrap().freeze();
    let turned = x.as_strided(&[2, 1, 2, 2, 1, 3], Some(&[1, 9, 2, 4, 7, 8]), 0).unwrap();
    let column = x.as_strided(&[3], Some(&[8]), 5).unwrap();
    let none = x.as_strided(&[0, 4], None, 0).unwrap();
    let all = [("x", &x), ("turned", &turned), ("column", &column), ("none", &none)];
    from.topic("shapes").unwrap().send(Payload::named(all.map(|(name, t)| (name, t.clone())))).unwrap();
    let got = reader.recv(SOON).unwrap().bundle().unwrap();
    for (name, t) in all {
        let g = got.get(name).unwrap();
        assert_eq!((g.shape(), g.strides(), g.dtype()), (t.shape(), t.strides(), t.dtype()), "{name}");
        assert_eq!(g.to_vec::<u16>().unwrap(), t.to_vec::<u16>().unwrap(), "{name}");
    }
}

#[test]
fn memory_at_hand_is_what_was_found_free() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let (topic, small) = (s.topic("any").unwrap(), s.alloc::<u8>(&[1]).unwrap().freeze());
    let at_hand = |n: i64| s.alloc_at_hand(DType::FLOAT32, &[n]).unwrap();
    assert!(at_hand(1000).is_none() && at_hand(0).is_none());
    let x = s.alloc::<f32>(&[1000]).unwrap().freeze();
    let (y, address) = (x.clone(), x.as_ptr().unwrap());
    drop(x);
    topic.send(&small).unwrap(); // which looks for what is free
    assert!(at_hand(1000).is_none(), "it is still held");
    drop(y);
    topic.send(&small).unwrap();
    let x = at_hand(1000).expect("it is free");
    assert_eq!((x.as_ptr().unwrap(), x.shape(), x.is_read_only()), (address, &[1000][..], false));
    assert!(at_hand(1000).is_none());
    assert_eq!(s.alloc_at_hand(DType::FLOAT32, &[-1]).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn each_item_of_a_queue_goes_to_one_taker_who_may_write_it() {
    let Some(b) = Broker::start() else { return };
    let from = b.session();
    let q = from.queue_with("work", &QueueOptions::default().depth(4)).unwrap();
    let takers: Vec<_> = (0..3)
        .map(|_| {
            let s = b.session();
            std::thread::spawn(move || {
                let q = s.queue("work").unwrap();
                let mut got = Vec::new();
                loop {
                    match q.get(SOON) {
                        Ok(m) => {
                            let mut t = m.tensor().unwrap();
                            // SAFETY: a queue's item has one taker, and its sender has let it go.
                            let x = unsafe { t.as_mut_slice::<u64>() }.unwrap();
                            x[1] += 1;
                            assert_eq!(x[1], 1, "item {} was taken twice", x[0]);
                            got.push(x[0]);
                        }
                        Err(e) if e.code() == Code::Closed => return got,
                        Err(e) => panic!("{e}"),
                    }
                }
            })
        })
        .collect();
    for i in 0..300u64 {
        q.put(from.from_slice(&[2], &[i, 0]).unwrap().freeze(), SOON).unwrap();
    }
    q.end().unwrap();
    let mut all: Vec<u64> = takers.into_iter().flat_map(|t| t.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..300).collect::<Vec<_>>());
    drop(q);
    b.nothing_is_held();
}

#[test]
fn a_full_queue_and_an_empty_one_say_so() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let q = s.queue_with("small", &QueueOptions::default().depth(2)).unwrap();
    assert_eq!(q.get(Duration::ZERO).unwrap_err().code(), Code::Empty);
    let x = s.zeros::<u8>(&[3]).unwrap().freeze();
    q.put(&x, Duration::ZERO).unwrap();
    q.put(&x, Duration::ZERO).unwrap();
    let full = q.put(&x, Duration::from_millis(20)).unwrap_err();
    assert_eq!(full.code(), Code::Full);
    assert!(full.is_timeout());
    q.get(SOON).unwrap();
    q.put(&x, SOON).unwrap();
    assert_eq!(s.queue_with("small", &QueueOptions::default().depth(9)).unwrap_err().code(), Code::Conflict);
}

/// One item that is not done with leaves its sender no room, though others behind it are.
#[test]
fn an_item_that_holds_up_its_sender_is_named() {
    let Some(b) = Broker::start() else { return };
    let (from, to) = (b.session(), b.session());
    let options = QueueOptions::default().depth(3).redeliver(true);
    let (sends, takes) = (from.queue_with("held", &options).unwrap(), to.queue_with("held", &options).unwrap());
    let x = from.zeros::<u8>(&[3]).unwrap().freeze();
    for _ in 0..3 {
        sends.put(&x, Duration::ZERO).unwrap();
    }
    let full = || sends.put(&x, Duration::ZERO).unwrap_err().to_string();
    assert!(!full().contains("holds it up"), "nothing was taken");
    let first = takes.get(SOON).unwrap();
    drop(takes.get(SOON).unwrap());
    let said = full();
    let expected = "item 1 of this sender holds it up, which a taker has and has not released: 1 of 3 items wait";
    assert!(said.contains(expected), "{said}");
    drop(first);
    sends.put(&x, SOON).unwrap();
}

#[test]
fn names_have_revisions_that_are_watched() {
    let Some(b) = Broker::start() else { return };
    let (from, to) = (b.session(), b.session());
    assert_eq!(to.get("weights/actor", Duration::ZERO).unwrap_err().code(), Code::NotFound);
    let mut watch = to.watch("weights/actor").unwrap();
    for r in 1..=20u64 {
        let w = from.from_slice(&[2], &[r as f64, 0.5]).unwrap().freeze();
        assert_eq!(from.set("weights/actor", Payload::named([("w", w)])).unwrap(), r);
        let b = watch.next(SOON).unwrap();
        assert_eq!(b.revision(), r);
        assert_eq!(b.get("w").unwrap().to_vec::<f64>().unwrap(), [r as f64, 0.5]);
        assert!(b.get("w").unwrap().is_read_only() && !b.is_live());
    }
    assert_eq!(to.get("weights/actor", Duration::ZERO).unwrap().revision(), 20);
    from.delete("weights/actor").unwrap();
    assert_eq!(watch.next(Duration::ZERO).unwrap_err().code(), Code::Timeout, "it may be set again");
    assert_eq!(to.get("weights/actor", Duration::ZERO).unwrap_err().code(), Code::NotFound);
    assert_eq!(from.delete("weights/actor").unwrap_err().code(), Code::NotFound);
}

#[test]
fn a_live_name_is_one_memory_for_all() {
    let Some(b) = Broker::start() else { return };
    let (one, two) = (b.session(), b.session());
    let w = one.zeros::<i32>(&[8]).unwrap().freeze();
    one.set_with("live", Payload::named([("w", w.clone())]), &NameOptions::default().live(true)).unwrap();
    let got = two.get("live", SOON).unwrap();
    assert!(got.is_live());
    let mut theirs = got.get("w").unwrap().clone();
    // SAFETY: nothing else looks at the memory now.
    unsafe { theirs.as_mut_slice::<i32>() }.unwrap()[3] = 7;
    assert_eq!(w.to_vec::<i32>().unwrap()[3], 7);
}

#[test]
fn a_live_name_may_end_with_its_setter() {
    let Some(b) = Broker::start() else { return };
    let (one, two) = (b.session(), b.session());
    let both = NameOptions::default().live(true).ephemeral(true);
    one.set_with("run", one.zeros::<i32>(&[8]).unwrap().freeze(), &both).unwrap();
    one.set_with("stays", one.zeros::<i32>(&[8]).unwrap().freeze(), &NameOptions::default().live(true)).unwrap();
    assert!(two.get("run", SOON).unwrap().is_live());
    one.close();
    until("the name is deleted", || two.names("").unwrap() == ["stays"]);
    assert_eq!(two.get("run", Duration::ZERO).unwrap_err().code(), Code::NotFound);
}

#[test]
fn a_handle_opens_elsewhere_and_expires() {
    let Some(b) = Broker::start() else { return };
    let (from, to) = (b.session(), b.session());
    let x = from.from_slice(&[2, 3], &[1i16, 2, 3, 4, 5, 6]).unwrap().freeze();
    let part = x.as_strided(&[3, 2], Some(&[1, 3]), 0).unwrap();
    let json = part.handle(Lease::default()).unwrap().to_json();
    // A stride that leads nowhere may be any number, of which JSON holds 53 bits.
    let row = x.as_strided(&[1, 3], Some(&[i64::MAX, 1]), 0).unwrap().handle(Lease::default()).unwrap();
    assert_eq!(to.open(&Handle::from_json(&row.to_json()).unwrap()).unwrap().to_vec::<i16>().unwrap(), [1, 2, 3]);
    from.release_handle(&row).unwrap();
    drop((x, part));
    let h = Handle::from_json(&json).unwrap();
    let y = to.open(&h).unwrap();
    assert_eq!((y.shape(), y.strides()), (&[3, 2][..], Some(&[1, 3][..])));
    assert_eq!(y.as_strided(&[6], None, 0).unwrap().to_vec::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
    drop(y);
    assert_eq!(to.release_handle(&h).unwrap_err().code(), Code::PermissionDenied, "its maker's to end");
    from.release_handle(&h).unwrap();
    kit::until("the storage is recycled", || {
        from.collect();
        to.open(&h).is_err()
    });
    assert_eq!(to.open(&h).unwrap_err().code(), Code::Expired);
    let mut other = h.clone();
    other.host = "0123".to_owned();
    assert_eq!(to.open(&other).unwrap_err().code(), Code::InvalidHandle);
    b.nothing_is_held();
}

#[test]
fn a_sleeping_reader_is_woken_by_each_message() {
    let Some(b) = Broker::start() else { return };
    let (one, two) = (b.session(), b.session());
    let (ping, pong) = (one.topic("ping").unwrap(), two.topic("pong").unwrap());
    let mut at_two = two.topic("ping").unwrap().reader(Start::New).unwrap();
    let mut at_one = one.topic("pong").unwrap().reader(Start::New).unwrap();
    let answer = std::thread::spawn(move || {
        for _ in 0..200 {
            let m = at_two.recv(SOON).unwrap();
            pong.send(m.tensor().unwrap()).unwrap(); // the same memory goes back
        }
    });
    for k in 0..200u64 {
        if k % 50 == 0 {
            std::thread::sleep(Duration::from_millis(5)); // both sides park
        }
        let x = one.from_slice(&[1], &[k]).unwrap().freeze();
        ping.send(&x).unwrap();
        assert_eq!(at_one.recv(SOON).unwrap().tensor().unwrap().to_vec::<u64>().unwrap(), [k]);
    }
    answer.join().unwrap();
}

#[test]
fn what_was_sent_before_the_end_of_a_session_is_received() {
    let Some(b) = Broker::start() else { return };
    let to = b.session();
    let mut reader = to.topic("t").unwrap().reader(Start::New).unwrap();
    let from = b.session();
    for k in 0..5u8 {
        from.topic("t").unwrap().send(from.from_slice(&[1], &[k]).unwrap().freeze()).unwrap();
    }
    drop(from);
    for k in 0..5u8 {
        assert_eq!(reader.recv(SOON).unwrap().tensor().unwrap().to_vec::<u8>().unwrap(), [k]);
    }
}

#[test]
fn dlpack_exports_count_by_themselves() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let x = s.from_slice(&[2, 2], &[1f32, 2., 3., 4.]).unwrap().freeze();
    let m = x.to_dlpack(ExportOptions::default()).unwrap().into_raw();
    let legacy = x.to_dlpack_legacy(ExportOptions::default()).unwrap();
    drop(x);
    assert_eq!(s.collect(), 0);
    // SAFETY: the export is valid until its deleter is called, once.
    unsafe {
        let t = &(*m).dl_tensor;
        assert_eq!((t.ndim, *t.shape, *t.shape.add(1), *t.strides, *t.strides.add(1)), (2, 2, 2, 2, 1));
        assert_eq!(std::slice::from_raw_parts(t.data.cast::<f32>(), 4), [1., 2., 3., 4.]);
        assert_eq!(t.data as usize % 256, 0);
        ((*m).deleter.unwrap())(m);
        assert_eq!(s.collect(), 0, "the legacy export is still there");
    }
    drop(legacy);
    assert!(s.collect() > 0);
}

#[test]
fn a_broker_named_by_address_is_not_started() {
    let dir = kit::Dir::new();
    let e = baton::Session::builder()
        .address(format!("unix:{}", dir.path().join("none.sock").display()))
        .timeout(Duration::from_millis(50))
        .connect()
        .unwrap_err();
    assert_eq!(e.code(), Code::NoBroker);
}

#[test]
fn a_topic_left_and_opened_again_at_once_stays_open() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let mut reader = b.session().topic("t").unwrap().reader(Start::New).unwrap();
    let x = s.zeros::<u8>(&[4]).unwrap().freeze();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (s, x) = (s.clone(), x.clone());
            std::thread::spawn(move || (0..100).for_each(|_| s.topic("t").unwrap().send(&x).unwrap()))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let mut seen = 0;
    while let Ok(m) = reader.recv(Duration::ZERO) {
        seen += 1 + m.lost();
    }
    assert!(seen > 0 && seen <= 200, "{seen}");
}

#[test]
fn senders_that_come_and_go_do_not_hinder_each_other() {
    let Some(b) = Broker::start() else { return };
    let taker = b.session();
    let queue = taker.queue("crowd").unwrap();
    let (senders, rounds) = (16, 12);
    std::thread::scope(|all| {
        for _ in 0..senders {
            all.spawn(|| {
                for _ in 0..rounds {
                    // Between reading the members and asking for their files, some have ended.
                    let s = b.session();
                    s.queue("crowd").unwrap().put(s.from_slice(&[1], &[1u8]).unwrap().freeze(), SOON).unwrap();
                }
            });
        }
        for _ in 0..senders * rounds {
            assert_eq!(queue.get(SOON).unwrap().tensor().unwrap().to_vec::<u8>().unwrap(), [1]);
        }
    });
}

/// A topic keeps depth messages of all senders that have ended, together. A reader that comes too late
/// for the rest is told how many there were.
#[test]
fn messages_of_senders_that_have_gone_are_counted_as_lost() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &TopicOptions::default().depth(2)).unwrap();
    let mut reader = topic.reader(Start::New).unwrap();
    let senders = 4;
    for _ in 0..senders {
        let s = b.session();
        let topic = s.topic("t").unwrap();
        for _ in 0..2 {
            topic.send(s.from_slice(&[1], &[1u8]).unwrap().freeze()).unwrap();
        }
    }
    until("only the last two are kept", || b.listed("storages").len() == 2);
    let lost: u64 = (0..2).map(|_| reader.recv(SOON).unwrap().lost()).sum();
    assert_eq!(lost + reader.lost(), 2 * senders - 2);
    assert!(reader.try_recv().unwrap().is_none());
}

/// Each opening counts at the broker, and one topic of a process is closed once.
#[test]
fn a_topic_opened_twice_is_gone_when_both_are() {
    let Some(b) = Broker::start() else { return };
    let (s, other) = (b.session(), b.session());
    let brief = TopicOptions::default().linger(Duration::from_millis(1)).depth(4);
    let (one, two) = (s.topic_with("twice", &brief).unwrap(), s.topic_with("twice", &brief).unwrap());
    drop(one);
    assert_eq!(other.topic_with("twice", &TopicOptions::default().depth(8)).unwrap_err().code(), Code::Conflict);
    drop(two);
    until("no session has it open", || other.topic_with("twice", &TopicOptions::default().depth(8)).is_ok());
}

#[test]
fn any_thread_may_have_and_share_what_there_is() {
    fn shared<T: Send + Sync>() {}
    shared::<baton::Session>();
    shared::<baton::Tensor>();
    shared::<baton::TensorMut<f32>>();
    shared::<baton::Topic>();
    shared::<baton::Reader>();
    shared::<baton::Queue>();
    shared::<baton::Watch>();
    shared::<baton::Message>();
    shared::<baton::Bundle>();
    shared::<baton::Payload>();
    shared::<baton::Error>();
}

#[test]
fn names_that_are_no_keys_of_a_dict_are_refused_before_they_are_sent() {
    let Some(broker) = Broker::start() else { return };
    let session = broker.session();
    let topic = session.topic("t").unwrap();
    let mut reader = topic.reader(Start::New).unwrap();
    let x = session.from_slice(&[1], &[1u8]).unwrap().freeze();
    let of = |names: &[&str]| Payload::named(names.iter().map(|n| (*n, x.clone())));
    for names in [&["a", "b", "a"][..], &["a", ""]] {
        assert_eq!(topic.send(of(names)).unwrap_err().code(), Code::InvalidArgument, "{names:?}");
        assert_eq!(session.set("name", of(names)).unwrap_err().code(), Code::InvalidArgument, "{names:?}");
    }
    topic.send(of(&["a", "b"])).unwrap();
    assert_eq!(reader.recv(None).unwrap().sequence(), 1, "nothing was sent before");
}
