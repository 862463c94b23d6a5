"""What it takes to hand tensors on a GPU to another process that has their memory mapped.

On the stand-in for the driver the calls of it are counted, for nothing there takes the time that it takes on a
GPU. On a GPU round trips are timed, beside those of torch.multiprocessing in the same run.
"""

import ctypes
import multiprocessing
import statistics
import sys
import time

import baton

CASES = {"one tensor": 1, "a state dict of 300": 300, "1,000 small tensors": 1000}
ELEMENTS = 1024
WARM, ROUNDS = 5, 20

try:
    CALLS = ctypes.CDLL("libcuda.so.1").standin_calls
    CALLS.restype = ctypes.c_uint64
except (OSError, AttributeError):
    CALLS = None  # a real driver does not count


def calls():
    """Calls of the driver by this process: those that order streams, those around them, all."""
    if CALLS is None:
        return (0, 0, 0)
    order = CALLS(b"cuStreamWriteValue64_v2") + CALLS(b"cuStreamWaitValue64_v2")
    around = CALLS(b"cuCtxPushCurrent_v2") + CALLS(b"cuCtxPopCurrent_v2")
    return (order, around, CALLS(b""))


def difference(after, before):
    return tuple(a - b for a, b in zip(after, before, strict=True))


def use(t):
    """What a library does that takes the tensor."""
    t.__dlpack__(stream=1, max_version=(1, 3))


def answer(there, back):
    """Takes what comes, and answers with the calls that it took."""
    while True:
        before = calls()
        value = there.get()
        if value is None:
            return
        for t in value.values():
            use(t)
        back.put(difference(calls(), before))


def torch_answer(there, back):
    while (value := there.get()) is not None:
        assert all(t.is_cuda for t in value.values())
        back.put(len(value))


def baton_round(there, back, n):
    value = {f"p{i}": baton.empty(ELEMENTS, device="cuda:0") for i in range(n)}
    before, began = calls(), time.perf_counter()
    there.put(value)
    theirs = back.get()
    return time.perf_counter() - began, difference(calls(), before), tuple(theirs)


def count(there, back):
    print(f"{'':24} {'sender':>24} {'receiver':>24}   (calls that order streams + around them + others)")
    for case, n in CASES.items():
        rounds = [baton_round(there, back, n) for _ in range(WARM + ROUNDS)][WARM:]
        sides = []
        for side in (1, 2):
            order, around, every = (statistics.median(r[side][k] for r in rounds) for k in range(3))
            sides.append(f"{order:g} + {around:g} + {every - order - around:g}")
        print(f"{case:24} {sides[0]:>24} {sides[1]:>24}")


def measure(context, there, back):
    import torch
    import torch.multiprocessing as tmp

    out, home = tmp.get_context("spawn").Queue(), tmp.get_context("spawn").Queue()
    peer = context.Process(target=torch_answer, args=(out, home))
    peer.start()
    print(f"{'':24} {'Baton':>12} {'torch':>12}   (µs for a round trip, median of {ROUNDS})")
    for case, n in CASES.items():
        ours = [baton_round(there, back, n)[0] for _ in range(WARM + ROUNDS)][WARM:]
        theirs = []
        for _ in range(WARM + ROUNDS):
            value = {f"p{i}": torch.empty(ELEMENTS, device="cuda:0") for i in range(n)}
            began = time.perf_counter()
            out.put(value)
            home.get()
            theirs.append(time.perf_counter() - began)
        a, b = (1e6 * statistics.median(t) for t in (ours, theirs[WARM:]))
        print(f"{case:24} {a:12.1f} {b:12.1f}   {b / a:.0f}×")
    out.put(None)
    peer.join()


def main():
    context = multiprocessing.get_context("spawn")
    there, back = baton.queue(), baton.queue()
    peer = context.Process(target=answer, args=(there, back))
    peer.start()
    if CALLS is not None:
        print("on the stand-in for the driver")
        count(there, back)
    else:
        measure(context, there, back)
    there.put(None)
    peer.join()
    return peer.exitcode


if __name__ == "__main__":
    sys.exit(main())
