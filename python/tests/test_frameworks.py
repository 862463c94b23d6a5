"""Tensors in torch, JAX, tvm-ffi and ml_dtypes: the same memory, checked by address."""

import ctypes
import gc
import threading

import baton
import numpy as np
import pytest
from conftest import need

NUMBERS = "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
TORCH = [*NUMBERS, "uint16", "uint32", "uint64", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]  # fmt: skip
JAX = "bool uint8 int8 int16 int32 uint16 uint32 float16 float32 complex64 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz float8_e3m4 float8_e4m3 float8_e8m0fnu".split()  # fmt: skip
TENSORFLOW = [d for d in NUMBERS if d != "bool"] + ["uint16", "uint32", "uint64", "bfloat16"]
ML_DTYPES = "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu complex32".split()  # fmt: skip
NARROW = "int2 int4 uint2 uint4 float4_e2m1fn float6_e2m3fn float6_e3m2fn".split()


def address(x: baton.Tensor) -> int:
    return np.asarray(x.view("uint8")).__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", TORCH)
def test_torch_sees_the_memory(dtype):
    torch = need("torch")
    x = baton.zeros((4, 6), dtype)
    for t in (x.torch(), torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(x.__dlpack__())):
        assert t.data_ptr() == address(x) and str(t.dtype) == f"torch.{dtype}" and tuple(t.shape) == (4, 6)
    assert x[1:3, ::2].torch().stride() == (6, 2)
    back = baton.share(x.torch())
    assert back.dtype == dtype and address(back) == address(x)


@pytest.mark.parametrize("dtype", TORCH)
def test_torch_tensors_are_shared(dtype):
    torch = need("torch")
    t = torch.arange(24).reshape(4, 6).to(getattr(torch, dtype))
    for u in (t, t.T, t[1:3, ::2]):
        x = baton.share(u)
        assert x.dtype == dtype and x.shape == tuple(u.shape)
        assert torch.equal(x.torch().contiguous().view(torch.uint8), u.contiguous().view(torch.uint8))


def test_torch_parameters_are_shared():
    torch = need("torch")
    p = torch.nn.Parameter(torch.ones(3))
    assert baton.share(p).numpy().tolist() == [1, 1, 1]


def test_torch_writes_to_a_read_only_tensor_stay_with_torch():
    need("torch")
    x = baton.zeros(5000)
    t = x.as_readonly().torch()
    t += 1
    assert float(t.sum()) == 5000 and x.numpy().sum() == 0


def test_torch_keeps_the_memory_and_lets_go_on_any_thread():
    torch = need("torch")
    s = baton.connect()
    views = [s.full((100,), 3).torch(), torch.from_dlpack(s.full((100,), 3))]
    for _ in range(20):
        s.zeros(100, "int64")
    assert all((v == 3).all() for v in views)
    t = threading.Thread(target=views.clear)
    t.start()
    t.join()
    gc.collect()
    s.collect()
    assert s.stats()["live"] == 0
    s.close()


@pytest.mark.parametrize("dtype", JAX)
def test_jax_sees_the_memory(dtype):
    jax = need("jax")
    x = baton.zeros((64, 64), dtype)
    a = x.jax()
    assert a.unsafe_buffer_pointer() == address(x) and str(a.dtype) == dtype and a.shape == (64, 64)
    y = baton.share(jax.numpy.ones((3, 5), dtype))
    assert y.dtype == dtype and y.shape == (3, 5)
    assert x.as_readonly().jax().shape == (64, 64)


def test_tvm_ffi_takes_the_table():
    tvm_ffi = need("tvm_ffi")
    x = baton.full((4, 6), 7, "int32")
    t = tvm_ffi.from_dlpack(x)
    assert np.from_dlpack(t).__array_interface__["data"][0] == address(x)
    # A function's arguments go through the table's from_py, results come back through its to_py.
    echo = tvm_ffi.convert(lambda a: a)
    got = echo(x)
    assert isinstance(got, (baton.Tensor, tvm_ffi.Tensor))
    assert np.from_dlpack(got).__array_interface__["data"][0] == address(x)


@pytest.mark.parametrize("dtype", TENSORFLOW)
def test_tensorflow_takes_the_legacy_capsule(dtype):
    tf = need("tensorflow")
    x = baton.zeros((4, 6), dtype)
    t = tf.experimental.dlpack.from_dlpack(x.__dlpack__())
    assert t.dtype.name == dtype and t.shape == (4, 6)
    back = baton.share(t)
    assert back.dtype == dtype and address(back) == address(x)
    x.view("uint8").numpy()[:] = 1
    assert np.asarray(t).all()


@pytest.mark.parametrize("make", ["tf.constant(['a'])", "tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[1])"])
def test_tensors_of_tensorflow_without_numbers_end_no_process(make):
    tf = need("tensorflow")
    for take in (baton.share, lambda t: baton.queue().put({"t": t})):
        with pytest.raises(TypeError, match="nothing that other libraries know"):
            take(eval(make, {"tf": tf}))


def test_mpi_sends_and_fills_tensors():
    comm = need("mpi4py.MPI").COMM_SELF
    x, y = baton.full((4, 6), 3, "float32"), baton.zeros((4, 6), "float32")
    comm.Sendrecv(x, 0, recvbuf=y, source=0)
    assert (y.numpy() == 3).all()
    with pytest.raises(BufferError):
        comm.Sendrecv(x, 0, recvbuf=y.as_readonly(), source=0)


@pytest.mark.parametrize("dtype", ML_DTYPES)
def test_ml_dtypes_go_there_and_back(dtype):
    ml_dtypes = need("ml_dtypes")
    a = np.arange(24).reshape(4, 6).astype(getattr(ml_dtypes, dtype))
    x = baton.share(a.T)
    assert x.dtype == dtype and x.numpy().dtype == a.dtype
    assert x.numpy().tobytes() == a.T.tobytes()
    assert np.asarray(x).dtype == a.dtype


@pytest.mark.parametrize("dtype", NARROW)
def test_types_narrower_than_a_byte_are_packed(dtype):
    ml_dtypes = need("ml_dtypes")
    a = np.array([0, 1, 1, 0, 1, 0, 0, 1]).astype(getattr(ml_dtypes, dtype))
    x = baton.share(a)
    bits = int("".join(c for c in dtype.split("_")[0] if c.isdigit()))
    assert x.dtype == dtype and x.nbytes == bits
    one = int(a.view("uint8")[1]) & ((1 << bits) - 1)
    packed = int.from_bytes(bytes(memoryview(x.view("uint8"))), "little")
    assert [packed >> (bits * i) & ((1 << bits) - 1) for i in range(8)] == [
        one * int(v) for v in [0, 1, 1, 0, 1, 0, 0, 1]
    ]
    for few in (1, 3, 8):  # in fewer bytes, or in as many as NumPy would take
        with pytest.raises(TypeError, match="view"):
            baton.share(a[:few]).numpy()


@pytest.mark.parametrize("dtype", "int2 int4 uint2 uint4 float4_e2m1fn".split())
@pytest.mark.parametrize("shape", [(5,), (4,), (2, 6), (3, 5)], ids=str)
def test_narrow_arrays_of_jax_keep_their_shape(dtype, shape):
    jax = need("jax")
    a = (jax.numpy.arange(np.prod(shape)) % 2).astype(dtype).reshape(shape)
    q = baton.queue()
    q.put({"a": a})
    for x in (baton.share(a), q.get()["a"]):
        assert (x.shape, x.dtype) == (shape, dtype)
        same = baton.share(np.asarray(a))  # NumPy has a byte for each element, which are packed
        assert (
            bytes(memoryview(x.reshape(-1).view("uint8"))) == bytes(memoryview(same.reshape(-1).view("uint8")))
            if (x.size * 2 % 8 == 0)
            else x.nbytes == same.nbytes
        )


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda torch: torch.eye(3).to_sparse(), "to_dense"),
        (lambda torch: torch.eye(3).to_mkldnn(), "to_dense"),
        (lambda torch: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "int_repr"),
        (lambda torch: torch.ones(3, device="meta"), "empty_like"),
    ],
    ids=["sparse", "mkldnn", "quantized", "meta"],
)
def test_tensors_of_torch_without_elements_in_memory_name_the_way_out(make, remedy):
    t = make(need("torch"))
    for take in (baton.share, lambda t: baton.queue().put({"t": t})):
        with pytest.raises(TypeError, match=remedy):
            take(t)


def test_tensors_that_torch_traces_name_the_way_out():
    torch = need("torch")

    def share(t):
        with pytest.raises(TypeError, match="outside"):
            baton.share(t)
        return t.sum()

    torch.func.grad(share)(torch.ones(3))
    torch.vmap(share)(torch.ones(2, 3))
    with pytest.raises(TypeError, match="torch.uint8"):
        baton.share(torch.zeros(4, dtype=torch.uint8).view(torch.bits8))


def test_arrays_that_jax_traces_name_the_way_out():
    jax = need("jax")
    q = baton.queue()

    def put(a):
        with pytest.raises(TypeError, match='"a" of the value.*outside of jit'):
            q.put({"a": a})
        return a.sum()

    for over in (jax.jit, jax.grad, jax.vmap):
        over(put)(jax.numpy.ones((2, 3)))


def test_what_torch_has_put_off_is_done_before_a_tensor_goes():
    torch = need("torch")
    c = torch.tensor([[1 + 2j, 3 - 4j]])
    shared = baton.share(c.numpy()).torch()
    q = baton.queue()
    dense = c.conj().imag.as_strided((3,), (1,))  # side by side, and negated all the same
    assert dense.is_contiguous()
    for t in (
        *(c.conj(), c.conj().T, c.conj().imag, c[0, 0].conj().imag, c.conj().imag.expand(3, 2), shared.conj()),
        *(dense, c.to(torch.complex128).conj().imag.as_strided((3,), (1,))),
    ):
        assert t.is_conj() or t.is_neg()
        q.put({"t": t})
        q.put([torch.ones(1), t])
        got = [baton.share(t), q.get()["t"], q.get()[1]]
        to = baton.empty(tuple(t.shape), str(t.dtype).removeprefix("torch."))
        to.copy_from(t)
        for x in (*got, to):
            assert torch.equal(x.torch(), t.resolve_conj().resolve_neg())


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("kind", ["int", "uint"])
def test_narrow_integers_of_torch_do_not_arrive_as_bytes(kind, bits):
    torch = need("torch")
    t = torch.arange(4, dtype=torch.uint8).view(getattr(torch, f"{kind}{bits}"))
    for take in (baton.share, lambda t: baton.queue().put({"t": t}), baton.zeros(4, f"{kind}8").copy_from):
        with pytest.raises(TypeError, match=rf"torch\.{kind}{bits} .*view\(torch.uint8\)"):
            take(t)
    x = baton.share(t.view(torch.uint8))  # the way out
    assert x.torch().view(t.dtype).dtype == t.dtype
    for plain in (torch.uint8, torch.int8):
        assert baton.share(torch.arange(4, dtype=plain)).tolist() == [0, 1, 2, 3]


def test_what_a_framework_has_not_names_the_way_out():
    need("torch")
    with pytest.raises(TypeError, match="view"):
        baton.zeros((4,), "float6_e2m3fn").torch()
    need("jax")
    with pytest.raises(TypeError, match="copy"):
        baton.zeros((4, 6))[::2, ::2].jax()


def test_bundles_in_frameworks():
    torch = need("torch")
    module = torch.nn.Linear(3, 2)
    b = baton.share(module.state_dict())
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(b.torch())
    assert torch.equal(other.weight, module.weight)
    need("jax")
    assert b.jax()["weight"].shape == (2, 3)


class Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("prev", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
        ("from_py", ctypes.c_void_p), ("to_py", ctypes.c_void_p), ("borrow", ctypes.c_void_p), ("stream", ctypes.c_void_p),
    ]  # fmt: skip


def table() -> Table:
    from test_dlpack import pointer

    at = pointer(baton.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    assert at == baton.Tensor.__c_dlpack_exchange_api__
    return Table.from_address(at)


def test_all_functions_of_the_table_work():
    from test_dlpack import Versioned

    t = table()
    assert (t.major, t.minor) == (1, 3) and all((t.allocate, t.from_py, t.to_py, t.borrow, t.stream))
    give = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))(t.from_py)
    take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))(t.to_py)
    x, m, ob = baton.full((2, 3), 5, "int16"), ctypes.c_void_p(), ctypes.c_void_p()
    assert give(x, m) == 0
    fields = Versioned.from_address(m.value)
    assert (fields.data, fields.flags, fields.shape[:2]) == (address(x), 0, [2, 3])
    assert take(m, ob) == 0
    back = ctypes.cast(ob, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(back))
    assert isinstance(back, baton.Tensor) and address(back) == address(x)
    with pytest.raises(TypeError):
        give(object(), m)

    class View(ctypes.Structure):
        _fields_ = Versioned._fields_[5:]

    borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(t.borrow)
    v = View()
    assert borrow(x, ctypes.addressof(v)) == 0 and (v.data, v.shape[:2], v.strides[:2]) == (address(x), [2, 3], [3, 1])
    r = x.as_readonly()
    assert borrow(r, ctypes.addressof(v)) == 0 and v.data != address(x)
    (ctypes.c_int16 * 6).from_address(v.data)[0] = 9
    assert x[0, 0].item() == 5
    stream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(t.stream)
    where = ctypes.c_void_p(1)
    assert stream(1, 0, where) == 0 and where.value is None
    allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p)(t.allocate)  # fmt: skip
    assert allocate(ctypes.addressof(v), m, None, None) == 0
    made = Versioned.from_address(m.value)
    assert (made.shape[:2], made.bits) == ([2, 3], 16) and made.data % 256 == 0
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(made.deleter)(m)


def test_the_table_gives_back_the_same_memory_of_whichever_session():
    t = table()
    give = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))(t.from_py)
    take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))(t.to_py)
    with baton.connect(namespace="table") as other:
        for session in (other, baton._default.session()):
            x, m, ob = session.zeros(5), ctypes.c_void_p(), ctypes.c_void_p()
            assert give(x, m) == 0 and take(m, ob) == 0
            back = ctypes.cast(ob, ctypes.py_object).value
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(back))
            assert address(back) == address(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.__dlpack__(),
        lambda x: x.__dlpack__(max_version=(1, 0)),
        lambda x: x.as_readonly().__dlpack__(max_version=(1, 0)),
        lambda x: np.from_dlpack(x),
        lambda x: memoryview(x),
        lambda x: need("torch").from_dlpack(x),
        lambda x: baton.share({"x": x}),
    ],
    ids=["tensor", "legacy capsule", "capsule", "capsule of a view", "NumPy", "memoryview", "torch", "bundle"],
)
def test_deleters_keep_an_exception_in_flight(make):
    s = baton.connect()
    with pytest.raises(ZeroDivisionError):
        # What was made lies on the interpreter's stack, it has no other owner, and it is dropped while the
        # exception is raised: a deleter that loses that makes a SystemError of it.
        [make(s.zeros(3)), 1 / 0]
    s.collect()
    assert s.stats()["live"] == 0
    s.close()


def test_deleters_run_in_a_forked_child_and_after_the_interpreter(child):
    need("torch")
    c = child(
        """
import os, torch
x = baton.zeros(1000)
kept = [x.torch(), np.from_dlpack(x), x.__dlpack__(), memoryview(x)]
pid = os.fork()
if pid == 0:
    kept.clear(); del x
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
torch.keep = kept  # dropped when the interpreter ends
say("ends")
"""
    )
    assert c.hear() == "ends"
    c.end()


def test_daemon_threads_at_exit_do_not_abort(child):
    c = child(
        """
import threading
x = baton.zeros(1000)
q = baton.queue()
def work():
    while True:
        np.from_dlpack(x); x.__dlpack__(); baton.zeros(10); q.put(x[:10]); q.get()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
def wait():
    baton.topic().reader().receive()
threading.Thread(target=wait, daemon=True).start()
for _ in range(200): baton.zeros(10)
say("ends")
"""
    )
    assert c.hear() == "ends"
    c.end()
