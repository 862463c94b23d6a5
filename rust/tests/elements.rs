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
    let e = baton::Payload::default().meta(&std::collections::BTreeMap::from([(vec![1], 2)])).unwrap_err();
    assert!(e.source().is_some_and(|s| s.downcast_ref::<serde_json::Error>().is_some()), "{e}");
}
