//! DLPack with a library that others wrote: the crate dlpk.
#![cfg(feature = "dlpk")]

mod kit;

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use baton::dlpack::*;
use dlpk::{DLPackTensor, sys};

macro_rules! same_layout {
    ($($t:ident { $($f:ident),* })*) => { $(
        assert_eq!((size_of::<$t>(), align_of::<$t>()), (size_of::<sys::$t>(), align_of::<sys::$t>()));
        $(assert_eq!(offset_of!($t, $f), offset_of!(sys::$t, $f), "{} of {}", stringify!($f), stringify!($t));)*
    )* };
}

#[test]
fn layouts_are_equal_field_by_field() {
    same_layout! {
        DLPackVersion { major, minor }
        DLDevice { device_type, device_id }
        DLDataType { code, bits, lanes }
        DLTensor { data, device, ndim, dtype, shape, strides, byte_offset }
        DLManagedTensor { dl_tensor, manager_ctx, deleter }
        DLManagedTensorVersioned { version, manager_ctx, deleter, flags, dl_tensor }
        DLPackExchangeAPIHeader { version, prev_api }
        DLPackExchangeAPI {
            header, managed_tensor_allocator, managed_tensor_from_py_object_no_sync,
            managed_tensor_to_py_object_no_sync, dltensor_from_py_object_no_sync, current_work_stream
        }
    }
    assert_eq!((VERSION.major, VERSION.minor), (sys::DLPACK_MAJOR_VERSION, sys::DLPACK_MINOR_VERSION));
    assert_eq!(flag::READ_ONLY, sys::DLPACK_FLAG_BITMASK_READ_ONLY);
    assert_eq!(flag::IS_COPIED, sys::DLPACK_FLAG_BITMASK_IS_COPIED);
    assert_eq!(flag::SUBBYTE_TYPE_PADDED, sys::DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
}

/// Counts calls of a structure's own deleter, which still runs.
struct Counted {
    context: *mut std::ffi::c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    calls: AtomicU32,
}

impl Counted {
    /// # Safety
    /// A live structure, which goes before the value.
    unsafe fn new(m: *mut DLManagedTensorVersioned) -> Box<Counted> {
        // SAFETY: as the caller says.
        let m = unsafe { &mut *m };
        let c = Box::new(Counted { context: m.manager_ctx, deleter: m.deleter, calls: AtomicU32::new(0) });
        m.manager_ctx = (&raw const *c).cast_mut().cast();
        m.deleter = Some(counted);
        c
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

unsafe extern "C" fn counted(m: *mut DLManagedTensorVersioned) {
    // SAFETY: a structure that `Counted` changed.
    unsafe {
        let c = (*m).manager_ctx.cast::<Counted>();
        (*c).calls.fetch_add(1, Ordering::SeqCst);
        (*m).manager_ctx = (*c).context;
        if let Some(delete) = (*c).deleter {
            delete(m);
        }
    }
}

#[test]
fn ours_is_read_and_written_by_theirs() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let x = session.from_slice(&[2, 3], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap().freeze();
    let turned = x.as_strided(&[3, 2], Some(&[1, 3]), 0).unwrap().to_read_only();
    for (t, shape, strides) in [(&x, [2, 3], [3, 1]), (&turned, [3, 2], [1, 3])] {
        let m = t.to_dlpack(ExportOptions::default()).unwrap().into_raw();
        // SAFETY: a fresh export, given away; the layouts are equal.
        let (count, mut theirs) = unsafe { (Counted::new(m), DLPackTensor::from_ptr(m.cast())) };
        assert_eq!((theirs.shape(), theirs.strides(), theirs.n_dims()), (&shape[..], Some(&strides[..]), 2));
        assert_eq!(theirs.device().device_type, sys::DLDeviceType::kDLCPU);
        assert_eq!(theirs.dtype().code, sys::DLDataTypeCode::kDLFloat);
        assert_eq!((theirs.is_read_only(), theirs.byte_offset()), (t.is_read_only(), 0));
        assert_eq!(theirs.data_ptr::<f32>().unwrap().cast(), t.as_ptr().unwrap());
        if !theirs.is_read_only() {
            // SAFETY: six elements that nothing else looks at.
            unsafe { *theirs.data_ptr_mut::<f32>().unwrap().add(1) = 7.5 };
        }
        drop(theirs);
        assert_eq!(count.calls(), 1);
    }
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 7.5, 2.0, 3.0, 4.0, 5.0]);
    // The export alone keeps the memory.
    let line = session.from_slice(&[2], &[8i64, 9]).unwrap().freeze();
    // SAFETY: a fresh export, given away.
    let theirs = unsafe { DLPackTensor::from_ptr(line.to_dlpack(ExportOptions::default()).unwrap().into_raw().cast()) };
    drop((x, turned, line));
    assert_eq!(Vec::<i64>::try_from(theirs).unwrap(), [8, 9]);
    drop(session);
    broker.nothing_is_held();
}

#[test]
fn theirs_is_taken() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let theirs = DLPackTensor::try_from(vec![1.5f64, 2.5, 3.5]).unwrap();
    let m: NonNull<sys::DLManagedTensorVersioned> = theirs.into_raw();
    let m = m.as_ptr().cast::<DLManagedTensorVersioned>();
    // SAFETY: given away; the layouts are equal.
    let (count, t) = unsafe { (Counted::new(m), session.from_dlpack(Managed::from_raw(m).unwrap()).unwrap()) };
    assert_eq!(count.calls(), 1);
    assert_eq!((t.shape(), t.to_vec::<f64>().unwrap()), (&[3][..], vec![1.5, 2.5, 3.5]));
    // And back again, as a reference.
    // SAFETY: a fresh export, given away twice over.
    let t2 = unsafe {
        let theirs = DLPackTensor::from_ptr(t.to_dlpack(ExportOptions::default()).unwrap().into_raw().cast());
        session
            .from_dlpack(Managed::<DLManagedTensorVersioned>::from_raw(theirs.into_raw().as_ptr().cast()).unwrap())
            .unwrap()
    };
    assert_eq!(t2.as_ptr().unwrap(), t.as_ptr().unwrap());
    drop((t, t2, session));
    broker.nothing_is_held();
}

#[test]
fn a_tensor_that_nobody_else_has_goes_over_without_unsafe() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let mut x = session.alloc::<f32>(&[2, 2]).unwrap();
    x.fill(1.5);
    let theirs = DLPackTensor::try_from(x).unwrap();
    assert_eq!((theirs.shape(), theirs.is_read_only()), (&[2, 2][..], false));
    let back = session.from_dlpk(theirs).unwrap();
    assert_eq!(back.to_vec::<f32>().unwrap(), [1.5; 4]);
    drop(back);
    // What dlpk would read as Rust's bool may be any byte.
    let bytes = session.allocation(&[4]).raw(baton::DType::BOOL).unwrap();
    assert_eq!(DLPackTensor::try_from(bytes).unwrap_err().code(), baton::Code::InvalidArgument);
    drop(session);
    broker.nothing_is_held();
}
