"""The rules of DLPack for a producer."""

import ctypes
import gc
import threading

import baton
import numpy as np
import pytest

is_valid = ctypes.pythonapi.PyCapsule_IsValid
is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


def fields(capsule) -> Versioned:
    return Versioned.from_address(pointer(capsule, b"dltensor_versioned"))


def test_version_asked_for_decides_the_capsule():
    x = baton.zeros((2, 3))
    assert is_valid(x.__dlpack__(), b"dltensor")
    assert is_valid(x.__dlpack__(max_version=(0, 8)), b"dltensor")
    assert is_valid(x.__dlpack__(max_version=(1, 0)), b"dltensor_versioned")
    assert x.__dlpack_device__() == (1, 0)


def test_fields_are_the_standards():
    c = baton.zeros((4, 6), "int16")[1:3, ::2].__dlpack__(max_version=(1, 3))
    t = fields(c)
    assert (t.major, t.device_type, t.device_id, t.ndim, t.code, t.bits, t.lanes) == (1, 1, 0, 2, 0, 16, 1)
    assert (t.shape[:2], t.strides[:2], t.byte_offset, t.flags) == ([2, 3], [6, 2], 0, 0)
    assert fields(baton.zeros((0, 3)).__dlpack__(max_version=(1, 0))).data is None


def test_each_export_has_a_shape_of_its_own():
    x = baton.zeros((2, 3))
    assert x.__dlpack_info__() == (1, 3)
    one, other = (x.__dlpack__(max_version=(1, 0)) for _ in range(2))
    fields(one).shape[0] = fields(one).strides[0] = 7  # as a consumer may
    assert (fields(other).shape[:2], fields(other).strides[:2], x.shape, x.strides) == ([2, 3], [3, 1], (2, 3), (3, 1))


def test_other_devices_and_streams_are_refused():
    x = baton.zeros((2,))
    for keywords in ({"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError):
            x.__dlpack__(**keywords)
    x.__dlpack__(dl_device=(1, 0), stream=None)


def test_copy_is_a_copy_and_says_so():
    x = baton.full((3,), 1.0)
    c = x.__dlpack__(max_version=(1, 0), copy=True)
    assert fields(c).flags == 2
    a = np.from_dlpack(x, copy=True)
    a[:] = 5
    assert (np.asarray(x) == 1).all()
    assert fields(x.__dlpack__(max_version=(1, 0), copy=False)).data == np.asarray(x).__array_interface__["data"][0]


def test_read_only_is_flagged_and_copy_on_write():
    x = baton.full((5000,), 2, "int32")
    y = x.as_readonly()
    assert fields(y.__dlpack__(max_version=(1, 0))).flags == 1
    a = np.from_dlpack(y)
    assert not a.flags.writeable
    np.asarray(x)[7] = 3
    assert a[7] == 3  # the same memory, until it is written
    capsule = y.__dlpack__(max_version=(1, 0))
    data = (ctypes.c_int32 * 5000).from_address(fields(capsule).data)
    data[9] = 42  # as torch would, which ignores the flag
    assert data[9] == 42 and np.asarray(x)[9] == 2


def test_unconsumed_capsules_give_their_reference_back():
    s = baton.connect()
    before = s.stats()["live"]
    x = s.zeros((100,))
    capsules = [x.__dlpack__(), x.__dlpack__(max_version=(1, 0))]
    x.release()
    s.collect()
    assert s.stats()["live"] == before + 1
    capsules.clear()
    gc.collect()
    s.collect()
    assert s.stats()["live"] == before
    s.close()


def test_consumed_capsules_are_freed_once_on_any_thread():
    s = baton.connect()
    arrays = [np.from_dlpack(s.zeros((100,))) for _ in range(50)]
    t = threading.Thread(target=arrays.clear)
    t.start()
    t.join()
    s.collect()
    assert s.stats()["live"] == 0
    s.close()


def test_old_producers_are_understood():
    class Old:
        def __init__(self, a):
            self.a = a

        def __dlpack__(self, stream=None):
            return self.a.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return (1, 0)

    assert np.asarray(baton.share(Old(np.arange(4.0)[::-1]))).tolist() == [3, 2, 1, 0]


def test_arrays_of_other_devices_are_refused():
    class Remote:
        def __dlpack__(self, **_):
            raise AssertionError("not asked for")

        def __dlpack_device__(self):
            return (10, 0)  # ROCm

    with pytest.raises(baton.Unsupported, match="host"):
        baton.share(Remote())
