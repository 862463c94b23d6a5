//! DLPack: layouts against the vectors, imports of what other libraries make, the exchange table.

mod kit;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use baton::dlpack::*;
use baton::{Code, DType, Session};
use serde_json::Value;

fn vectors(name: &str) -> Value {
    let path = format!("{}/../dlpack/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(&path).expect(&path)).expect(&path)
}

fn number(v: &Value) -> i64 {
    v.as_i64().or_else(|| v.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{v} is no number"))
}

#[test]
fn structures_lie_as_the_vectors_say() {
    let listed = vectors("layout.json");
    let listed = listed["structs"].as_object().unwrap();
    let mut seen = 0;
    macro_rules! lies {
        ($($t:ident { $($f:ident),* })*) => { $({
            let s = &listed[stringify!($t)];
            assert_eq!((size_of::<$t>() as i64, align_of::<$t>() as i64), (number(&s["size"]), number(&s["align"])));
            let fields: &[(&str, usize)] = &[$((stringify!($f), offset_of!($t, $f)),)*];
            assert_eq!(fields.len(), s["fields"].as_object().unwrap().len(), stringify!($t));
            for (name, at) in fields {
                assert_eq!(*at as i64, number(&s["fields"][name]["offset"]), "{} of {}", name, stringify!($t));
            }
            seen += 1;
        })* };
    }
    lies! {
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
    assert_eq!(seen, listed.len());
}

#[test]
fn constants_are_those_of_the_vectors() {
    let v = vectors("layout.json");
    assert_eq!(
        (number(&v["version"]["major"]), number(&v["version"]["minor"])),
        (VERSION.major.into(), VERSION.minor.into())
    );
    let all = |group: &str, ours: &[(&str, i64)]| {
        let theirs: Vec<_> = v[group].as_object().unwrap().iter().map(|(k, v)| (k.as_str(), number(v))).collect();
        let mut ours = ours.to_vec();
        ours.sort();
        assert_eq!(theirs, ours);
    };
    use device::*;
    all(
        "flags",
        &[
            ("DLPACK_FLAG_BITMASK_READ_ONLY", flag::READ_ONLY as i64),
            ("DLPACK_FLAG_BITMASK_IS_COPIED", flag::IS_COPIED as i64),
            ("DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED", flag::SUBBYTE_TYPE_PADDED as i64),
        ],
    );
    let devices = [
        ("kDLCPU", CPU),
        ("kDLCUDA", CUDA),
        ("kDLCUDAHost", CUDA_HOST),
        ("kDLOpenCL", OPENCL),
        ("kDLVulkan", VULKAN),
        ("kDLMetal", METAL),
        ("kDLVPI", VPI),
        ("kDLROCM", ROCM),
        ("kDLROCMHost", ROCM_HOST),
        ("kDLExtDev", EXT_DEV),
        ("kDLCUDAManaged", CUDA_MANAGED),
        ("kDLOneAPI", ONE_API),
        ("kDLWebGPU", WEB_GPU),
        ("kDLHexagon", HEXAGON),
        ("kDLMAIA", MAIA),
        ("kDLTrn", TRN),
    ];
    all("device_types", &devices.map(|(n, d)| (n, d.into())));
    let codes = [
        ("kDLInt", code::INT),
        ("kDLUInt", code::UINT),
        ("kDLFloat", code::FLOAT),
        ("kDLOpaqueHandle", code::OPAQUE_HANDLE),
        ("kDLBfloat", code::BFLOAT),
        ("kDLComplex", code::COMPLEX),
        ("kDLBool", code::BOOL),
        ("kDLFloat8_e3m4", code::FLOAT8_E3M4),
        ("kDLFloat8_e4m3", code::FLOAT8_E4M3),
        ("kDLFloat8_e4m3b11fnuz", code::FLOAT8_E4M3B11FNUZ),
        ("kDLFloat8_e4m3fn", code::FLOAT8_E4M3FN),
        ("kDLFloat8_e4m3fnuz", code::FLOAT8_E4M3FNUZ),
        ("kDLFloat8_e5m2", code::FLOAT8_E5M2),
        ("kDLFloat8_e5m2fnuz", code::FLOAT8_E5M2FNUZ),
        ("kDLFloat8_e8m0fnu", code::FLOAT8_E8M0FNU),
        ("kDLFloat6_e2m3fn", code::FLOAT6_E2M3FN),
        ("kDLFloat6_e3m2fn", code::FLOAT6_E3M2FN),
        ("kDLFloat4_e2m1fn", code::FLOAT4_E2M1FN),
    ];
    all("type_codes", &codes.map(|(n, c)| (n, c.into())));
    for (name, d) in v["dtypes"].as_object().unwrap() {
        let ours = DType { code: number(&d["code"]) as u8, bits: number(&d["bits"]) as u8, lanes: 1 };
        assert_eq!((DType::parse(name).unwrap(), ours.to_string()), (ours, name.clone()));
    }
}

#[test]
fn sizes_are_those_of_the_vectors() {
    let v = vectors("sizes.json");
    for case in v["cases"].as_array().unwrap().iter().filter(|c| c["strides"].is_null()) {
        let shape: Vec<i64> = case["shape"].as_array().unwrap().iter().map(number).collect();
        let bytes = DType::parse(case["dtype"].as_str().unwrap()).and_then(|d| d.num_bytes(&shape));
        match case["bytes"].as_str() {
            Some(n) => assert_eq!(bytes.unwrap().to_string(), n, "{case}"),
            None => assert!(bytes.is_err(), "{case}"),
        }
    }
}

/// A tensor of another library: its memory, and how often its deleter was called.
struct Foreign {
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    data: Vec<u64>, // of words, so that it is aligned for all
    dtype: DType,
    deleted: AtomicU32,
}

impl Foreign {
    fn new(dtype: DType, shape: &[i64], bytes: &[u8]) -> Box<Foreign> {
        let mut data = vec![0u64; bytes.len().div_ceil(8)];
        // SAFETY: the words have room for the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.as_mut_ptr().cast(), bytes.len()) };
        Box::new(Foreign { shape: shape.to_vec(), strides: None, data, dtype, deleted: AtomicU32::new(0) })
    }

    fn strided(mut self: Box<Self>, strides: &[i64]) -> Box<Foreign> {
        self.strides = Some(strides.to_vec());
        self
    }

    fn view(&self) -> DLTensor {
        DLTensor {
            data: self.data.as_ptr().cast_mut().cast(),
            device: DLDevice { device_type: CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_ptr().cast_mut(),
            strides: self.strides.as_ref().map_or(std::ptr::null_mut(), |s| s.as_ptr().cast_mut()),
            byte_offset: 0,
        }
    }

    fn context(&self) -> *mut c_void {
        (&raw const self.deleted).cast_mut().cast()
    }

    fn managed(&self) -> DLManagedTensorVersioned {
        DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx: self.context(),
            deleter: Some(count),
            flags: 0,
            dl_tensor: self.view(),
        }
    }

    fn deleted(&self) -> u32 {
        self.deleted.load(Ordering::SeqCst)
    }

    /// Imports it, and sees to it that it was deleted once.
    fn import(
        &self,
        session: &Session,
        change: impl FnOnce(&mut DLManagedTensorVersioned),
    ) -> baton::Result<baton::Tensor> {
        let before = self.deleted();
        let mut m = self.managed();
        change(&mut m);
        // SAFETY: a live structure; what the tests change must not be trusted anyway.
        let t = session.from_dlpack(unsafe { Managed::from_raw(&raw mut m) }.unwrap());
        assert_eq!(self.deleted(), before + 1, "deleted once");
        t
    }
}

unsafe extern "C" fn count(m: *mut DLManagedTensorVersioned) {
    // SAFETY: the context of a Foreign.
    unsafe { (*(*m).manager_ctx.cast::<AtomicU32>()).fetch_add(1, Ordering::SeqCst) };
}

unsafe extern "C" fn count_legacy(m: *mut DLManagedTensor) {
    // SAFETY: the context of a Foreign.
    unsafe { (*(*m).manager_ctx.cast::<AtomicU32>()).fetch_add(1, Ordering::SeqCst) };
}

fn bytes_of(t: &baton::Tensor) -> Vec<u8> {
    // SAFETY: nothing writes it.
    unsafe { std::slice::from_raw_parts(t.as_ptr().unwrap(), t.num_bytes() as usize) }.to_vec()
}

/// An idle owner keeps what has no holder until it looks.
fn nothing_is_held(broker: &kit::Broker, owner: &Session) {
    kit::until("nothing is held", || {
        owner.collect();
        broker.listed("storages").is_empty()
    });
}

#[test]
fn every_type_is_taken_from_another_library() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    for name in vectors("layout.json")["dtypes"].as_object().unwrap().keys() {
        for text in [name.clone(), format!("{name}x2")] {
            let dtype = DType::parse(&text).unwrap();
            let n = dtype.num_bytes(&[3, 5]).unwrap();
            let bytes: Vec<u8> = (0..n).map(|i| i as u8).collect();
            let foreign = Foreign::new(dtype, &[3, 5], &bytes);
            let t = foreign.import(&session, |_| {}).unwrap();
            assert_eq!((t.dtype(), t.shape(), t.is_read_only()), (dtype, &[3, 5][..], false), "{text}");
            assert_eq!(bytes_of(&t), bytes, "{text}");
        }
    }
    nothing_is_held(&broker, &session);
}

#[test]
fn layouts_are_followed() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let numbers = [0u8, 1, 2, 3, 4, 5];
    let turned = Foreign::new(DType::UINT8, &[3, 2], &numbers).strided(&[1, 3]);
    let kept = turned.import(&session, |_| {}).unwrap();
    assert_eq!((bytes_of(&kept), kept.strides()), (numbers.to_vec(), Some(&[1, 3][..])));
    assert_eq!(kept.to_vec::<u8>().unwrap(), [0, 3, 1, 4, 2, 5]);
    let gaps = Foreign::new(DType::UINT8, &[2, 2], &numbers).strided(&[1, 3]);
    assert_eq!(bytes_of(&gaps.import(&session, |_| {}).unwrap()), [0, 3, 1, 4]);
    let back = Foreign::new(DType::UINT8, &[6], &numbers).strided(&[-1]);
    assert_eq!(bytes_of(&back.import(&session, |m| m.dl_tensor.byte_offset = 5).unwrap()), [5, 4, 3, 2, 1, 0]);
    let repeated = Foreign::new(DType::UINT8, &[2, 3], &numbers).strided(&[0, 2]);
    assert_eq!(bytes_of(&repeated.import(&session, |_| {}).unwrap()), [0, 2, 4, 0, 2, 4]);
    let padded = Foreign::new(DType::UINT4, &[6], &numbers);
    let packed = padded.import(&session, |m| m.flags = flag::SUBBYTE_TYPE_PADDED).unwrap();
    assert_eq!(bytes_of(&packed), [0x10, 0x32, 0x54]);
    let one = Foreign::new(DType::FLOAT64, &[], &1.5f64.to_le_bytes());
    let scalar = one.import(&session, |m| m.dl_tensor.shape = std::ptr::null_mut()).unwrap();
    assert_eq!(scalar.to_vec::<f64>().unwrap(), [1.5]);
    let none = Foreign::new(DType::FLOAT32, &[4, 0], &[]);
    let empty = none.import(&session, |m| m.dl_tensor.data = std::ptr::null_mut()).unwrap();
    assert_eq!((empty.shape(), empty.is_empty()), (&[4, 0][..], true));
    drop((kept, packed, scalar, empty));
    nothing_is_held(&broker, &session);
}

#[test]
fn refused_tensors_are_deleted_once() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let f = Foreign::new(DType::FLOAT32, &[2], &[0; 8]);
    let refused =
        |change: &dyn Fn(&mut DLManagedTensorVersioned)| f.import(&session, |m| change(m)).expect_err("refused").code();
    assert_eq!(refused(&|m| m.dl_tensor.data = std::ptr::null_mut()), Code::InvalidArgument);
    assert_eq!(refused(&|m| m.dl_tensor.ndim = -1), Code::InvalidArgument);
    assert_eq!(refused(&|m| m.dl_tensor.shape = std::ptr::null_mut()), Code::InvalidArgument);
    assert_eq!(refused(&|m| m.dl_tensor.dtype.code = 200), Code::InvalidArgument);
    assert_eq!(refused(&|m| m.dl_tensor.dtype.lanes = 0), Code::InvalidArgument);
    assert_eq!(refused(&|m| m.dl_tensor.device.device_type = device::CUDA), Code::Unsupported);
    assert_eq!(refused(&|m| m.version.major = 2), Code::Unsupported);
    // SAFETY: null is refused.
    let null = unsafe { Managed::<DLManagedTensor>::from_raw(std::ptr::null_mut()) };
    assert_eq!(null.unwrap_err().code(), Code::InvalidArgument);
    // Unknown minor versions and flags are accepted; a deleter may be missing.
    f.import(&session, |m| (m.version.minor, m.flags) = (99, 1 << 60)).unwrap();
    let mut m = f.managed();
    m.deleter = None;
    // SAFETY: a live structure.
    session.from_dlpack(unsafe { Managed::from_raw(&raw mut m) }.unwrap()).unwrap();
    // The session is gone before the elements could be copied.
    session.end();
    assert_eq!(f.import(&session, |_| {}).unwrap_err().code(), Code::Closed);
}

#[test]
fn of_another_major_version_the_deleter_alone_is_touched() {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let page = rustix::param::page_size();
    let f = Foreign::new(DType::FLOAT32, &[2], &[0; 8]);
    let m = DLManagedTensorVersioned { version: DLPackVersion { major: 2, minor: 0 }, ..f.managed() };
    // SAFETY: the structure's first 24 bytes lie before a page that must not be touched.
    unsafe {
        let map = mmap_anonymous(std::ptr::null_mut(), 2 * page, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let map = map.unwrap().cast::<u8>();
        let at = map.add(page - offset_of!(DLManagedTensorVersioned, flags)).cast::<DLManagedTensorVersioned>();
        at.write(m);
        mprotect(map.add(page).cast(), page, MprotectFlags::empty()).unwrap();
        assert_eq!(session.from_dlpack(Managed::from_raw(at).unwrap()).unwrap_err().code(), Code::Unsupported);
        munmap(map.cast(), 2 * page).unwrap();
    }
    assert_eq!(f.deleted(), 1);
}

#[test]
fn legacy_tensors_are_taken() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let f = Foreign::new(DType::INT16, &[2], &[1, 0, 2, 0]);
    let mut m = DLManagedTensor { dl_tensor: f.view(), manager_ctx: f.context(), deleter: Some(count_legacy) };
    // SAFETY: a live structure.
    let t = session.from_dlpack(unsafe { Managed::from_raw(&raw mut m) }.unwrap()).unwrap();
    assert_eq!((t.to_vec::<i16>().unwrap(), f.deleted()), (vec![1, 2], 1));
    m.dl_tensor.ndim = 1 << 20;
    // SAFETY: a live structure with a lie.
    let e = session.from_dlpack(unsafe { Managed::from_raw(&raw mut m) }.unwrap()).unwrap_err();
    assert_eq!((e.code(), f.deleted()), (Code::InvalidArgument, 2));
}

#[test]
fn what_lies_in_shared_memory_is_referenced() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let (x, _other) =
        (session.from_slice(&[2, 3], &[0i32, 1, 2, 3, 4, 5]).unwrap().freeze(), session.zeros::<u8>(&[9]));
    let y = session.from_dlpack(x.to_dlpack(ExportOptions::default()).unwrap()).unwrap();
    assert_eq!((y.as_ptr().unwrap(), y.shape()), (x.as_ptr().unwrap(), &[2, 3][..]));
    // A view that another library made of it.
    let (column, mut shape, mut strides) = (x.as_strided(&[2], Some(&[3]), 1).unwrap(), [2], [3]);
    let view = DLTensor {
        data: x.as_mut_ptr().unwrap().cast(),
        device: DLDevice { device_type: CPU, device_id: 0 },
        ndim: 1,
        dtype: DType::INT32,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 4,
    };
    // SAFETY: it lies in x.
    let z = unsafe { session.share(&view, flag::READ_ONLY) }.unwrap();
    assert_eq!((z.as_ptr().unwrap(), z.strides()), (column.as_ptr().unwrap(), Some(&[3][..])));
    assert!(z.is_read_only() && !y.is_read_only());
    // The references are of their own.
    let at = x.as_ptr().unwrap();
    drop((x, y, column));
    let again = session.from_slice(&[2, 3], &[9i32; 6]).unwrap();
    assert_ne!(again.as_ptr(), at.cast(), "still held by z");
    // SAFETY: nothing writes it.
    assert_eq!(unsafe { std::slice::from_raw_parts(at.cast::<i32>(), 6) }, [0, 1, 2, 3, 4, 5]);
    // What is copy-on-write for one consumer is not the shared memory.
    let private = z.as_strided(&[1], None, 0).unwrap();
    let copy = session.from_dlpack(private.to_dlpack(ExportOptions::default().private(true)).unwrap()).unwrap();
    assert_ne!(copy.as_ptr().unwrap(), private.as_ptr().unwrap());
    assert_eq!(copy.to_vec::<i32>().unwrap(), [1]);
    // Another session's memory is copied.
    let other = broker.session();
    let theirs = other.from_dlpack(z.to_dlpack(ExportOptions::default()).unwrap()).unwrap();
    assert_ne!(theirs.as_ptr().unwrap(), z.as_ptr().unwrap());
    assert_eq!(theirs.to_vec::<i32>().unwrap(), [1, 4]);
    drop((z, again, private, copy, theirs, other, _other));
    nothing_is_held(&broker, &session);
}

#[test]
fn received_memory_is_referenced_and_passed_on() {
    let Some(broker) = kit::Broker::start() else { return };
    let (a, b) = (broker.session(), broker.session());
    let o = baton::TopicOptions::default().linger(std::time::Duration::ZERO);
    let mut r = b.topic_with("t", &o).unwrap().reader(baton::Start::New).unwrap();
    a.topic("t").unwrap().send(a.from_slice(&[3], &[7i64, 8, 9]).unwrap().freeze()).unwrap();
    let m = r.recv(None).unwrap();
    let t = b.from_dlpack(m.tensor().unwrap().to_dlpack(ExportOptions::default()).unwrap()).unwrap();
    assert_eq!((t.as_ptr().unwrap(), t.is_read_only()), (m.tensor().unwrap().as_ptr().unwrap(), true));
    drop((m, r, a));
    assert_eq!(t.to_vec::<i64>().unwrap(), [7, 8, 9]);
    drop(t);
    nothing_is_held(&broker, &b);
}

#[test]
fn elements_are_copied_to_where_they_belong() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    let x = session.zeros::<u8>(&[2, 3]).unwrap().freeze();
    let f = Foreign::new(DType::UINT8, &[3, 2], &[0, 1, 2, 3, 4, 5]);
    let turned = x.as_strided(&[3, 2], Some(&[1, 3]), 0).unwrap();
    // SAFETY: the memory has no other owner.
    unsafe { turned.copy_from(&f.view(), 0) }.unwrap();
    assert_eq!(x.to_vec::<u8>().unwrap(), [0, 2, 4, 1, 3, 5]);
    // SAFETY: refused.
    let refused = |t: &baton::Tensor, f: &Foreign| unsafe { t.copy_from(&f.view(), 0) }.unwrap_err().code();
    assert_eq!(refused(&x, &f), Code::InvalidArgument);
    assert_eq!(refused(&turned.to_read_only(), &f), Code::ReadOnly);
    assert_eq!(refused(&turned, &Foreign::new(DType::INT8, &[3, 2], &[0; 6])), Code::InvalidArgument);
}

unsafe extern "C" fn unused(_: *mut c_void, _: *mut *mut DLManagedTensorVersioned) -> c_int {
    -1
}

unsafe extern "C" fn unused_too(_: *mut DLManagedTensorVersioned, _: *mut *mut c_void) -> c_int {
    -1
}

unsafe extern "C" fn note(context: *mut c_void, kind: *const c_char, message: *const c_char) {
    // SAFETY: the context of the test, and two strings.
    unsafe {
        let text = |p| CStr::from_ptr(p).to_str().unwrap().to_owned();
        (*context.cast::<Vec<(String, String)>>()).push((text(kind), text(message)));
    }
}

static TABLE: DLPackExchangeAPI = exchange_api(unused, unused_too, None);

#[test]
fn the_exchange_table_allocates_in_shared_memory() {
    let Some(broker) = kit::Broker::start() else { return };
    let session = broker.session();
    allocate_in(&session);
    let f = Foreign::new(DType::BFLOAT16, &[4, 5], &[]);
    let allocate = TABLE.managed_tensor_allocator.unwrap();
    let mut errors: Vec<(String, String)> = Vec::new();
    let mut call = |prototype: &mut DLTensor| {
        let mut out = std::ptr::null_mut();
        // SAFETY: a live prototype, and a context of the function.
        let rc = unsafe { allocate(prototype, &mut out, (&raw mut errors).cast(), Some(note)) };
        (rc, out, std::mem::take(&mut errors))
    };
    // Only type, shape and device of the prototype are looked at.
    let odd = |v: DLTensor| DLTensor {
        data: std::ptr::null_mut(),
        byte_offset: u64::MAX,
        strides: std::ptr::dangling_mut(),
        ..v
    };
    let (rc, m, errors) = call(&mut odd(f.view()));
    assert_eq!((rc, errors), (0, Vec::new()));
    // SAFETY: just made.
    let t = unsafe { &(*m).dl_tensor };
    assert_eq!((t.dtype, t.ndim, t.byte_offset), (DType::BFLOAT16, 2, 0));
    // SAFETY: writable memory of 40 bytes, given back as shared memory.
    let t = unsafe {
        t.data.cast::<u8>().write_bytes(1, 40);
        session.from_dlpack(Managed::from_raw(m).unwrap())
    };
    let t = t.unwrap();
    assert_eq!((t.shape(), bytes_of(&t), t.is_read_only()), (&[4, 5][..], vec![1; 40], false));
    let mut huge = [1i64 << 50];
    let gpu = DLDevice { device_type: device::CUDA, device_id: 0 };
    for (mut bad, kind) in [
        (DLTensor { ndim: -1, ..f.view() }, "ValueError"),
        (DLTensor { device: gpu, ..f.view() }, "BufferError"),
        (DLTensor { ndim: 1, shape: huge.as_mut_ptr(), ..f.view() }, "MemoryError"),
    ] {
        let (rc, m, errors) = call(&mut bad);
        assert_eq!((rc, m.is_null(), errors.len()), (-1, true, 1));
        assert_eq!(errors[0].0, kind, "{}", errors[0].1);
    }
    // SAFETY: a place for the stream.
    unsafe {
        let mut stream = 8 as *mut c_void;
        assert_eq!(TABLE.current_work_stream.unwrap()(CPU, 0, &mut stream), 0);
        assert!(stream.is_null());
    }
    assert_eq!((TABLE.header.version, TABLE.header.prev_api.is_null()), (VERSION, true));
    drop(t);
    nothing_is_held(&broker, &session);
    session.close();
    let (rc, m, errors) = call(&mut f.view());
    assert_eq!((rc, m.is_null()), (-1, true));
    assert!(errors[0].1.contains("name another session"), "{}", errors[0].1);
    allocate_in(&broker.session());
    let (rc, m, _) = call(&mut f.view());
    assert_eq!(rc, 0);
    // SAFETY: just made.
    drop(unsafe { Managed::from_raw(m) });
}

#[test]
fn a_view_is_found_beside_a_storage_that_has_all_its_references() {
    let Some(b) = kit::Broker::start() else { return };
    let s = b.session();
    let made = |x: u64| s.from_slice(&[2], &[x, x]).unwrap().freeze();
    let three = [made(1), made(2), made(3)];
    let _all = kit::all_references(&s, &three[1]);
    for t in [&three[0], &three[2]] {
        let mut shape = [2];
        let view = DLTensor {
            data: t.as_ptr().unwrap().cast_mut().cast(),
            device: DLDevice { device_type: device::CPU, device_id: 0 },
            ndim: 1,
            dtype: DType::UINT64,
            shape: shape.as_mut_ptr(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        // SAFETY: the view's memory and shape stay.
        let found = unsafe { s.share_in_place(&view, 0) }.unwrap();
        assert!(found.is_some_and(|f| f.as_ptr().unwrap() == t.as_ptr().unwrap()));
    }
}

#[test]
fn views_that_share_memory_do_so_when_they_are_gathered() {
    let Some(broker) = kit::Broker::start() else { return };
    let owner = broker.session();
    let values: Vec<u8> = (0..12u8).flat_map(|v| f32::from(v).to_le_bytes()).collect();
    let whole = Foreign::new(DType::FLOAT32, &[3, 4], &values);
    let part = |shape: &'static [i64], strides: &'static [i64], first: u64| DLTensor {
        ndim: shape.len() as i32,
        shape: shape.as_ptr().cast_mut(),
        strides: strides.as_ptr().cast_mut(),
        byte_offset: 4 * first,
        ..whole.view()
    };
    let (row, column, square) = (part(&[4], &[1], 8), part(&[3], &[4], 1), part(&[4, 3], &[1, 4], 0));
    let gather = |all: &[DLTensor]| {
        // SAFETY: the views are of memory that the test has.
        unsafe { owner.gather(all.iter().map(|v| (v, 0)), Gather::Copy) }.unwrap()
    };
    let at = |t: &baton::Tensor| t.as_ptr().unwrap().addr();
    let made = gather(&[whole.view(), row, column]);
    assert_eq!([at(&made[1]) - at(&made[0]), at(&made[2]) - at(&made[0])], [32, 4]);
    assert_eq!(made[0].to_vec::<f32>().unwrap(), (0..12u8).map(f32::from).collect::<Vec<_>>());
    assert_eq!(made[1].to_vec::<f32>().unwrap(), [8.0, 9.0, 10.0, 11.0]);
    assert_eq!(made[2].to_vec::<f32>().unwrap(), [1.0, 5.0, 9.0]);
    // One alone keeps the order of its dimensions if it has no gaps, and else becomes compact.
    let alone = gather(&[square]);
    assert_eq!((alone[0].shape(), alone[0].strides()), (&[4, 3][..], Some(&[1, 4][..])));
    assert_eq!(alone[0].to_vec::<f32>().unwrap()[..4], [0.0, 4.0, 8.0, 1.0]);
    let apart = gather(&[column]);
    assert_eq!((apart[0].strides(), apart[0].to_vec::<f32>().unwrap()), (None, vec![1.0, 5.0, 9.0]));
    drop((made, alone, apart));
    nothing_is_held(&broker, &owner);
}
