//! Any bytes, where another process's are read: nothing panics, nothing is read out of range, and what
//! is accepted keeps its promises. The golden vectors are the seeds: each is also read with a few bytes
//! changed. Proptest keeps what it finds in `proptest-regressions`, which is run first.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use crate::functions::for_any_bytes::{Is, Record, Signature};
use crate::handle::Handle;
use crate::layout::{
    GROUP_AREAS, bell_file, claim, group_area, group_bytes, lane, lane_bytes, limits, reference, session_file, slot,
    wait_area,
};
use crate::ledger::{Entries, Refcounts};
use crate::message::{Body, TensorDesc, parse_spill};
use crate::shm::{Bells, Copied, GroupLane, Lane, Region};
use crate::sys::Mapping;
use crate::value::for_any_bytes as tree;
use crate::wire::ops::{ChunksReply, GrantReply, HelloReply, NameSetReply, PeerReply, SegmentReply};
use crate::wire::ops::{TopicInfo, TopicReadReply, TopicWriteReply};
use crate::wire::{Control, Frames, decode};
use crate::{DType, Element};

fn hex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|p| digit(p[0]) << 4 | digit(p[1])).collect()
}

/// The bytes of every case of a file of vectors.
fn seeds(file: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../protocol/testdata/v1/{file}", env!("CARGO_MANIFEST_DIR"));
    let all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = all["cases"].as_array().unwrap();
    assert!(!cases.is_empty(), "{file}");
    let bytes = |c: &Value| match (&c["hex"], &c["text"], &c["reply"]["ok"], &c["event"]) {
        (Value::String(digits), ..) => hex(digits),
        (_, Value::String(text), ..) => text.clone().into(),
        (_, _, Value::Null, event) => event.to_string().into(),
        (_, _, ok, _) => ok.to_string().into(),
    };
    cases.iter().map(bytes).collect()
}

/// Any bytes, or those of a vector with some changed, cut or added.
fn near(files: &[&str]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let seeds: Vec<Vec<u8>> = files.iter().flat_map(|f| seeds(f)).collect();
    let changed =
        (0..seeds.len(), vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), any::<prop::sample::Index>(), 0..4u8)
            .prop_map(move |(seed, changes, cut, how)| {
                let mut b = seeds[seed].clone();
                for (at, v) in changes {
                    if !b.is_empty() {
                        let at = at.index(b.len());
                        b[at] = v;
                    }
                }
                match how {
                    0 => b.truncate(cut.index(b.len() + 1)),
                    1 => b.extend([0; 9]),
                    _ => {}
                }
                b
            });
    prop_oneof![3 => changed, 1 => vec(any::<u8>(), 0..300)]
}

/// Numbers of which the limits are likely.
fn edgy() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..70u64, (0..64u32).prop_map(|n| 1 << n), (0..300u64).prop_map(|n| u64::MAX - n)]
}

fn memory(bytes: u64) -> Region {
    Region::new(Arc::new(Mapping::anonymous(bytes as usize).unwrap()))
}

/// Two thousand of each, or `$PROPTEST_CASES`.
fn cases() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    if asked { ProptestConfig::default() } else { ProptestConfig::with_cases(2000) }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn bodies(b in near(&["structs/body.json", "reject/body.json"]), refs in 0..4usize) {
        let first = Body::first(&b, refs);
        if let Ok(body) = Body::parse(&b, refs) {
            prop_assert_eq!(&body.encode().unwrap(), &b, "a body has one form");
            prop_assert_eq!(first.unwrap().map(TensorDesc::copied), body.tensors.first().cloned());
            prop_assert!(body.tensors.iter().all(|t| t.storage.is_none_or(|s| usize::from(s) < refs)));
        }
    }

    #[test]
    fn calls(b in near(&["structs/call.json"]), tensors in 0..4usize) {
        if let Ok(r) = Record::parse(&b, tensors) {
            prop_assert_eq!(r.each().count(), r.len());
            for (i, a) in r.each().enumerate() {
                prop_assert_eq!(r.nth(i), Some(a));
                prop_assert!(r.find(a.name).is_some());
                if let Is::Tensor(n) = a.is {
                    prop_assert!((n as usize) < tensors);
                }
            }
            prop_assert!(r.chain().len() <= 64);
        }
    }

    #[test]
    fn signatures(text in ".{0,40}", name in "[a-z|]{0,12}") {
        let _ = Signature::parse(text.as_bytes());
        let described = serde_json::json!({"parameters": [{"name": name, "type": name, "by": text, "default": text}]});
        let s = Signature::parse(described.to_string().as_bytes()).unwrap();
        prop_assert_eq!(Signature::parse(s.to_json().as_bytes()).unwrap().to_json(), s.to_json());
    }

    #[test]
    fn spills(b in near(&["structs/spill.json", "reject/spill.json"])) {
        if let Ok((refs, body)) = parse_spill(b.clone()) {
            prop_assert!(refs.iter().all(|r| r.check().is_ok()));
            prop_assert!(refs.len() * reference::SIZE as usize + body.len() <= b.len());
        }
    }

    #[test]
    fn trees(b in near(&["messages/tree.json", "reject/tree.json"]), tensors in 0..4usize) {
        let marks = || (0..tensors).map(|i| tree::Value::Text(format!("tensor {i}"))).collect();
        if let Ok(v) = tree::of_parts(&tree::Values, Vec::new(), marks(), &b) {
            let sent = tree::tree_of(&v).expect("what was received can be sent on");
            let back = tree::of_parts(&tree::Values, Vec::new(), Vec::new(), &sent).unwrap();
            prop_assert_eq!(format!("{back:?}"), format!("{v:?}"));
        }
    }

    #[test]
    fn handles(b in near(&["messages/handle.json", "reject/handle.json"])) {
        if let Ok(h) = Handle::from_json(&String::from_utf8_lossy(&b)) {
            prop_assert_eq!(Handle::from_json(&h.to_json()).unwrap().to_json(), h.to_json());
        }
    }

    #[test]
    fn frames(parts in vec(near(&["messages/frame.json", "reject/frame.json"]), 1..4)) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &theirs, &parts.concat()).unwrap();
        drop(theirs);
        let control = Control::new(ours.into());
        let mut frames = Frames::default();
        while let Ok(true) = frames.receive(&control.socket().unwrap()) {
            while let Ok(Some((json, fds))) = frames.next() {
                prop_assert!(json.len() >= 2 && fds.as_ref().is_some_and(Vec::is_empty));
                let _ = control.deliver(json, fds);
            }
        }
    }

    #[test]
    fn replies(b in near(&["messages/hello.json", "messages/topic.read.json", "messages/peer.json",
                           "messages/grant.json", "messages/event.trim.json"])) {
        let Ok(json) = serde_json::from_slice::<Box<serde_json::value::RawValue>>(&b) else { return Ok(()) };
        let _ = (decode::<HelloReply>("", &json), decode::<GrantReply>("", &json), decode::<ChunksReply>("", &json));
        let _ = (decode::<SegmentReply>("", &json), decode::<TopicInfo>("", &json), decode::<PeerReply>("", &json));
        let _ = (decode::<TopicWriteReply>("", &json), decode::<TopicReadReply>("", &json));
        let _ = decode::<NameSetReply>("", &json);
    }

    #[test]
    fn slots(words in vec(edgy(), 20), seq in 1..9u64, slots in 0..3u32, stride in 1..4u32) {
        let (slots, stride) = (1 << slots, stride * 64);
        let file = memory(lane_bytes(slots, stride));
        let lane = Lane::new(&file, 0, slots, stride).unwrap();
        let n = words.len().min(stride as usize / 8 - 1);
        let at = crate::layout::lane::SIZE + u64::from(seq as u32 & (slots - 1)) * u64::from(stride);
        words[..n].iter().zip((at + 8..).step_by(8)).for_each(|(w, at)| file.store(at, *w));
        file.store(at + slot::SEQ, seq);
        let mut copy = Vec::new();
        if let Some(Copied::Full(h)) = lane.read(seq, &mut copy, |_| ()) {
            prop_assert!(usize::from(h.nref) * 24 + h.body as usize <= lane.capacity());
            prop_assert_eq!(h.refs(&copy).count(), usize::from(h.nref));
            prop_assert_eq!(h.body_of(&copy).len(), h.body as usize);
        }
    }

    #[test]
    fn lanes(offset in edgy(), slots in any::<u32>(), stride in any::<u32>()) {
        let file = memory(1 << 16);
        if let Ok(lane) = Lane::new(&file, offset, slots, stride) {
            prop_assert!(offset + lane.slots() * u64::from(stride) <= 1 << 16);
        }
    }

    #[test]
    fn claims(hint in edgy(), start in edgy(), words in vec(edgy(), 4), head in edgy(), state in 0..4u8) {
        let file = memory(group_bytes(4));
        let g = GroupLane::new(&file, 0, 4).unwrap();
        file.store(GROUP_AREAS + group_area::HINT, hint);
        file.store(GROUP_AREAS + group_area::START, start);
        for (i, w) in words.iter().enumerate() {
            let w = if i == 0 { claim::pack(head, 1, state) } else { *w };
            file.store(GROUP_AREAS + group_area::SIZE + 8 * i as u64, w);
        }
        if let Some((i, hint)) = g.next(head) {
            prop_assert!(i >= 1 && i <= head);
            g.take(i, hint, 1, true);
        }
        g.done(head);
        let pages = memory(lane_bytes(4, 64));
        pages.store(lane::HEAD, head);
        let lane = Lane::new(&pages, 0, 4, 64).unwrap();
        prop_assert!(g.waiting(&lane) <= 4);
    }

    #[test]
    fn wait_sets(words in edgy(), members in vec((0..64u32, edgy()), 0..4), set in 0..2u32, slot in 0..limits::SESSIONS,
                 last in 0..limits::SESSIONS) {
        let file = memory(bell_file::BYTES);
        let area = bell_file::waits(3);
        file.store(area + wait_area::WORDS + 8 * u64::from(set), words);
        members.iter().for_each(|(w, bits)| file.store(area + bell_file::members(set) + 8 * u64::from(*w), *bits));
        let waits = Bells::new(file).waits(3);
        waits.set(set).add(slot);
        let mut last = last;
        waits.set(set).ring_one(&mut last);
        prop_assert!(last < limits::SESSIONS);
        waits.set(set).remove(slot);
        waits.set(set).ring();
    }

    #[test]
    fn entries(words in vec(edgy(), 4), index in 0..1000u32) {
        let file = memory(session_file::BYTES);
        let entries = Entries::new(&file);
        let at = session_file::ENTRIES + u64::from(index) * 32;
        words.iter().zip((at..).step_by(8)).for_each(|(w, at)| file.store(at, *w));
        let e = entries.load(index);
        prop_assert!(e.generation < 1 << 52);
        Refcounts::new(&file).load(index);
    }

    #[test]
    fn views(shape in vec(edgy(), 0..4), strides in vec(edgy(), 0..4), strided in any::<bool>(),
             offset in edgy(), bytes in edgy(), small in any::<bool>()) {
        let number = |n: &u64| if small { (*n % 9) as i64 } else { *n as i64 };
        let (shape, strides): (Vec<i64>, Vec<i64>) = (shape.iter().map(number).collect(), strides.iter().map(number).collect());
        let (offset, bytes) = if small { (offset % 64, bytes % 4096) } else { (offset, bytes) };
        let dtype = <f32 as Element>::DTYPE;
        if dtype.check_view(&shape, strided.then_some(&strides[..]), offset, bytes).is_ok() && !shape.contains(&0) {
            let steps: Vec<i128> = match strided {
                true => strides.iter().map(|s| i128::from(*s)).collect(),
                false => (0..shape.len()).map(|i| shape[i + 1..].iter().map(|d| i128::from(*d)).product()).collect(),
            };
            let last: i128 = shape.iter().zip(steps).map(|(d, s)| (i128::from(*d) - 1) * s).sum();
            prop_assert!(i128::from(offset) + (last + 1) * 4 <= i128::from(bytes), "the last element lies inside");
        }
    }

    #[test]
    fn names_of_types(text in "[a-zA-Z0-9_()=,]{0,20}") {
        if let Ok(t) = DType::parse(&text) {
            prop_assert_eq!(t.to_string(), text);
        }
    }
}
