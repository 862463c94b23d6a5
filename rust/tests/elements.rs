//! Elements that are no numbers of Rust's own.

mod kit;

use baton::{Bool, DType, Element};

fn goes_over<T: Element + PartialEq + std::fmt::Debug>(values: [T; 2], dtype: DType) {
    let Some(broker) = kit::Broker::start() else { return };
    let (a, b) = (broker.session(), broker.session());
    a.set("x", a.from_slice(&[2], &values).unwrap().freeze()).unwrap();
    let got = b.get("x", None).unwrap();
    let x = got.first().unwrap();
    assert_eq!((x.dtype(), x.to_vec::<T>().unwrap()), (dtype, values.to_vec()));
    assert!(T::DTYPE == DType::UINT8 || x.to_vec::<u8>().is_err(), "of another type");
}

#[test]
fn booleans() {
    goes_over([Bool::from(true), Bool::from(false)], DType::BOOL);
}

/// As an image library masks: of a byte all bits are set.
#[test]
fn booleans_are_compared_by_truth() {
    let Some(broker) = kit::Broker::start() else { return };
    let mut mask = broker.session().allocation(&[3]).raw(DType::BOOL).unwrap();
    mask.copy_from_slice(&[0, 1, 255]);
    let mask = mask.freeze().to_vec::<Bool>().unwrap();
    assert_eq!(mask, [false, true, true].map(Bool::from));
    assert_eq!(std::collections::HashSet::<Bool>::from_iter(mask).len(), 2);
}

#[cfg(feature = "half")]
#[test]
fn halves() {
    goes_over([half::f16::from_f32(1.5), half::f16::ONE], DType::FLOAT16);
    goes_over([half::bf16::from_f32(1.5), half::bf16::ONE], DType::BFLOAT16);
}

#[cfg(feature = "num-complex")]
#[test]
fn complex_numbers() {
    goes_over([num_complex::Complex::new(1f32, 2.), Default::default()], DType::COMPLEX64);
    goes_over([num_complex::Complex::new(1f64, 2.), Default::default()], DType::COMPLEX128);
}

#[test]
fn an_error_tells_where_it_comes_from() {
    use std::error::Error;
    let Some(broker) = kit::Broker::start() else { return };
    let e = broker.session().map_file("/nowhere").unwrap_err();
    let system = e.source().and_then(|s| s.downcast_ref::<std::io::Error>());
    assert_eq!((e.code(), system.map(|s| s.kind())), (baton::Code::NotFound, Some(std::io::ErrorKind::NotFound)));
    for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let within = std::collections::BTreeMap::from([("a", vec![(1, Some(1.5)), (2, Some(none))])]);
        let e = baton::Payload::default().meta(&within).unwrap_err();
        assert_eq!(
            (e.code(), e.message()),
            (baton::Code::InvalidArgument, &*format!("encode meta: JSON has no {none}"))
        );
        assert_eq!(baton::Payload::default().meta(&(none as f32)).unwrap_err().code(), baton::Code::InvalidArgument);
    }
    let e = baton::Payload::default().meta(&std::collections::BTreeMap::from([(vec![1], 2)])).unwrap_err();
    assert!(e.source().is_some_and(|s| s.downcast_ref::<serde_json::Error>().is_some()), "{e}");
}

/// What a program shows that ends with an error, or prints what it has.
#[test]
fn what_is_shown_for_programmers_is_short() {
    let Some(broker) = kit::Broker::start() else { return };
    let s = broker.session();
    let e = s.map_file("/nowhere").unwrap_err();
    assert_eq!(format!("{e:?}"), format!("NotFound: {e}"));
    let (topic, queue) = (s.topic("t").unwrap(), s.queue("").unwrap());
    let mut reader = topic.reader(baton::Start::New).unwrap();
    let x = s.zeros::<f32>(&[2, 3]).unwrap();
    assert_eq!(format!("{x:?}"), "TensorMut { dtype: float32, shape: [2, 3], .. }");
    let x = x.freeze();
    assert_eq!(format!("{x:?}"), "Tensor { dtype: float32, shape: [2, 3], read_only: false, .. }");
    topic.send(&x).unwrap();
    let m = reader.recv(None).unwrap();
    let all = [
        format!("{m:?}"),
        format!("{topic:?} {reader:?} {queue:?}"),
        format!("{s:?} {:?}", s.allocation(&[1])),
        format!("{:?} {:?}", s.watch("n").unwrap(), reader.closer()),
        format!("{:?} {:?}", m.bundle().unwrap(), baton::Payload::from(&x)),
        format!("{:?}", m.value().unwrap()),
    ];
    for shown in all {
        assert!(shown.len() < 300, "{} characters: {shown}", shown.len());
        assert!(!shown.contains(queue.token()), "it opens the queue: {shown}");
    }
}
