"""What is hard on the drop-in: other devices, storages that are large, memory that is small.

BATON_BIG=1 makes a storage of more than 4 GiB, which takes that much memory.
"""

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import baton
import pytest
from conftest import PATIENCE, command, eventually
from torch_kit import module, torch

mp: Any = None  # the drop-in, by the fixture `module`


class OnGpu(torch.UntypedStorage):
    """What torch says of a storage on a GPU."""

    device = torch.device("cuda:0")


def test_a_storage_of_another_device_goes_by_torchs_road(monkeypatch):
    from baton.torch import _install

    seen = []
    torchs = _install._torchs()._replace(
        reduce=lambda s: (seen.append(s), ("torch's", ()))[1], share_memory_=lambda s: (seen.append(s), s)[1]
    )
    monkeypatch.setattr(_install, "_stock", torchs)
    storage = OnGpu(16)
    where = storage.data_ptr()
    assert _install.moves() and _install._reduce(storage) == ("torch's", ())
    assert storage.share_memory_() is storage and seen == [storage, storage]
    assert storage.data_ptr() == where and baton._native.storage_in_place(storage) is None
    other = torch.UntypedStorage(16)
    assert _install._reduce(other) != ("torch's", ()) and baton._native.storage_in_place(other) is not None


def test_a_tensor_of_batons_on_a_gpu_goes_by_batons_road(own, child, gpu):
    """By the stand-in of the driver: its taker has the memory itself."""
    c = child("""
import torch, baton.torch.multiprocessing as mp

x = baton.empty((4,), "int32", device="cuda:0")
x.copy_from(np.full(4, 3, "int32"))
q = mp.Queue()
q.put({"x": x, "t": torch.ones(2)})
got = q.get()
say(got["x"].device, got["t"].tolist(), type(got["x"]).__name__)
got["x"].copy_from(np.full(4, 7, "int32"))
say(x.cpu().tolist())
""")
    assert c.hear() == "cuda:0 [1.0, 1.0] Tensor"
    assert c.hear() == "[7, 7, 7, 7]"
    c.end()


def free():
    """Bytes of memory that are there."""
    return next(int(line.split()[1]) << 10 for line in open("/proc/meminfo") if line.startswith("MemAvailable"))


LARGE = """
import torch, baton.torch, torch.multiprocessing as stock
import baton.torch.multiprocessing as mp

def look(inbox, out):
    x, last = inbox.get()
    out.put((x.untyped_storage().nbytes(), x.shape[0], x[-1].item(), last[0].item(), last.storage_offset()))
    x[-2] = 5
    out.put(None)

n = (1 << 32) + 4096
for road in (mp, stock):
    ctx = road.get_context("fork")
    inbox, out = ctx.SimpleQueue(), ctx.SimpleQueue()
    x = baton.empty((n,), "uint8").torch()
    x[-1], x[-2] = 3, 0
    p = ctx.Process(target=look, args=(inbox, out))
    p.start()
    inbox.put((x, x[n - 1:]))
    got = out.get()
    assert out.get() is None
    p.join()
    say(got == (n, n, 3, 3, n - 1), x[-2].item(), baton.share(x, copy=False).nbytes == n)
    del x
"""


@pytest.mark.skipif(os.environ.get("BATON_BIG") != "1", reason="BATON_BIG=1 is not set: it takes 5 GiB of memory")
def test_a_storage_of_more_than_4_gib_goes_as_it_lies(own, child):
    if free() < 8 << 30:
        pytest.skip("less than 8 GiB of memory are free")
    command("limit", "--memory", "6G")
    c = child(LARGE)
    for _ in range(2):
        assert c.hear() == "True 5 True"
    c.end()


# A loader whose batches are twice what /dev/shm has.
SMALL_SHM = """
import os, torch, baton.torch
from torch.utils.data import DataLoader
baton.torch.install()
there = os.statvfs("/dev/shm")
rows = [torch.full((1 << 20,), float(i)) for i in range(8)]  # batches of 16 MiB
kept = list(DataLoader(rows, batch_size=4, num_workers=2)) + [torch.zeros(24 << 20).share_memory_()]
kept += list(DataLoader(rows, batch_size=4, num_workers=2))
print(there.f_blocks * there.f_frsize >> 20, sum(t.nbytes for t in kept) >> 20, [b[:, 0].tolist() for b in kept[:2]])
print(kept[2].sum().item(), os.listdir("/dev/shm"))
"""


def test_dev_shm_may_be_small():
    unshare = shutil.which("unshare")
    mount = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=64m none /dev/shm || exit 99; exec "$@"', "sh"]
    if unshare is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        why = "unshare is not installed" if unshare is None else "this machine refuses to make namespaces or to mount"
        if "unshare" in os.environ.get("BATON_REQUIRE", "").split(","):
            pytest.fail(why)
        pytest.skip(why)
    done = subprocess.run([*mount, sys.executable, "-c", SMALL_SHM], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "64 160 [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]\n0.0 []\n", done.stderr


def test_a_quota_that_is_full_in_a_worker_is_an_error_of_the_trainer(own, child):
    command("limit", "--session-memory", "64M")
    c = child("""
import torch, baton.torch
import baton.torch.multiprocessing as mp
from torch.utils.data import DataLoader
rows = [torch.zeros(1 << 22)] * 40  # batches of 32 MiB: a worker's second one is beyond its quota
for context in (None, mp.get_context("fork")):
    try:
        kept = list(DataLoader(rows, 2, num_workers=2, multiprocessing_context=context))
    except baton.QuotaExceeded as e:
        say("in DataLoader worker process" in str(e))
""")
    assert (c.hear(), c.hear()) == ("True", "True")
    c.end()


def test_a_sender_waits_for_the_memory_of_its_first_item(own, child):
    """As a DataLoader's worker does whose memory is in use by batches; it ended, and its trainer with it."""
    command("limit", "--memory", "64M")
    c = child("""
import baton.torch.multiprocessing as mp
ctx = mp.get_context("fork")
queues = ctx.SimpleQueue(), ctx.Queue(), ctx.Queue(3), ctx.JoinableQueue()
say("has them")
for q in queues:
    sys.stdin.readline()
    say("puts")
    q.put(1)
    say(q.get())
""")
    assert c.hear() == "has them"
    with baton.connect() as s:

        def fill():
            kept = []
            for size in (8 << 20, 1 << 20, 1 << 16, 1 << 12):
                try:
                    while True:
                        kept.append(s.empty((size,), "uint8"))
                except baton.QuotaExceeded:
                    pass
            return kept

        def refused_lanes():
            all = map(json.loads, command("events", "--kind", "refused", "--json", "-n", "1000").splitlines())
            return sum(e.get("times", 1) for e in all if e["details"].get("op") == "topic.write")

        for _ in range(4):
            kept, before = fill(), refused_lanes()
            c.process.stdin.write("\n")
            c.process.stdin.flush()
            assert c.hear() == "puts"
            eventually(lambda before=before: refused_lanes() > before, "a lane to be refused")
            for x in kept:
                x.release()
            assert c.hear() == "1"
    c.end()


def test_so_it_is_where_what_is_copied_has_no_memory(own, child):
    command("limit", "--session-memory", "32M")
    c = child("""
import torch
import baton.torch.multiprocessing as mp
from torch.utils.data import DataLoader
sizes = [8, 16, 1 << 26, 24]
def collate(rows):
    made = np.full(rows[0], 7, np.uint8)
    return made if kind == "array" else {"a": made} if kind == "dict" else made.tobytes()
for kind in ("array", "dict", "bytes"):
    seen, loader = [], iter(DataLoader(sizes, 1, num_workers=2, multiprocessing_context=mp.get_context("fork"), collate_fn=collate))
    while True:
        try:
            batch = next(loader)
            seen.append(len(batch["a"] if kind == "dict" else batch))
        except StopIteration:
            break
        except (baton.QuotaExceeded, baton.OutOfMemory) as e:
            seen.append("in DataLoader worker process" in str(e))
    say(seen)
""")
    assert [c.hear() for _ in range(3)] == ["[8, 16, True, 24]"] * 3
    c.end()
