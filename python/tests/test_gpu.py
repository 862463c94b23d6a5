"""Tensors on a real GPU, with torch: what no stand-in shows. `make test-gpu` runs it where there is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE, need

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python" / "weights_gpu.py"

if "BATON_TEST_GPU" not in os.environ:
    pytest.skip("runs by make test-gpu alone", allow_module_level=True)
if not os.path.exists("/dev/nvidiactl"):
    if "cuda" in os.environ.get("BATON_REQUIRE", "").split(","):
        pytest.fail("cuda is required by BATON_REQUIRE, and there is no NVIDIA GPU here", pytrace=False)
    pytest.skip("this machine or container has no NVIDIA GPU (/dev/nvidiactl)", allow_module_level=True)
need("numpy")  # the children of these tests use it
if not need("torch").cuda.is_available():
    if "torch" in os.environ.get("BATON_REQUIRE", "").split(","):
        pytest.fail("torch is required by BATON_REQUIRE, and the one here finds no GPU", pytrace=False)
    pytest.skip("the torch that is installed finds no GPU", allow_module_level=True)


def hand_over(child, name, taker, giver):
    """Lets a process that gives run against one that takes; both have the queue and the one back."""
    both = """
import torch
q, back = baton.queue(sys.argv[1]), baton.queue(sys.argv[1] + "/back")
"""
    takes = child(both + taker, name)
    assert takes.hear() == "ready"
    gives = child(both + giver, name)
    assert gives.hear() == "done" and takes.hear() == "done"
    gives.end()
    takes.end()


TAKER = """
say("ready")
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for value in iter(lambda: q.get(60), None):
        t = torch.from_dlpack(value)  # the stream waits for the sender's
        back.put(int(t.sum(dtype=torch.int64)))
say("done")
"""


def test_torch_tensors_go_over_in_the_order_of_streams(child, name):
    hand_over(
        child,
        name,
        TAKER,
        """
stream = torch.cuda.Stream()
n = 1 << 20
with torch.cuda.stream(stream):
    for i in range(200):
        x = baton.empty(n, "int32", device="cuda:0")
        t = torch.from_dlpack(x)
        torch.cuda._sleep(2_000_000)  # the stream is late
        t.fill_(i)
        q.put(x, stream=stream)
        assert back.get(60) == i * n, i
q.put(None)
say("done")
""",
    )


def test_torch_and_baton_share_one_context(child):
    c = child("""
import torch
torch.zeros(1, device="cuda:0")
torch.cuda.synchronize()
free, _ = torch.cuda.mem_get_info()
x = baton.zeros(1024, device="cuda:0")
t = torch.from_dlpack(x)
assert t.data_ptr() and t.device.index == 0 and not t.any()
after, _ = torch.cuda.mem_get_info()
say(free - after)  # a second context would take hundreds of MiB
""")
    assert int(c.hear()) <= 64 << 20
    c.end()


@pytest.mark.parametrize("how", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_torch_memory_is_copied_into_a_slab_whatever_allocated_it(child, how):
    c = child(
        """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = sys.argv[1]
import torch
t = torch.arange(100_000, device="cuda:0")
x = baton.share({"t": t, "strided": t.reshape(100, 1000)[:, :10].contiguous()})
assert torch.equal(x["t"].torch(), t) and x["t"].device == "cuda:0"
say("done")
""",
        how,
    )
    assert c.hear() == "done"
    c.end()


BORROWER = """
say("ready")
for x in iter(lambda: q.get(60), None):
    t = torch.from_dlpack(x)
    back.put(int(t.sum(dtype=torch.int64)))
    t += 1
    torch.cuda.synchronize()
    del x, t
    back.put("let go")
say("done")
"""


def test_torch_memory_is_lent_as_it_lies(child, name):
    hand_over(
        child,
        name,
        BORROWER,
        """
for i in range(50):
    t = torch.full((100_000,), i, dtype=torch.int32, device="cuda:0")
    x = baton.share(t[100:], copy=False)
    q.put(x)
    del x
    assert back.get(60) == i * 99_900 and back.get(60) == "let go"
    assert int(t.sum()) == i * 100_000 + 99_900, i  # the same memory
    if i % 10 == 9:
        del t
        torch.cuda.empty_cache()
q.put(None)
say("done")
""",
    )


@pytest.mark.parametrize("how", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_torch_memory_that_cannot_be_lent_is_refused(child, how):
    c = child(
        """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = sys.argv[1]
import torch
t = torch.ones(100_000, device="cuda:0")
try:
    baton.share(t, copy=False)
    say("lent")
except baton.Unsupported as e:
    say("copy=True" in str(e))
""",
        how,
    )
    assert c.hear() == "True"
    c.end()


def test_torch_allocates_in_slabs(child, name):
    hand_over(
        child,
        name,
        BORROWER,
        """
import baton.torch
with torch.cuda.use_mem_pool(baton.torch.cuda_pool()):
    for i in range(50):
        t = torch.full((100_000,), i, dtype=torch.int32, device="cuda:0")
        q.put(t)
        assert back.get(60) == i * 100_000 and back.get(60) == "let go"
        assert int(t.sum()) == (i + 1) * 100_000, i  # the same memory
q.put(None)
say("done")
""",
    )


def test_weights_are_switched_without_a_copy():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "20 revisions on cuda:0, 2 readers" in done.stdout


@pytest.mark.parametrize(
    "library",
    [
        """
import cupy as xp
from cupy import from_dlpack
on_gpu = lambda a: isinstance(a, xp.ndarray)
address = lambda a: a.data.ptr
""",
        """
import jax.numpy as xp
from jax.dlpack import from_dlpack
on_gpu = lambda a: next(iter(a.devices())).platform == "gpu"
address = lambda a: a.unsafe_buffer_pointer()
""",
    ],
    ids=["cupy", "jax"],
)
def test_other_libraries_view_a_tensor_and_give_theirs(child, name, library):
    need("cupy" if "cupy" in library else "jax")
    preset = "import os\nos.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'\n"
    hand_over(
        child,
        name,
        preset
        + library
        + """
say("ready")
for x in iter(lambda: q.get(60), None):
    a = from_dlpack(x)
    assert on_gpu(a) and address(a) == torch.from_dlpack(x).data_ptr()  # it lies where it lay
    back.put(float(a.sum()))
    del a
say("done")
""",
        preset
        + library
        + """
for i in range(20):
    a = xp.full((256, 256), i, "float32")
    x = baton.share(a)
    assert x.device == "cuda:0"
    q.put(x)
    assert back.get(60) == i * 65536.0, i
q.put(None)
say("done")
""",
    )


@pytest.mark.parametrize("road", ["baton.torch.multiprocessing", "torch.multiprocessing"])
def test_torchs_tensors_go_through_the_drop_in_by_torchs_road(tmp_path, road):
    """With one of the CPU beside it in the same item; nothing of the GPU's is copied."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import torch, baton, baton.torch
import {road} as mp

def add(inbox, done):
    item = inbox.get()
    item["gpu"].add_(1), item["cpu"].add_(1)
    torch.cuda.synchronize()
    done.put(item["gpu"].device.type)
    del item

if __name__ == "__main__":
    baton.torch.install()
    ctx = mp.get_context("spawn")
    inbox, done = ctx.Queue(), ctx.SimpleQueue()
    p = ctx.Process(target=add, args=(inbox, done))
    p.start()
    item = {{"gpu": torch.zeros(1000, device="cuda:0"), "cpu": torch.zeros(1000)}}
    inbox.put(item)
    print(done.get(), item["gpu"].sum().item(), item["cpu"].sum().item(), baton.share(item["cpu"], copy=False).nbytes)
    p.join()
"""
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "cuda 1000.0 1000.0 4000\n", done.stderr
