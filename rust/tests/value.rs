//! Values against the golden vectors, and through a topic.

mod kit;

use baton::{Code, Payload, Session, Start, Tensor, Value};

fn cases(path: &str) -> Vec<serde_json::Value> {
    let path = format!("{}/../protocol/testdata/v1/{path}/tree.json", env!("CARGO_MANIFEST_DIR"));
    let v: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect(&path)).expect(&path);
    v["cases"].as_array().unwrap().clone()
}

/// A topic and its one reader.
struct Channel(baton::Topic, baton::Reader);

impl Channel {
    fn new(s: &Session) -> Channel {
        let topic = s.topic("").unwrap();
        let reader = topic.reader(Start::New).unwrap();
        Channel(topic, reader)
    }

    fn through(&mut self, p: Payload) -> baton::Bundle {
        self.0.send(p).unwrap();
        self.1.recv(std::time::Duration::from_secs(90)).unwrap().bundle().unwrap()
    }
}

fn tensors(s: &Session, n: usize) -> Vec<Tensor> {
    (0..n as i64).map(|k| s.from_slice(&[1], &[k]).unwrap().freeze()).collect()
}

#[test]
fn trees_are_those_of_the_vectors() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let mut channel = Channel::new(&session);
    let all = cases("messages");
    assert!(!all.is_empty());
    for case in all {
        let text = case["text"].as_str().unwrap();
        let names: Vec<&str> =
            case["names"].as_array().map_or(Vec::new(), |n| n.iter().map(|n| n.as_str().unwrap()).collect());
        let same = case["same"].as_array().cloned().unwrap_or_default();
        for form in [text].into_iter().chain(same.iter().map(|s| s.as_str().unwrap())) {
            let named = names.iter().map(|n| n.to_string()).zip(tensors(&session, names.len())).collect();
            let value = channel.through(Payload::with_tree(named, form.into())).value();
            let value = value.unwrap_or_else(|e| panic!("{form}: {e}"));
            let back = channel.through(value.payload().unwrap());
            let tree = std::str::from_utf8(back.tree()).unwrap();
            assert_eq!(if tree == "{}" { "" } else { tree }, text, "{form}");
            if !text.is_empty() {
                assert_eq!(back.iter().map(|(n, _)| n).collect::<Vec<_>>(), names, "{form}");
            }
            let order: Vec<i64> = back.iter().map(|(_, t)| t.to_vec::<i64>().unwrap()[0]).collect();
            assert_eq!(order, (0..names.len() as i64).collect::<Vec<_>>(), "{form}");
        }
    }
}

#[test]
fn malformed_trees_are_refused() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let mut channel = Channel::new(&session);
    let all = cases("reject");
    assert!(!all.is_empty());
    for case in all {
        let tree = match (case["text"].as_str(), case["hex"].as_str()) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (_, Some(hex)) => {
                (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
            }
            _ => panic!("{case}"),
        };
        if tree.is_empty() || tree.len() > 1 << 19 {
            continue; // no tree, or one that is refused when it is sent
        }
        let e = channel.through(Payload::with_tree(vec![("x".into(), tensors(&session, 1).remove(0))], tree)).value();
        assert_eq!(e.map(|v| format!("{v:?}")).map_err(|e| e.code()), Err(Code::Protocol), "{}", case["name"]);
    }
}

#[test]
fn values_come_out_as_they_went_in() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let mut channel = Channel::new(&session);
    let x = tensors(&session, 1).remove(0);
    let value = Value::dict([
        ("step", 3.into()),
        ("large", i64::MIN.into()),
        ("huge", Value::BigInt("-123456789012345678901234567890".into())),
        ("nan", f64::NAN.into()),
        ("tiny", 1e-300.into()),
        ("whole", 1e22.into()),
        ("text", "ü\n\"\u{1}".into()),
        ("bytes", vec![0, 255].into()),
        ("none", Value::Null),
        ("pair", Value::Tuple(vec![true.into(), x.clone().into()])),
        ("config", Value::Dataclass("train:Config".into(), vec![("x".into(), x.into())])),
        ("odd", Value::Dict(vec![(1.into(), "one".into()), (Value::Tuple(vec![2.into()]), Value::List(Vec::new()))])),
    ]);
    let back = channel.through(value.payload().unwrap()).value().unwrap();
    let shown = |v: &Value| match v {
        Value::Dict(all) => all.iter().map(|(k, v)| format!("{k:?} {}", scalar(v))).collect::<Vec<_>>(),
        _ => panic!(),
    };
    assert_eq!(shown(&back), shown(&value));
    let Some(Value::Tuple(pair)) = back.get("pair") else { panic!() };
    assert_eq!(pair[1].tensor().unwrap().to_vec::<i64>().unwrap(), [0]);
    assert!(back.get("config").and_then(|c| c.get("x")).and_then(Value::tensor).is_some());
}

/// What can be compared of a value by its text.
fn scalar(v: &Value) -> String {
    match v {
        Value::Tensor(t) => format!("{}{:?}", t.dtype(), t.shape()),
        Value::Tuple(all) | Value::List(all) => all.iter().map(scalar).collect::<Vec<_>>().join(","),
        Value::Dataclass(name, all) => {
            format!("{name}({})", all.iter().map(|(k, v)| format!("{k}={}", scalar(v))).collect::<Vec<_>>().join(","))
        }
        v => format!("{v:?}"),
    }
}

#[test]
fn what_no_value_may_be_is_refused() {
    let deep = (0..100).fold(Value::Null, |v, _| Value::List(vec![v]));
    assert!(deep.payload().is_ok());
    for bad in [
        Value::List(vec![deep]),
        Value::Dict(vec![(Value::List(Vec::new()), Value::Null)]),
        Value::Dict(vec![(1.into(), Value::Null), (1.into(), Value::Null)]),
        Value::dict([("a", Value::Null), ("a", Value::Null)]),
        Value::Dataclass("Config".into(), Vec::new()),
        Value::Dataclass("m:C".into(), vec![("$".into(), Value::Null)]),
        Value::BigInt("7".into()),
        Value::BigInt("1".repeat(4097)),
        Value::BigInt("12345678901234567890x".into()),
    ] {
        let shown: String = format!("{bad:?}").chars().take(80).collect();
        assert_eq!(bad.payload().unwrap_err().code(), Code::InvalidArgument, "{shown}");
    }
}
