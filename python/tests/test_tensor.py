"""Tensors and their views: numbers, memory, errors."""

import array
import copy
import ctypes
import pickle

import baton
import numpy as np
import pytest


def address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


def test_array_and_tensor_have_one_memory():
    x = baton.zeros((4, 6), "float32")
    a = np.asarray(x)
    a[:] = np.arange(24).reshape(4, 6)
    assert address(x.numpy()) == address(a) == address(np.from_dlpack(x))
    assert address(a) % 256 == 0
    assert x[1, 2].item() == 8
    assert memoryview(x).tolist()[3] == [18, 19, 20, 21, 22, 23]


def test_attributes_are_those_of_the_array():
    x = baton.empty((2, 3), "int16")
    assert (x.shape, x.strides, x.dtype, x.device, x.nbytes, x.ndim, x.size) == (
        (2, 3),
        (3, 1),
        "int16",
        "cpu",
        12,
        2,
        6,
    )
    assert not x.readonly and len(x) == 2
    assert repr(x).startswith("baton.Tensor(int16, shape=(2, 3), device=cpu, ")


@pytest.mark.parametrize(
    "dtype",
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split(),
)
def test_every_numpy_dtype_goes_there_and_back(dtype):
    a = np.array([[0, 1, 2], [3, 4, 100]]).astype(dtype)
    x = baton.share(a)
    assert x.dtype == dtype
    b = np.asarray(x)
    assert b.dtype == a.dtype and (b == a).all()
    assert np.dtype(b.dtype).num == np.dtype(dtype).num
    assert baton.empty((1,), np.dtype(dtype)).dtype == dtype
    assert baton.empty((1,), getattr(np, dtype)).dtype == dtype


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        slice(1, 3),
        slice(None, None, 2),
        (slice(None), 1),
        (..., 2),
        (None, 1),
        (1, None, slice(0, 2)),
        (),
        (slice(3, 3),),
        (1, 2, 3),
    ],
    ids=str,
)
def test_views_select_as_numpy(key):
    a = np.arange(4 * 5 * 6, dtype="int32").reshape(4, 5, 6)
    x = baton.share(a)
    v = x[key]
    assert v.shape == a[key].shape
    assert (np.asarray(v) == a[key]).all()
    if v.size:
        assert (
            address(np.asarray(v)) - address(np.asarray(x)) == address(np.asarray(a[key])) - address(a)
            if isinstance(a[key], np.ndarray)
            else True
        )


def test_views_are_of_the_same_storage():
    x = baton.zeros((4, 6))
    np.asarray(x[3:5])[:] = 1
    assert np.asarray(x).sum() == 6
    a = np.asarray(x)
    assert (np.asarray(x.T) == a.T).all() and (np.asarray(x.transpose(0, -1)) == a.T).all()
    assert x.reshape(2, -1).shape == (2, 12) and x.reshape((24,)).shape == (24,)
    assert (np.asarray(x.view("int32")) == a.view("int32")).all() and x.view("uint8").shape == (4, 24)
    assert (np.asarray(x.as_strided((2, 2), (6, 3))) == a[:2, ::3][:, :2]).all()
    assert x.as_readonly().readonly and not np.asarray(x.as_readonly()).flags.writeable


def test_views_outside_raise():
    x = baton.zeros((4, 6))
    for bad in (4, -5, (0, 0, 0), (..., ...)):
        with pytest.raises(IndexError):
            x[bad]
    for bad in (True, "a", 1.5, [0, 1], np.array([True, False])):
        with pytest.raises(TypeError, match="np.asarray"):
            x[bad]
    for call in (
        lambda: x[::-1],
        lambda: x.as_strided((5, 6), (6, 1)),
        lambda: x.as_strided((2,), (-1,)),
        lambda: x.reshape(5, 5),
        lambda: x.T.reshape(24),
        lambda: x.view("float64").view("complex128")[:, :1].view("float32"),
        lambda: baton.empty((-1,)),
        lambda: baton.empty((2,), "float33"),
        lambda: baton.empty((1 << 40, 1 << 40)),
    ):
        with pytest.raises(baton.InvalidArgument):
            call()


def test_full_fills_every_element():
    assert (np.asarray(baton.full((3, 5), 7)) == np.full((3, 5), 7)).all()
    assert baton.full(3, True).dtype == "bool" and baton.full(3, 1.5).dtype == "float64"
    assert (np.asarray(baton.full((1000,), 1 + 2j, "complex64")) == np.complex64(1 + 2j)).all()
    b = baton.full((5,), 1.0, "bfloat16")
    assert b[3].item() == 1.0 and (np.asarray(b.view("uint16")) == 0x3F80).all()


@pytest.mark.parametrize(
    ("value", "dtype", "error"),
    [
        (-1, "uint8", baton.InvalidArgument),
        (1 << 64, "int64", baton.InvalidArgument),
        (1 << 64, None, baton.InvalidArgument),
        (1.5, "int8", baton.InvalidArgument),
        (1e6, "float16", baton.InvalidArgument),
        (1j, "float32", baton.InvalidArgument),
        (None, None, TypeError),
        ("1", "float32", TypeError),
        ([1], None, TypeError),
        (np.zeros(2), None, TypeError),
        (1.0, "float8_e4m3fn", TypeError),
    ],
    ids=str,
)
def test_full_says_what_cannot_fill(value, dtype, error):
    with pytest.raises(error) as e:
        baton.full(3, value, dtype)
    assert dtype is None or isinstance(value, str) or dtype in str(e.value)


def test_a_shape_is_no_text_and_fits():
    for bad in ("", "12", b"12"):
        for call in (baton.empty, baton.zeros(6).reshape):
            with pytest.raises(TypeError, match="shape"):
                call(bad)
    with pytest.raises(baton.InvalidArgument, match=str(1 << 63)):
        baton.empty((2, 1 << 63))


def test_rows_are_iterated():
    assert [r.tolist() for r in baton.share(np.arange(4).reshape(2, 2))] == [[0, 1], [2, 3]]
    with pytest.raises(TypeError):
        iter(baton.zeros(()))


def test_a_deep_copy_has_memory_of_its_own():
    x = baton.zeros((2, 3))
    b = baton.share({"l": [x, np.ones(2)], "n": 3})
    for y in (copy.deepcopy(x.as_readonly()), copy.deepcopy(b).value["l"][0], copy.deepcopy({"x": x})["x"]):
        y[0] = 1
        assert not x.numpy().any() and y.numpy()[0].all() and y.shape == (2, 3)
    assert copy.deepcopy(b).value["n"] == 3 and copy.deepcopy(baton.zeros((0, 2))).shape == (0, 2)
    copy.copy(x)[1] = 1
    assert x.numpy()[1].all()


def test_share_copies_any_layout_once():
    a = np.arange(4 * 5 * 6, dtype="int16").reshape(4, 5, 6)
    for layout in (
        a,
        a[::-1],
        a.T,
        a[:, ::2],
        np.asfortranarray(a),
        a[:0],
        a[0, 0, 0:1],
        np.broadcast_to(a[0], (3, 5, 6)),
    ):
        x = baton.share(layout)
        assert (np.asarray(x) == layout).all() and x.shape == layout.shape
    a[:] = 0
    assert np.asarray(baton.share(memoryview(b"abc"))).tolist() == [97, 98, 99]
    assert np.asarray(baton.share(array.array("d", [1, 2]))).tolist() == [1, 2]
    assert np.asarray(baton.share(np.float32(3))).shape == ()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 3, 2)])
def test_arrays_of_ctypes_are_compact_though_their_buffer_has_no_strides(shape):
    kind = ctypes.c_int
    for n in reversed(shape):
        kind = kind * n
    a = kind()
    np.asarray(a)[:] = np.arange(np.prod(shape)).reshape(shape)
    assert baton.share(a).tolist() == np.asarray(a).tolist()
    x = baton.zeros(shape, "int32")
    x.copy_from(a)
    assert x.tolist() == np.asarray(a).tolist()


def test_a_copy_keeps_the_order_of_dimensions_where_there_are_no_gaps():
    a = np.arange(240.0).reshape(2, 4, 3, 10)
    orders = [np.asfortranarray(a), a.transpose(0, 3, 1, 2), np.moveaxis(a, 1, 3), a.astype("uint8").T]
    for x in orders:
        strides = tuple(s // x.itemsize for s in x.strides)
        kept = baton.share(x)
        copies = [
            kept,
            baton.share(x, copy=True),
            baton.share({"w": x})["w"],
            baton.share(kept, copy=True),
            copy.deepcopy(kept),
            copy.deepcopy(baton.share({"w": x}))["w"],
            pickle.loads(pickle.dumps(kept)),
        ]
        assert [c.strides for c in copies if c.shape != x.shape or (c.numpy() != x).any()] == []
        assert {c.strides for c in copies} == {strides}
        assert np.from_dlpack(kept, copy=True).strides == x.strides
        like = baton.empty_like(kept)
        like.copy_from(kept)
        assert (like.reshape(-1).numpy() == x.reshape(-1)).all()
        assert "empty_like" in str(pytest.raises(baton.InvalidArgument, kept.reshape, -1).value)
    for x in (a[..., ::2], a[:, :, 0].T, a[..., ::-1]):
        assert baton.share(x).strides == baton.share(np.ascontiguousarray(x)).strides
        assert (baton.share(x).numpy() == x).all()


def test_share_references_what_is_shared_already():
    x = baton.zeros((3,))
    y = baton.share(x)
    assert address(y.numpy()) == address(x.numpy())
    assert address(baton.share(x, copy=True).numpy()) != address(x.numpy())
    with pytest.raises(baton.InvalidArgument):
        baton.share(np.zeros(3), copy=False)


def test_share_refuses_what_is_no_array():
    for bad in (1, "text", None, [1, 2], object()):
        with pytest.raises(TypeError):
            baton.share(bad)
    with pytest.raises((TypeError, ValueError, BufferError)):
        baton.share(np.array(["a"], dtype=object))


def test_copy_from_writes_in_place():
    x = baton.zeros((4, 6), "int32")
    x.T.copy_from(np.arange(24, dtype="int32").reshape(6, 4))
    assert (np.asarray(x) == np.arange(24).reshape(6, 4).T).all()
    for bad in (np.zeros((4, 6)), np.zeros((6, 4), "int32")):
        with pytest.raises(baton.InvalidArgument):
            x.copy_from(bad)
    with pytest.raises(baton.ReadOnly):
        x.as_readonly().copy_from(np.zeros((4, 6), "int32"))


def test_arrays_outlive_a_released_tensor():
    x = baton.full((1000,), 3)
    a, d = np.asarray(x), np.from_dlpack(x)
    with x:
        pass
    with pytest.raises(baton.Closed):
        x.shape
    for _ in range(20):  # what was given back would be handed out again
        np.asarray(baton.empty((1000,), "int64"))[:] = 9
    assert (a == 3).all() and (d == 3).all()
    assert repr(x) == "baton.Tensor(released)"


def test_dtypes_without_a_letter_name_the_way_out():
    x = baton.zeros((2,), "float8_e4m3fn")
    with pytest.raises(BufferError, match="view"):
        memoryview(x)
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(TypeError, match="ml_dtypes"):
            np.asarray(x)
    else:
        assert np.asarray(x).dtype == ml_dtypes.float8_e4m3fn


def test_elements_are_written_in_place_as_numpy_broadcasts_them():
    x = baton.zeros((2, 3), "float32")
    x[0] = [1, 2, 3]
    x[:, 1] = 9
    x[1, -1] = np.float64(0.5)
    assert x.tolist() == [[1, 9, 3], [0, 9, 0.5]] == np.asarray(x).tolist()
    with pytest.raises(ValueError, match="broadcast"):
        x[0] = [1, 2]
    with pytest.raises(IndexError):
        x[2] = 0
    with pytest.raises(baton.ReadOnly, match=r"float32\[2, 3\] is read-only"):
        x.as_readonly()[0] = 0
    assert x.tolist() == [[1, 9, 3], [0, 9, 0.5]], "what is refused changes nothing"


def test_a_tensor_is_not_asked_for_values():
    with pytest.raises(TypeError, match=r"x\.numpy\(\)"):
        0.0 in baton.zeros(3)  # noqa: B015


def test_one_element_is_a_number_and_several_are_none():
    x = baton.share(np.array([[2.5]], "float32"))
    assert (float(x), int(x), bool(x), bool(baton.zeros(()))) == (2.5, 2, True, False)
    for several in (baton.zeros(2), baton.zeros(0)):
        for number in (bool, float, int):
            with pytest.raises(ValueError, match="not one number"):
                number(several)


def huge_pages_free():
    at = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
    try:
        free, promised = (int(open(at + name).read()) for name in ("free_hugepages", "resv_hugepages"))
    except OSError:
        return 0
    return free - promised


def test_tensors_lie_in_huge_pages_where_the_machine_has_some():
    free = huge_pages_free()
    with pytest.raises((baton.OutOfMemory, baton.Unsupported)) as e:
        baton.empty(((free + 1) << 21,), "uint8", pages="2M")
    assert "huge pages" in str(e.value)
    with pytest.raises(baton.InvalidArgument, match="4K"):
        baton.empty(1, pages="4K")
    with pytest.raises(baton.InvalidArgument, match="cuda:0"):
        baton.empty(1, pages="2M", device="cuda:0")
    if free < 8:
        pytest.skip("fewer than 8 huge pages of 2 MiB are free (sysctl vm.nr_hugepages)")
    x, z, f = baton.empty(1000, "int64", pages="2M"), baton.zeros(5, pages="2M"), baton.full(3, 7, pages="2M")
    assert huge_pages_free() < free
    x.numpy()[:] = np.arange(1000)
    assert (z.tolist(), f.tolist()) == ([0] * 5, [7] * 3)
    q = baton.queue()
    q.put(x.as_readonly())
    got = q.get()
    torch = pytest.importorskip("torch")
    private = torch.from_dlpack(got.as_readonly())
    private[3] = -1
    assert got[3].item() == 3 and private[4] == 4, "a private view, here a copy"


def test_elements_of_half_a_byte_are_seen_as_bytes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = baton.share(np.array([1, -2, 3], ml_dtypes.int4))
    assert x.nbytes == 2 and x.view("uint8").tolist() == [0xE1, 0x03]
    y = baton.share(np.zeros((3, 3), ml_dtypes.int4))
    with pytest.raises(baton.InvalidArgument, match=r"reshape\(-1\)"):
        y.view("uint8")
    assert y.reshape(-1).view("uint8").shape == (5,)


def test_two_tensors_do_not_compare():
    a, b = baton.zeros(3), baton.zeros(3)
    for compare in (lambda: a == b, lambda: a != b, lambda: b == a, lambda: a in [b]):
        with pytest.raises(TypeError, match="array_equal"):
            compare()
    assert (a == np.zeros(3)).tolist() == (np.zeros(3) == a).tolist() == [True] * 3
    assert a != 3 and a in [a]
    with pytest.raises(TypeError, match="not supported between"):
        bool(a < b)
    assert {a: 1, b: 2}[a] == 1 and len({a, b, a}) == 2 and hash(a) == hash(a) != hash(a[:])


@pytest.mark.parametrize("make", [baton.empty, baton.zeros], ids=["empty", "zeros"])
def test_extents_as_several_arguments_are_told_how_to_be_one(make):
    with pytest.raises(baton.InvalidArgument, match=r"3 is no dtype.*empty\(\(2, 3\)\)"):
        make(2, 3)
