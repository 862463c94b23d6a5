"""Tensors on GPUs, on the stand-in for the driver; integration/cuda/standin says what that cannot show.

The driver is found when a process starts, so all of it happens in children.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import BATON, run

TREE = Path(__file__).resolve().parents[2]
EXAMPLE = TREE / "examples" / "python" / "weights_gpu.py"
FOREIGN = (Path(__file__).parent / "foreign_gpu.py").read_text()


def test_tensors_are_made_on_a_gpu_and_copied(gpu, child):
    run(
        child,
        """
a = np.arange(60_000, dtype="float32").reshape(200, 300)
x = baton.share(a, device="cuda:0")
assert (x.device, x.shape, x.dtype, x.readonly) == ("cuda:0", (200, 300), "float32", False)
assert (x.cpu().numpy() == a).all() and x.cpu().device == "cpu"
assert x.to("cuda:0").device == "cuda:0" and x.to("cuda").cpu().numpy()[7, 7] == a[7, 7]
assert (baton.share(a.T, device="cuda:0").cpu().numpy() == a.T).all()
z = baton.zeros((200, 300), device="cuda:0", stream=2)
assert not z.cpu(stream=1).numpy().any()
z.copy_from(a, stream=2)
assert (z.cpu(stream=2).numpy() == a).all()
z.copy_from(baton.share(a + 1))
y = baton.empty_like(z)
y.copy_from(z)
back = baton.empty((200, 300))
back.copy_from(y)
assert (back.numpy() == a + 1).all() and y.device == "cuda:0"
assert (baton.full(5, 3, "int16", device="cuda:1").cpu().numpy() == 3).all()
assert baton.share(a).to("cuda:1").device == "cuda:1"
assert (x[3:5].cpu().numpy() == a[3:5]).all()
import ctypes
calls = ctypes.CDLL("libcuda.so.1").standin_calls
calls.restype = ctypes.c_uint64
registered = calls(b"cuMemHostRegister_v2")  # the streams' words, and slabs that were copied from or to
assert 1 < registered < 8, registered
from baton import _default
s = _default.session()
live = s.stats()["live"]
for _ in range(20):
    x.copy_from(baton.share(a))
    x.cpu()
    while s.stats()["live"] > live:  # until the stream lets go: else other slabs are needed
        s.collect()
assert calls(b"cuMemHostRegister_v2") == registered  # each once
baton.zeros(100_000).copy_from(np.ones(100_000, "float32"))
assert calls(b"cuMemHostRegister_v2") == registered  # none that no GPU needs
""",
    )


def test_full_memory_of_a_gpu_is_awaited(gpu, child, monkeypatch):
    monkeypatch.setenv("BATON_STANDIN_MEMORY", str(64 << 20))
    run(
        child,
        """
import threading
sys.path.append(sys.argv[1])
from conftest import PATIENCE, asleep, eventually
kept, how = [], {"dtype": "uint8", "device": "cuda:0"}
for make in (baton.empty, baton.zeros, lambda n, **how: baton.full(n, 1, **how)):
    kept.append(make(48 << 20, timeout=PATIENCE, **how))  # work on the last one's stream may be under way
    try:
        make(48 << 20, **how)
        say("made")
    except (baton.OutOfMemory, baton.QuotaExceeded):
        pass
    t = threading.Thread(target=lambda: kept.append(make(48 << 20, timeout=PATIENCE, **how)))
    t.start()
    eventually(lambda: asleep(t) or not t.is_alive(), "the wait for memory")
    kept.pop(0).release()
    t.join()
    kept.pop().release()
""",
        str(Path(__file__).parent),
    )


def test_pinning_registers_a_slab_once_and_copies_nothing(gpu, child, name):
    run(
        child,
        """
import ctypes
calls = ctypes.CDLL("libcuda.so.1").standin_calls
calls.restype = ctypes.c_uint64
x, y = baton.zeros(100_000), baton.zeros(100_000)
before = x.handle(lease=None), calls(b"cuMemHostRegister_v2")
assert x.pin_memory() is x and y.pin_memory("cuda:0") is y and x[3:].pin_memory().shape == (99_997,)
assert baton.zeros(0).pin_memory().shape == (0,)
assert calls(b"cuMemHostRegister_v2") == before[1] + 1
assert calls(b"cuMemcpyHtoDAsync_v2") == calls(b"cuMemcpyDtoHAsync_v2") == 0
q = baton.queue(sys.argv[1])
q.put(x)
assert q.get().pin_memory().size == 100_000
x.as_readonly().pin_memory()
assert calls(b"cuMemHostRegister_v2") == before[1] + 1
for refused, error in ((lambda: baton.zeros(3, device="cuda:0").pin_memory(), baton.InvalidArgument),
                       (lambda: x.pin_memory("cuda:9"), baton.NotFound)):
    try:
        refused()
        say("pinned")
    except error:
        pass
""",
        name,
    )


def test_what_cannot_be_pinned_is_told(gpu, child, monkeypatch):
    script = """
try:
    baton.zeros(3).pin_memory()
    say("pinned")
except baton.Unsupported as e:
    say(e)
"""
    monkeypatch.setenv("BATON_STANDIN_FAULTS", "cuMemHostRegister_v2=801")
    assert "does not register the memory" in child(script).hear()
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert "driver" in child(script).hear()


def test_what_does_not_reach_a_gpu_says_what_to_do(gpu, child):
    run(
        child,
        """
x = baton.zeros(4, device="cuda:0")
for look in (x.numpy, lambda: np.asarray(x), lambda: memoryview(x), lambda: x[:1].item()):
    try:
        look()
        say("looked")
    except (baton.Unsupported, BufferError) as e:
        assert "x.cpu()" in str(e), e
try:
    baton.share(np.zeros((4, 2)), device="cuda:0")[:, :1].cpu()
    say("copied")
except baton.Unsupported as e:
    assert "not contiguous" in str(e), e
for name, error in (("cuda:9", baton.NotFound), ("tpu", baton.InvalidArgument), ("cuda:GPU-0", baton.NotFound)):
    try:
        baton.empty(4, device=name)
        say("made")
    except error:
        pass
""",
    )


def test_elements_without_gaps_keep_the_order_of_their_dimensions(gpu, child):
    run(
        child,
        """
a = np.arange(24.).reshape(2, 3, 4).transpose(0, 2, 1)
steps = tuple(s // 8 for s in a.strides)
x = baton.share(a)
there = baton.share(a, device="cuda:0")
on = "cuda:0"
for t in (x.to(on), there, x.to(on).cpu(), there.cpu().to(on), baton.share(there, copy=True)):
    assert t.strides == steps and t.cpu().tolist() == a.tolist(), (t, t.strides, steps)
flat = baton.empty(a.shape, "float64", device="cuda:0")
flat.copy_from(a)
assert flat.strides == (12, 3, 1) and flat.cpu().tolist() == a.tolist()
""",
    )


def test_dlpack_obeys_the_consumers_stream(gpu, child):
    run(
        child,
        """
x = baton.full(1000, 7, "uint8", device="cuda:1")
assert x.__dlpack_device__() == (2, 1)
for stream in (None, 1, 2, -1):
    x.__dlpack__(stream=stream, max_version=(1, 3))
    x.__dlpack__(stream=stream)
for stream in (0, -2, "a stream"):
    try:
        x.__dlpack__(stream=stream)
        say("took", stream)
    except BufferError:
        pass
try:
    baton.zeros(1).__dlpack__(stream=1)
    say("a stream on the CPU")
except BufferError:
    pass
class OnTheHost:
    def __dlpack_device__(self): return (1, 0)
    def __dlpack__(self, **kw): return x.__dlpack__(**{**kw, "dl_device": (1, 0)})
assert (np.from_dlpack(OnTheHost()) == 7).all()
try:
    x.__dlpack__(dl_device=(2, 0), max_version=(1, 3))
    say("moved")
except BufferError:
    pass
class Stream:
    cuda_stream = 0
    def __cuda_stream__(self): return (0, 2)
baton.zeros(9, device="cuda:0", stream=Stream())
import ctypes
table = baton.Tensor.__c_dlpack_exchange_api__
stream_of = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
current = stream_of(ctypes.c_void_p.from_address(table + 48).value)
out = ctypes.c_void_p(5)
assert current(2, 0, ctypes.byref(out)) == 0 and out.value == 1
assert current(1, 0, ctypes.byref(out)) == 0 and not out.value
""",
    )


def test_streams_wait_for_each_other_and_none_for_itself(gpu, child):
    run(
        child,
        FOREIGN
        + """
a, b, gate = new_stream(), new_stream(), Gate()
def waits(f):
    before = cuda.standin_calls(b"cuStreamWaitValue64_v2")
    f()
    return cuda.standin_calls(b"cuStreamWaitValue64_v2") - before
def idle(stream):
    return cuda.cuStreamQuery(ctypes.c_void_p(stream)) == 0
def export(stream, *tensors):
    for t in tensors:
        t.__dlpack__(stream=stream, max_version=(1, 3))

# What was copied by one stream is waited for by others, once, and not by itself.
n, x = np.arange(5000, dtype="int32"), baton.zeros(5000, "int32", device="cuda:0", stream=a)
x.cpu(stream=a)
gate.hold(a)
x.copy_from(baton.share(n), stream=a)
assert waits(lambda: export(a, x, x[5:])) == 0
assert waits(lambda: export(b, x, x[5:], x)) == 1 and not idle(b)
assert waits(lambda: x.copy_from(baton.share(n), stream=b)) == 0
gate.open()
assert (x.cpu(stream=b).numpy() == n).all()
x.written(120)

# A message of tensors that one stream writes is waited for once by the stream of its sender, if that is another.
gate = Gate()
gate.hold(a)
layers = [baton.full(100, i, "uint8", device="cuda:0", stream=a) for i in range(30)]
q = baton.queue()
assert waits(lambda: q.put(layers, stream=a)) == 0
assert waits(lambda: q.put(layers, stream=b)) == 1
q.put(layers, stream=a)
got, _, late = q.get(), q.get(), q.get()
assert waits(lambda: export(a, *got)) == 0
assert waits(lambda: export(b, *got, *got)) == 1
assert waits(lambda: late[0].__dlpack__(stream=-1)) == 0  # the structure before 1.0
assert waits(lambda: late[0].__dlpack__(stream=b)) == 1
gate.open()
assert [int(t.cpu(stream=b).numpy()[0]) for t in got] == list(range(30))
""",
    )


def test_memory_that_a_stream_still_reads_is_not_used_anew(gpu, child):
    run(
        child,
        FOREIGN
        + """
a, b, n = new_stream(), new_stream(), 3 << 20
taker = baton.Session()
there, here = taker.queue("there"), baton.queue("there")
for received in (False, True):
    gate, x, y = Gate(), baton.full(n, 7, "uint8", device="cuda:0", stream=a), baton.zeros(n, "uint8", device="cuda:0")
    y.written()
    if received:
        here.put(x, stream=a)
        x = there.get()
    gate.hold(b)
    y.copy_from(x, stream=b)
    x = None
    after = [baton.full(n, i, "uint8", device="cuda:0", stream=a) for i in range(5)]
    assert [int(t.cpu(stream=a).numpy()[0]) for t in after] == list(range(5))
    gate.open()
    assert (y.cpu(stream=b).numpy() == 7).all(), received
""",
    )


def test_stream_that_is_captured_into_a_graph_is_refused(gpu, child):
    run(
        child,
        FOREIGN
        + """
a, c, gate, q = new_stream(), new_stream(), Gate(), baton.queue()
early, x = baton.full(9, 5, "uint8", device="cuda:0"), baton.full(9, 7, "uint8", device="cuda:0")
early.written()
gate.hold(a)
late = baton.full(9, 6, "uint8", device="cuda:0", stream=a)
assert cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(c), 0) == 0
early.__dlpack__(stream=c, max_version=(1, 3))  # it waits for nothing
for use in (lambda: late.__dlpack__(stream=c, max_version=(1, 3)), lambda: q.put(x, stream=c)):
    try:
        use()
        say("used")
    except baton.Conflict as e:
        assert "captured into a graph" in str(e), e
del early  # the graph may read it whenever it runs
graph = ctypes.c_void_p()
assert cuda.cuStreamEndCapture(ctypes.c_void_p(c), ctypes.byref(graph)) == 0
gate.open()
q.put(x, stream=c)
assert (q.get().cpu(stream=c).numpy() == 7).all() and (late.cpu(stream=c).numpy() == 6).all()
""",
    )


def test_what_the_driver_refuses_of_the_order_is_waited_for_by_the_processor(gpu, child, name, monkeypatch):
    monkeypatch.setenv("BATON_STANDIN_DELAY", "20000")
    for call, code in (("cuStreamWriteValue64_v2", 801), ("cuStreamWaitValue64_v2", 1), ("cuMemHostRegister_v2", 801)):
        with monkeypatch.context() as m:
            m.setenv("BATON_STANDIN_FAULTS", f"{call}={code}")
            queue = f"{name}/{call}"
            taker = child(
                """
q = baton.queue(sys.argv[1])
say("ready")
say([int(t.cpu(stream=2).numpy()[0]) for t in q.get(120)])
""",
                queue,
            )
            assert taker.hear() == "ready"
            run(
                child,
                "q = baton.queue(sys.argv[1])\n"
                "q.put([baton.full(9, i, 'uint8', device='cuda:0', stream=2) for i in range(5)], stream=1)",
                queue,
            )
            assert taker.hear() == "[0, 1, 2, 3, 4]", call
            taker.end()


def test_state_dict_goes_over_in_one_message_though_its_sender_ends_before_its_stream(gpu, child, name, monkeypatch):
    monkeypatch.setenv("BATON_STANDIN_DELAY", "20000")  # microseconds, of each piece of work
    taker = child(
        """
q = baton.queue(sys.argv[1])
say("ready")
v = q.get(120)
assert v["step"] == 3 and all(t.device == "cuda:0" for t in v["layers"])
assert [int(t.cpu().numpy()[0]) for t in v["layers"]] == list(range(30))
say("done")
""",
        name,
    )
    assert taker.hear() == "ready"
    run(
        child,
        """
layers = [baton.full(1000, i, "uint8", device="cuda:0", stream=2) for i in range(30)]
baton.queue(sys.argv[1]).put({"layers": layers, "step": 3}, stream=2)
""",
        name,
    )
    assert taker.hear() == "done"
    taker.end()


def test_tensor_says_that_the_processor_waits_for_streams(gpu, child, monkeypatch):
    script = "say(repr(baton.empty(3, device='cuda:0')))"
    assert "device=cuda:0, " in child(script).hear()
    monkeypatch.setenv("BATON_STANDIN_LACKS", "memops")
    assert "device=cuda:0 (its processor waits for streams), " in child(script).hear()


def test_without_a_driver_the_rest_works(child):
    run(
        child,
        """
try:
    baton.empty(4, device="cuda:0")
    say("made")
except baton.Unsupported as e:
    assert "no CUDA driver on this machine" in str(e), e
assert baton.zeros(4, device="cpu").device == "cpu" and baton.zeros(4).to("cpu").cpu().device == "cpu"
""",
    )


def test_child_of_a_fork_is_told_to_spawn_and_nothing_is_lost(gpu, child, name):
    run(
        child,
        """
import os, signal
from baton import _default
x, on_cpu, q = baton.full(1000, 7, "uint8", device="cuda:0"), baton.full(4, 3.0), baton.queue(sys.argv[1])
x.copy_from(x.cpu())  # work of a stream, which a child cannot ask about
name = sys.argv[1] + "/n"
refused = {
    "copying out": x.cpu,
    "copying in": lambda: x.copy_from(np.zeros(1000, "uint8")),
    "waiting": lambda: x.written(1),
    "moving": lambda: x.to("cuda:1"),
    "making": lambda: baton.zeros(4, device="cuda:0"),
    "DLPack": lambda: x.__dlpack__(stream=1, max_version=(1, 3)),
    "DLPack without a stream": lambda: x.__dlpack__(stream=-1),
    "sending": lambda: q.put({"x": x, "on_cpu": on_cpu}),
    "a handle": x.handle,
    "a name": lambda: baton.set(name, {"x": x}),
    "taking": lambda: q.get(120),
}
q.put(x)

def heir():
    for what, f in refused.items():
        try:
            f()
            print(what, "was not refused", file=sys.stderr)
            return 1
        except baton.Unsupported as e:
            assert "spawn" in str(e), (what, e)
    assert (x.device, x[1:].shape, repr(x)[:44]) == ("cuda:0", (999,), "baton.Tensor(uint8, shape=(1000,), device=cu")
    assert (on_cpu.numpy() == 3).all()
    q.put(on_cpu)
    return 0

if not (pid := os.fork()):
    signal.alarm(120)
    status = 2
    try:
        status = heir()
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert (x.cpu().numpy() == 7).all()
assert (q.get(120).cpu().numpy() == 7).all() and (q.get(120).numpy() == 3).all()
del x, on_cpu, refused
s = _default.session()
while s.stats()["live"]:  # what the child held
    s.collect()
""",
        name,
    )


def test_weights_on_a_gpu_are_switched(gpu):
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "20 revisions on cuda:0, 2 readers" in done.stdout
    assert float(done.stdout.split()[-1]) >= 0.93, done.stdout


def test_an_example_that_fails_does_not_wait_for_its_processes(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "baton.Unsupported" in done.stderr, done.stderr


def test_bench_counts_calls_of_the_driver_and_says_why_it_cannot_time(gpu):
    bench = [BATON, "run", "--", sys.executable, TREE / "python" / "bench" / "gpu.py"]
    done = subprocess.run(bench, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = {" ".join(line[:24].split()): line[24:] for line in done.stdout.splitlines()}
    assert "on the stand-in" in done.stdout and "first use of lent memory" in rows, done.stdout
    for case in ("one tensor", "a state dict of 300", "1,000 small tensors"):
        # What orders streams depends on which comes first; no other call is made.
        assert re.findall(r"\d+ \+ \d+ \+ (\d+)", rows[case]) == ["0", "0"], done.stdout
    if os.path.exists("/dev/nvidiactl"):
        return  # there is a driver without the stand-in
    without = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    done = subprocess.run(bench, capture_output=True, text=True, timeout=300, env=without)
    assert done.returncode == 1 and "no CUDA driver" in done.stderr
