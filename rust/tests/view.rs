//! Views of a tensor's memory.

mod kit;

use baton::{Code, DType, Tensor};

#[test]
fn views_reach_the_elements_that_they_name() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let x = session.from_slice(&[2, 3, 4], &(0..24).collect::<Vec<i32>>()).unwrap().freeze();
    let values = |t: Tensor| t.to_vec::<i32>().unwrap();
    assert_eq!(values(x.slice(1, 1..2).unwrap()), [4, 5, 6, 7, 16, 17, 18, 19]);
    assert_eq!(values(x.slice(2, 3..).unwrap().slice(0, ..=0).unwrap()), [3, 7, 11]);
    assert_eq!(values(x.select(0, 1).unwrap().select(1, 2).unwrap()), [14, 18, 22]);
    assert_eq!(values(x.select(0, 0).unwrap().transpose(0, 1).unwrap().slice(0, 0..2).unwrap()), [0, 4, 8, 1, 5, 9]);
    assert_eq!(values(x.reshape(&[24]).unwrap().slice(0, 22..).unwrap()), [22, 23]);
    assert_eq!(values(x.slice(0, 1..).unwrap().reshape(&[6, 2]).unwrap().select(0, 5).unwrap()), [22, 23]);
    let none = x.slice(0, 2..).unwrap();
    assert_eq!((none.shape(), none.is_empty()), (&[0, 3, 4][..], true));
    assert_eq!(none.reshape(&[7, 0]).unwrap().shape(), [7, 0]);
    let one = session.from_slice(&[], &[5i32]).unwrap().freeze();
    assert_eq!(values(one.reshape(&[1, 1]).unwrap()), [5]);
    let bits = session.allocation(&[2, 4]).raw(DType::UINT4).unwrap().freeze();
    assert_eq!(bits.slice(1, 2..).unwrap().shape(), [2, 2]);
}

#[test]
fn views_that_cannot_be_are_refused() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let x = session.zeros::<f32>(&[2, 3]).unwrap().freeze();
    let bits = session.allocation(&[4]).raw(DType::UINT4).unwrap().freeze();
    for (what, t) in [
        ("past the end", x.slice(0, 1..3)),
        ("before the start", x.slice(0, -1..1)),
        ("backwards", x.slice(0, std::ops::Range { start: 2, end: 1 })),
        ("far", x.slice(0, i64::MAX..=i64::MAX)),
        ("no dimension", x.slice(2, ..)),
        ("no index", x.select(1, 3)),
        ("no dimension to exchange", x.transpose(0, 2)),
        ("other number", x.reshape(&[5])),
        ("negative", x.reshape(&[-2, -3])),
        ("overflow", x.reshape(&[i64::MAX, 2])),
        ("no elements", x.reshape(&[0])),
        ("with gaps", x.transpose(0, 1).and_then(|t| t.reshape(&[6]))),
        ("inside a byte", bits.slice(0, 1..)),
    ] {
        assert_eq!(t.map(|t| format!("{t:?}")).map_err(|e| e.code()), Err(Code::InvalidArgument), "{what}");
    }
}
