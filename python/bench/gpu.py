"""What it takes to hand tensors on a GPU to another process that has their memory mapped.

On the stand-in for the driver the calls of it are counted, for nothing there takes the time that it takes on a
GPU. On a GPU round trips are timed, beside those of torch.multiprocessing in the same run, which needs a torch with
CUDA. The first use of memory that a process has not mapped yet stands beside: of a slab, and of lent memory by the
handle that cudaIpcOpenMemHandle opens.
"""

import ctypes
import multiprocessing
import statistics
import sys
import time
from pathlib import Path

import baton

CASES = {"one tensor": 1, "a state dict of 300": 300, "1,000 small tensors": 1000}
ELEMENTS = 1024
FIRST = (2 << 20, 64 << 20, 1 << 30)  # bytes of what is mapped
WARM, ROUNDS = 5, 20
THERE, BACK = "bench/there", "bench/back"

try:
    DRIVER = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit("no CUDA driver: make bench-gpu counts calls on the stand-in for one where there is no GPU")
CALLS = getattr(DRIVER, "standin_calls", None)  # a real driver does not count
if CALLS is not None:
    CALLS.restype = ctypes.c_uint64


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


def answer():
    """Takes what comes, and answers with the calls that it took, and the seconds of the first use."""
    there, back = baton.queue(THERE), baton.queue(BACK)
    while True:
        before = calls()
        value = there.get()
        if value is None:
            return
        began = time.perf_counter()
        for t in value.values():
            use(t)
        took = time.perf_counter() - began
        back.put((*difference(calls(), before), took))


def torch_answer(there, back):
    while (value := there.get()) is not None:
        assert all(t.is_cuda for t in value.values())
        back.put(len(value))


def baton_round(there, back, n, late=None):
    """A round trip; `late` holds up the stream after whose work the tensors are sent."""
    value = {f"p{i}": baton.empty(ELEMENTS, device="cuda:0") for i in range(n)}
    if late is not None:
        late.hold(1)
    before, began = calls(), time.perf_counter()
    there.put(value)
    theirs = back.get()
    return time.perf_counter() - began, difference(calls(), before), tuple(theirs)


def shown(calls):
    order, around, every = calls
    return f"{order} + {around} + {every - order - around}"


def middle(rounds):
    """The round in the middle: by the calls that do not order streams, then by those that do.

    Where memory of earlier rounds is still in use a slab more is mapped, and a tensor that its sender's stream
    has not written yet is waited for: some rounds take more calls.
    """
    return sorted(rounds, key=lambda c: (c[2] - c[1] - c[0], c[0]))[len(rounds) // 2]


def count(there, back):
    print(f"{'':24} {'sender':>24} {'receiver':>24}   (calls that order streams + around them + others)")
    for case, n in CASES.items():
        rounds = [baton_round(there, back, n) for _ in range(WARM + ROUNDS)][WARM:]
        sides = [shown(middle([r[side][:3] for r in rounds])) for side in (1, 2)]
        print(f"{case:24} {sides[0]:>24} {sides[1]:>24}")
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from foreign_gpu import Foreign, Gate  # cudaMalloc's memory, as torch has it

    gate = Gate()
    _, ours, theirs = baton_round(there, back, 300, late=gate)
    gate.open()
    print(f"{'300, not yet written':24} {shown(ours):>24} {shown(theirs[:3]):>24}")
    slab, lent = first_of_slab(back, 1 << 20), first_use(there, back, baton.share(Foreign(1 << 20, 1), copy=False))
    print(f"{'first use of a slab':24} {'':>24} {shown(slab[:3]):>24}")
    print(f"{'first use of lent memory':24} {'':>24} {shown(lent[:3]):>24}")


def first_use(there, back, x):
    """The calls, and the seconds, that the receiver takes to use memory that it has not mapped."""
    there.put({"x": x})
    return back.get()


def first_of_slab(back, n):
    with baton.Session() as fresh:  # whose slab no process has mapped
        return first_use(fresh.queue(THERE), back, fresh.empty(n, "uint8", device="cuda:0"))


def measure_first(there, back, torch):
    print(f"{'first use of':24} {'a slab':>12} {'lent by torch':>12}   (µs at the receiver)")
    for n in FIRST:
        slab = first_of_slab(back, n)[3]
        torch.cuda.empty_cache()
        lent = first_use(there, back, baton.share(torch.empty(n, dtype=torch.uint8, device="cuda:0"), copy=False))[3]
        print(f"{f'{n >> 20} MiB':24} {1e6 * slab:12.1f} {1e6 * lent:12.1f}")


def torch_with_cuda():
    try:
        import torch
    except ImportError:
        sys.exit("no torch to compare with: install one with CUDA")
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no GPU to compare on: install one with CUDA")
    return torch


def measure(context, there, back, torch):
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
    measure_first(there, back, torch)


def main():
    torch = torch_with_cuda() if CALLS is None else None
    context = multiprocessing.get_context("spawn")
    there, back = baton.queue(THERE), baton.queue(BACK)
    peer = context.Process(target=answer)
    peer.start()
    try:
        if torch is None:
            print("on the stand-in for the driver, where times would say nothing")
            count(there, back)
        else:
            measure(context, there, back, torch)
    finally:
        there.put(None)
        peer.join()
    return peer.exitcode


if __name__ == "__main__":
    sys.exit(main())
