//! Tensors as arrays of ndarray.
#![cfg(feature = "ndarray")]

mod kit;

use baton::{Code, DType};
use ndarray::{ArrayD, Axis, array};

#[test]
fn arrays_go_in_and_out() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let a = array![[0i32, 1, 2], [3, 4, 5]];
    let mut x = session.from_array(&a.t()).unwrap();
    assert_eq!(x.shape(), [3, 2]);
    assert_eq!(x.as_array().unwrap(), a.t().into_dyn());
    x.as_array_mut().unwrap()[[2, 0]] = 9;
    let mut x = x.freeze();
    assert_eq!(x.to_vec::<i32>().unwrap(), [0, 3, 1, 4, 9, 5]);
    let rows = x.as_strided(&[2, 3], Some(&[1, 2]), 0).unwrap();
    // SAFETY: nothing writes it meanwhile.
    let seen: ArrayD<i32> = unsafe { rows.as_array() }.unwrap().to_owned();
    assert_eq!(seen, array![[0, 1, 9], [3, 4, 5]].into_dyn());
    assert_eq!(rows.to_array::<i32>().unwrap(), seen);
    // SAFETY: nothing else looks at it meanwhile.
    unsafe { x.as_array_mut::<i32>() }.unwrap().index_axis_mut(Axis(1), 0).fill(7);
    assert_eq!(x.to_vec::<i32>().unwrap(), [7, 3, 7, 4, 7, 5]);
    let none = session.from_array(&ArrayD::<f64>::zeros(vec![2, 0])).unwrap().freeze();
    assert_eq!(none.to_array::<f64>().unwrap().shape(), [2, 0]);
    let one = session.from_array(&ndarray::arr0(3u8)).unwrap().freeze();
    assert_eq!(one.to_array::<u8>().unwrap().into_dimensionality::<ndarray::Ix0>().unwrap().into_scalar(), 3);
}

#[test]
fn what_an_array_cannot_be_is_refused() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let x = session.zeros::<i32>(&[4]).unwrap().freeze();
    let mut repeated = x.as_strided(&[3, 4], Some(&[0, 1]), 0).unwrap();
    // SAFETY: refused, or nothing writes it meanwhile.
    unsafe {
        assert_eq!(repeated.as_array::<i32>().unwrap().shape(), [3, 4]);
        assert_eq!(repeated.as_array_mut::<i32>().unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(x.as_array::<f32>().unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(x.to_read_only().as_array_mut::<i32>().unwrap_err().code(), Code::ReadOnly);
    }
}

#[test]
fn bytes_of_another_type_are_no_array_of_bytes() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let mut x = session.allocation(&[4]).raw(DType::FLOAT32).unwrap();
    assert_eq!(x.as_array_mut().unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(x.as_array().unwrap_err().code(), Code::InvalidArgument);
}
