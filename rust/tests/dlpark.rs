//! Tensors of the crate dlpark.
#![cfg(feature = "dlpark")]

mod kit;

use baton::dlpack::{ExportOptions, Managed};
use dlpark::ffi;

#[test]
fn tensors_go_over_and_come_back() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let x = session.from_slice(&[3], &[1i32, 2, 3]).unwrap().freeze();
    let m = x.to_dlpack(ExportOptions::default()).unwrap();
    let theirs: dlpark::Managed<ffi::DLManagedTensorVersioned> = m.try_into().unwrap();
    assert_eq!(theirs.validate().unwrap().shape(), [3]);
    // SAFETY: it was made of a tensor, whose elements may be read.
    let y = session.from_dlpack(unsafe { Managed::from_dlpark(theirs).unwrap() }).unwrap();
    assert_eq!((y.as_ptr().unwrap(), y.to_vec::<i32>().unwrap()), (x.as_ptr().unwrap(), vec![1, 2, 3]));
    drop((x, y, session));
    broker.nothing_is_held();
}
