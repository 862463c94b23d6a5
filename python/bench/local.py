"""What one process does alone. What is shorter than a look at the clock is timed in blocks."""

import ctypes
import gc
import json
import subprocess
import sys
import time
import uuid
from array import array
from collections.abc import Callable
from timeit import Timer
from typing import Any

import baton
import numpy as np

Figures = dict[str, list[float]]
BLOCK = 256


def blocks(n: int, statement: str, names: dict[str, Any], before: Callable[[], object] = lambda: None) -> Figures:
    """ns of a statement, by block; a tenth is to warm up. `before` is not timed."""
    timer = Timer(statement, "gc.enable()", globals=names | {"gc": gc})
    times = []
    for _ in range(max(n // BLOCK, 10) * 11 // 10):
        before()
        times.append(timer.timeit(BLOCK) / BLOCK * 1e9)
    return {"ns": times[len(times) // 11 :]}


def asarray(n: int, size: int) -> Figures:
    """The view by NumPy."""
    return blocks(n, "np.asarray(x)", {"np": np, "x": baton.empty(size // 4)})


def asarray_of_array(n: int, size: int) -> Figures:
    """The same of Python's own array: what NumPy takes for any buffer."""
    return blocks(n, "np.asarray(x)", {"np": np, "x": array("f", bytes(size))})


def torch_view(n: int, size: int) -> Figures:
    """The view by torch, of a tensor that may be written."""
    return blocks(n, "x.torch()", {"x": baton.empty(size // 4)})


def torch_copy_on_write(n: int, size: int) -> Figures:
    """The view by torch of a read-only tensor."""
    return blocks(n, "x.torch()", {"x": baton.empty(size // 4).as_readonly()})


def allocate(n: int, size: int) -> Figures:
    """Memory from a warm pool, and back."""
    return blocks(n, "empty(shape)", {"empty": baton.empty, "shape": (size // 4,)})


def send(n: int, size: int) -> Figures:
    """Sends to a reader that is there and does not sleep."""
    x, topic, reader = channel(size)
    figures = blocks(n, "send(x)", {"send": topic.send, "x": x}, lambda: drain(reader))
    return figures


def receive(n: int, size: int) -> Figures:
    """Receives a message that is there, takes its tensor, and drops both."""
    x, topic, reader = channel(size)
    figures = blocks(n, "receive().value", {"receive": reader.receive}, lambda: [topic.send(x) for _ in range(BLOCK)])
    return figures


def get(n: int, size: int) -> Figures:
    """Reads a name that was read before, and drops the bundle."""
    name = f"bench/{uuid.uuid4().hex}"
    baton.set(name, {"w": baton.zeros(size // 4)}, ephemeral=True)
    return blocks(n, "get(name)", {"get": baton.connect().get, "name": name})


def channel(size: int) -> tuple[Any, baton.Topic, baton.Reader]:
    """A topic in one session and a reader of it in another."""
    name = f"bench/{uuid.uuid4().hex}"
    return baton.zeros(size // 4), baton.topic(name, depth=BLOCK), baton.connect().topic(name).reader()


def drain(reader: baton.Reader) -> None:
    """Receives all that is there."""
    while reader._poll():
        pass


def share(n: int, size: int) -> Figures:
    """Copies an array into shared memory by `baton.share`, and beside it by memcpy into memory that is warm."""
    a = np.ones(size // 4, "float32")
    warm = np.asarray(baton.zeros(size // 4))
    times: Figures = {"share": [], "memcpy": []}
    for i in range(n + n // 10):
        start = time.monotonic_ns()
        ctypes.memmove(warm.ctypes.data, a.ctypes.data, a.nbytes)
        middle = time.monotonic_ns()
        x = baton.share(a)
        end = time.monotonic_ns()
        del x
        if i >= n // 10:
            times["memcpy"].append(middle - start)
            times["share"].append(end - middle)
    return times


IMPORT = """
import json, sys, time
start = time.perf_counter_ns()
import baton
print(json.dumps([time.perf_counter_ns() - start, [m for m in ("jax", "numpy", "torch") if m in sys.modules]]))
"""


def imports(n: int, size: int) -> Figures:
    """`import baton` in a fresh interpreter, which must not import a framework."""
    times = []
    for _ in range(n):
        done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True)
        ns, frameworks = json.loads(done.stdout)
        if frameworks:
            raise AssertionError(f"import baton imported {frameworks}")
        times.append(ns)
    return {"ns": times}


ROLES = {
    "allocate": allocate,
    "array": asarray_of_array,
    "asarray": asarray,
    "get": get,
    "import": imports,
    "receive": receive,
    "send": send,
    "share": share,
    "torch": torch_view,
    "torch-copy-on-write": torch_copy_on_write,
}
