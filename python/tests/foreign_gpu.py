"""Memory of another library's on the GPU, as torch has it, on the stand-in for the driver."""

import ctypes
import mmap
import threading

import baton

cuda = ctypes.CDLL("libcuda.so.1")
if hasattr(cuda, "standin_calls"):  # a real driver does not count
    cuda.standin_calls.restype = ctypes.c_uint64


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def fill(at, value, n):
    """Has the legacy default stream set bytes."""
    assert cuda.cuMemsetD8Async(ctypes.c_uint64(at), ctypes.c_ubyte(value), ctypes.c_size_t(n), 1) == 0


def enter():
    """Makes the context of the first GPU current on this thread."""
    baton.empty(1, "uint8", device="cuda:0")  # starts the driver
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0


def new_stream():
    """A stream that is not ordered with the legacy one."""
    enter()
    stream = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    return stream.value


class Gate:
    """Work of streams that stays behind `hold` until it is opened."""

    def __init__(self):
        enter()
        self.page, at = mmap.mmap(-1, mmap.PAGESIZE), ctypes.c_uint64()
        self.word = ctypes.c_uint64.from_buffer(self.page)
        host = ctypes.c_void_p(ctypes.addressof(self.word))
        assert cuda.cuMemHostRegister_v2(host, ctypes.c_size_t(mmap.PAGESIZE), 2) == 0
        assert cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(at), host, 0) == 0
        self.at = at

    def hold(self, stream):
        assert cuda.cuStreamWaitValue64_v2(ctypes.c_void_p(stream), self.at, ctypes.c_uint64(1), 0) == 0

    def open(self):
        self.word.value = 1


class Foreign:
    """An array of n bytes, behind others: it notes which stream it was asked for, and when it is let go."""

    def __init__(self, n, value, allocate="cuMemAlloc_v2", before=0):
        enter()
        at = ctypes.c_uint64()
        assert getattr(cuda, allocate)(ctypes.byref(at), ctypes.c_size_t(before + n), None) == 0
        fill(at.value, value + 1, before + n)
        fill(at.value + before, value, n)
        self.at, self.asked, self.let_go = at, [], threading.Event()
        self.destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(lambda _: self.let_go.set())
        self.shape, device = (ctypes.c_int64 * 1)(n), (ctypes.c_int32 * 2)(2, 0)
        self.managed = Managed(DLTensor(at.value, device, 1, 1, 8, 1, self.shape, None, before), None, None)

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        return capsule(ctypes.addressof(self.managed), b"dltensor", self.destructor)

    def free(self):
        """Frees it, which ends the process where another one has it open."""
        assert cuda.cuStreamSynchronize(1) == 0 and cuda.cuMemFree_v2(self.at) == 0
