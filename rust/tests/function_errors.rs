//! Conversions of arguments, which are those of every language, errors that have a kind, and functions that linger.

mod kit;

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton::{Arguments, Code, DType, Error, KindedError, Result, Session, Tensor, Value};
use kit::{Broker, until};

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// The value of a text of the table.
fn value_of(session: &Session, text: &str) -> Value {
    let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
    match kind {
        "none" => Value::Null,
        "bool" => (rest == "true").into(),
        "int" => rest.parse::<i64>().map_or_else(|_| Value::BigInt(rest.to_owned()), Value::Int),
        "float" => rest.parse::<f64>().unwrap().into(),
        "str" => rest.into(),
        "bytes" => Value::Bytes(bytes_of(rest)),
        "list" => Value::List(Vec::new()),
        "tuple" => Value::Tuple(Vec::new()),
        "dict" => Value::Dict(Vec::new()),
        "dtype" => Value::DType(DType::parse(rest).unwrap()),
        "tensor" => {
            let parts: Vec<_> = rest.split(' ').collect();
            let shape: &[i64] = if parts[1] == "0d" { &[] } else { &[1] };
            let mut x = session.allocation(shape).raw(DType::parse(parts[0]).unwrap()).unwrap();
            x.copy_from_slice(&bytes_of(parts[2]));
            x.freeze().into()
        }
        _ => panic!("no value: {text}"),
    }
}

fn is_same(got: &Value, want: &Value) -> bool {
    let raw = |t: &Tensor| {
        // SAFETY: nothing writes it.
        let bytes = unsafe {
            std::slice::from_raw_parts(t.as_ptr().unwrap(), t.dtype().num_bytes(t.shape()).unwrap() as usize)
        };
        (t.dtype(), t.shape().to_vec(), bytes.to_vec())
    };
    match (got, want) {
        (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
        (Value::Tensor(a), Value::Tensor(b)) => raw(a) == raw(b),
        (Value::Tensor(_), _) | (_, Value::Tensor(_)) => false,
        _ => format!("{got:?}") == format!("{want:?}"),
    }
}

fn table() -> serde_json::Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/testdata/conversions.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn rows(table: &serde_json::Value, of: &str) -> Vec<Vec<String>> {
    serde_json::from_value(table[of].clone()).unwrap()
}

#[test]
fn conversions_are_those_of_every_language() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let runs = Arc::new(AtomicUsize::new(0));
    let rows = rows(&table(), "values");
    assert!(rows.len() > 150);
    for (at, row) in rows.iter().enumerate() {
        let (name, runs) = (format!("f{at}"), runs.clone());
        let before = runs.load(Ordering::SeqCst);
        let seen = runs.clone();
        let _f = provider.provide(&name)?.parameter("x", &row[1]).serve(move |args, _| {
            seen.fetch_add(1, Ordering::SeqCst);
            args.get::<Value>("x")
        })?;
        let got = caller.call::<Value>(&name, (value_of(&caller, &row[0]),));
        match got {
            Err(e) => {
                assert_eq!(row[2], "refused", "{row:?}: {e}");
                assert!(e.code() == Code::InvalidArgument && e.message().contains("parameter x"), "{row:?}: {e}");
                assert_eq!(runs.load(Ordering::SeqCst), before, "{row:?}");
            }
            Ok(v) => {
                assert_ne!(row[2], "refused", "{row:?} gave {v:?}");
                assert!(is_same(&v, &value_of(&caller, &row[2])), "{row:?} gave {v:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn arguments_are_bound_as_in_every_language() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = runs.clone();
    let f = provider.provide("f")?.parameter("p", "int64").by_position().parameter("a", "int64");
    let _f = f.optional("b", "float", 2.0).by_name().serve(move |_, _| {
        seen.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })?;
    for row in rows(&table(), "calls") {
        let mut args = Arguments::new();
        for text in row[0].split(" | ").filter(|text| !text.is_empty()) {
            args = match text.split_once('=') {
                Some((name, v)) => args.named(name, value_of(&caller, v)),
                None => args.arg(value_of(&caller, text)),
            };
        }
        let before = runs.load(Ordering::SeqCst);
        match caller.call::<Value>("f", args) {
            Ok(_) => assert_eq!(row[1], "given", "{row:?}"),
            Err(e) => {
                let said = e.message().split("; the function takes").next().unwrap_or_default();
                let mut words = said.split(|c: char| !c.is_alphanumeric());
                assert!(e.code() == Code::InvalidArgument && words.any(|w| w == row[1]), "{row:?}: {e}");
                assert_eq!(runs.load(Ordering::SeqCst), before, "{row:?}");
            }
        }
    }
    Ok(())
}

#[derive(Debug)]
struct TooLarge(String);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TooLarge {}

impl KindedError for TooLarge {
    fn kind(&self) -> &str {
        "test.TooLarge"
    }
}

#[test]
fn errors_of_registered_kinds_are_those_of_the_program() -> Result<()> {
    let message = |e: &Error| TooLarge(e.detail()["message"].as_str().unwrap_or_default().to_owned());
    baton::register_error("test.TooLarge", message)?;
    assert_eq!(baton::register_error("test.TooLarge", message).unwrap_err().code(), Code::Conflict);
    for kind in ["", "baton.Timeout"] {
        assert_eq!(baton::register_error(kind, message).unwrap_err().code(), Code::InvalidArgument);
    }
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    let _f = provider.function("fail", |args, _| {
        let how: String = args.get(0)?;
        if how == "typed" {
            Err(TooLarge("1,000 pens".to_owned()))?;
        }
        Err::<(), _>(Error::of_kind(how, "another"))
    })?;
    let fails = |how: &str| caller.call::<i64>("fail", (how,)).unwrap_err();
    let e = fails("typed");
    assert_eq!((e.code(), e.detail()["kind"].as_str()), (Code::Remote, Some("test.TooLarge")));
    let own = e.source().and_then(|e| e.downcast_ref::<TooLarge>());
    assert_eq!(own.map(|e| e.0.as_str()), Some("1,000 pens"));
    assert!(fails("test.Other").source().is_none());
    assert!(fails("test.TooLarge").source().is_some());
    assert_eq!(fails("").detail()["kind"], "error");
    Ok(())
}

#[test]
fn a_function_that_lingers_is_listed_and_not_called() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (provider, caller) = (broker.session(), broker.session());
    for (name, linger) in [("stays", 3600), ("goes", 0)] {
        drop(provider.provide(name)?.linger(Duration::from_secs(linger)).serve(|_, _| Ok(()))?);
    }
    let listed = || caller.functions("*").unwrap().into_iter().map(|f| (f.name, f.providers.len())).collect::<Vec<_>>();
    until("its provider has left", || listed() == [("stays".to_owned(), 0)]);
    assert_eq!(caller.call::<()>("stays", ()).unwrap_err().code(), Code::NoProvider);
    assert_eq!(caller.call::<()>("goes", ()).unwrap_err().code(), Code::NotFound);
    Ok(())
}
