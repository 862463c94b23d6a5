"""`baton.torch.install()` under stock torch, and how storages move into Baton's memory and stay there."""

import concurrent.futures
import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import baton
import numpy as np
import pytest
import torch.multiprocessing as stock
from conftest import PATIENCE, eventually, need
from torch.utils.data import DataLoader
from torch_kit import Echo, ctx, fill, lies_in_baton, module, storage_of, torch, uninstalled

mp: Any = None  # the drop-in, by the fixture `module`


def test_arrays_that_look_at_a_tensor_stay_valid_when_it_moves():
    t = torch.arange(1 << 16)
    a = t.numpy()
    t.share_memory_()
    t.fill_(0)
    assert a[-1] == 65535 and t.sum() == 0 and lies_in_baton(t)  # as torch: they part; unlike torch: no crash
    before = t.data_ptr()
    assert t.share_memory_().data_ptr() == before
    t = torch.arange(1 << 16)
    a = np.from_dlpack(t)
    t.share_memory_()
    torch.full((1 << 16,), 9), t.fill_(0)  # what would be given the former memory
    assert a[-1] == 65535


def test_a_shared_model_leaves_no_private_copy(child):
    c = child(
        """
import torch, baton.torch
baton.torch.install()
def private():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) >> 10
before = private()
m = torch.nn.Linear(8192, 8192, bias=False)  # 256 MiB
full = private()
m.share_memory()
say(full - before > 200, private() - before < 64, m.weight.is_shared())
"""
    )
    assert c.hear() == "True True True"
    c.end()


def test_a_tensor_of_batons_stays_where_it_lies_in_stock_torch(uninstalled):
    x = baton.zeros(4)
    t, own = x.torch(), torch.zeros(3)
    assert t.is_shared() and not own.is_shared()
    assert t.share_memory_() is t and lies_in_baton(t)
    ctx = stock.get_context("spawn")
    inbox, done = ctx.Queue(), ctx.Event()
    p = ctx.Process(target=fill, args=(inbox, done))
    p.start()
    inbox.put(t)
    assert done.wait(PATIENCE)
    p.join(PATIENCE)
    assert x.tolist() == [4, 4, 4, 4]
    own.share_memory_()
    with pytest.raises(baton.InvalidArgument):
        baton.share(own, copy=False)


def test_installed_torch_shares_in_batons_memory(ctx):
    own = stock.get_context(ctx._name)
    x, q, put = torch.zeros(3), own.Queue(), own.Event()
    p = own.Process(target=put_and_wait, args=(q, put))
    p.start()
    t = q.get(timeout=PATIENCE)
    assert t.tolist() == [0, 1, 2] and lies_in_baton(t)
    put.set()
    p.join(PATIENCE)
    values = own.SimpleQueue()
    values.put({"a": x, "b": [x[1:], (x.view(3, 1),)], "n": 1})
    back = values.get()
    assert len({storage_of(t) for t in (x, back["a"], back["b"][0], back["b"][1][0])}) == 1 and back["n"] == 1
    first, second = own.Pipe()
    first.send(x)
    assert second.recv().untyped_storage()._cdata == storage_of(x) and lies_in_baton(x)


WITHOUT_A_BROKER = """
import os, baton.torch, torch
try:
    baton.torch.install()
except baton.NoBroker as e:
    print(isinstance(e, ConnectionError), baton.torch._install.moves())
x = torch.zeros(2).share_memory_()
print(x.is_shared())
os.environ["BATON_ADDRESS"] = os.environ["LATER"]
print(baton.torch.install().storages, torch.zeros(2).share_memory_().is_shared(), baton.stats()["live"])
"""


def test_an_installation_without_a_broker_is_an_error_and_changes_nothing(broker, tmp_path):
    env = os.environ | {"BATON_BINARY": str(tmp_path / "none"), "XDG_RUNTIME_DIR": str(tmp_path), "LATER": broker}
    del env["BATON_ADDRESS"]
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_BROKER], capture_output=True, text=True, timeout=PATIENCE, env=env
    )
    assert done.stdout.splitlines()[:2] == ["True False", "True"] and done.stdout.splitlines()[2].startswith(
        "True True"
    ), done


def test_torch_shares_as_before_when_it_is_uninstalled(uninstalled):
    own, x = stock.get_context("fork"), torch.zeros(3)
    inbox, done = own.Queue(), own.Event()
    p = own.Process(target=fill, args=(inbox, done))
    p.start()
    inbox.put(x)
    assert done.wait(PATIENCE)
    p.join(PATIENCE)
    assert x.tolist() == [4, 4, 4] and x.is_shared() and p.exitcode == 0
    for t in (x, torch.zeros(3).share_memory_()):
        with pytest.raises(baton.InvalidArgument):
            baton.share(t, copy=False)


def add_one(x):
    return x.add_(1), lies_in_baton(x), torch.full((3,), x[0].item())


def test_the_standard_librarys_executor_shares_in_batons_memory():
    x = torch.zeros(4)
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        for n in range(1, 4):
            same, lay, made = pool.submit(add_one, x).result(PATIENCE)
            assert x.tolist() == [n] * 4 and lay and lies_in_baton(x) and storage_of(same) == storage_of(x)
            assert made.tolist() == [n] * 3 and lies_in_baton(made)
    same[0] = 9
    assert x[0] == 9 and made.tolist() == [3, 3, 3]


def change(inbox, out):
    td = inbox.get()
    td["a"].fill_(5)
    td["in", "b"].fill_(6)
    out.put([lies_in_baton(td["a"]), lies_in_baton(td["in", "b"]), td.batch_size])


def test_a_tensordict_lies_in_batons_memory():
    tensordict = need("tensordict")
    td = tensordict.TensorDict({"a": torch.zeros(2, 3), "in": {"b": torch.zeros(2)}}, [2])
    own = stock.get_context("fork")
    inbox, out = own.Queue(), own.Queue()
    p = own.Process(target=change, args=(inbox, out))
    p.start()
    inbox.put(td)
    assert out.get(timeout=PATIENCE) == [True, True, (2,)]
    p.join(PATIENCE)
    assert (td["a"] == 5).all() and (td["in", "b"] == 6).all() and lies_in_baton(td["a"])
    shared = tensordict.TensorDict({"a": torch.zeros(2)}, [2]).share_memory_()
    assert lies_in_baton(shared["a"])


def batch_of(rows, x, made):
    x = baton.zeros((len(rows), 4), dtype="float32") if made else x
    t = x.torch()
    torch.stack(rows, out=t)
    return t


@pytest.mark.parametrize("installed", [True, False])
def test_a_batch_in_batons_memory_is_not_copied(installed, request):
    if not installed:
        request.getfixturevalue("uninstalled")
    rows, x = [torch.full((4,), float(i)) for i in range(8)], baton.zeros((4, 4), dtype="float32")
    for made in (False, True):
        collate = functools.partial(batch_of, x=x, made=made)
        loader = DataLoader(rows, 4, num_workers=1, collate_fn=collate, multiprocessing_context="fork")
        batches = list(loader)
        assert all(lies_in_baton(b) for b in batches)
        if made:
            assert [b[:, 0].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        else:
            x.numpy()[1] = 77  # what the parent has given the workers
            assert all(b[:, 0].tolist() == [4, 77, 6, 7] for b in batches)


def put_and_wait(q, go):
    q.put(torch.arange(3))
    go.wait()


def test_no_descriptor_is_needed_for_each_tensor():
    code = """
import resource, torch, baton.torch.multiprocessing as mp
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
def many(q):
    q.put([torch.ones(100) for _ in range(400)])
    for _ in range(400):
        q.put(torch.ones(100_000))
ctx = mp.get_context("fork")
q = ctx.Queue()
p = ctx.Process(target=many, args=(q,))
p.start()
held = q.get()
held += [q.get() for _ in range(400)]
p.join()
print(len(held), sum(t.sum().item() for t in held))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "800 40040000.0\n", done.stderr


def test_memory_is_free_when_all_have_dropped_it():
    def live():
        baton._default.session().collect()
        return baton.stats()["live"]

    with Echo(mp.get_context("fork")) as e:
        for _ in range(2):
            before = live()
            for _ in range(50):
                e({"a": torch.ones(100_000), "b": [torch.ones(10), np.ones(1000)]})
            e(1)  # the last is dropped
            gc.collect()
            eventually(lambda: live() <= before + 8, "what went to and fro to be free")  # noqa: B023


def test_damaged_records_are_refused_or_stay_inside():
    pieces = [baton.share(np.zeros(4096, "uint8"))]
    x = pieces[0].torch()
    rest, own, records, _ = baton._native.take_apart([x[:64].view(torch.float32).view(4, 4).T, x[64:]], None)
    assert rest == [..., ...]
    for at in range(len(records)):
        for bit in (0, 6, 7):
            damaged = bytearray(records)
            damaged[at] ^= 1 << bit
            try:
                value = baton._native.put_together([..., ...], own, bytes(damaged))
            except (baton.Error, RuntimeError, AttributeError, TypeError, ValueError):
                continue
            for t in value:
                t.sum(), t.clone()  # it lies in the piece
    for cut in range(len(records)):
        with pytest.raises((baton.Error, RuntimeError)):
            baton._native.put_together([..., ...], own, records[:cut])
    with pytest.raises(baton.Error):
        baton._native.put_together([...], own, records)


def test_a_variable_installs_without_an_import():
    def run(last, **variables):
        code = f"import torch; x = torch.zeros(2).share_memory_(); {last}"
        env = os.environ | variables
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, env=env)

    look = "import baton; print(baton.share(x, copy=False).shape)"
    done = run(look, BATON_TORCH_INSTALL="1")
    assert done.stdout == "(2,)\n", done.stderr
    assert "InvalidArgument" in run(look, BATON_TORCH_INSTALL="0").stderr
    for value in ("true", "Yes", " on "):
        assert run(look, BATON_TORCH_INSTALL=value).stdout == "(2,)\n", value
    neither = run(look, BATON_TORCH_INSTALL="maybe").stderr
    assert "InvalidArgument" in neither and neither.count("BATON_TORCH_INSTALL=maybe: torch shares as ever") == 1
    for order in (
        "import baton.torch, torch",
        "import baton.torch.multiprocessing, torch",
        "from baton.torch import install; import torch",
        "import importlib.util; assert importlib.util.find_spec('torch'); import torch",
    ):
        code = f"{order}; x = torch.zeros(2).share_memory_(); {look}"
        env = os.environ | {"BATON_TORCH_INSTALL": "1"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, env=env)
        assert done.stdout == "(2,)\n", done.stderr
    without = run("print(x.is_shared())", BATON_TORCH_INSTALL="1", BATON_ADDRESS="/nowhere/b.sock")
    assert without.stdout == "True\n" and without.stderr.count("torch shares as ever") == 1


@pytest.mark.parametrize("road", ["install", "context"])
def test_a_broker_that_is_killed_in_mid_epoch_stops_no_training(own, child, road):
    c = child(
        """
import torch, baton.torch
import baton.torch.multiprocessing as mp
from torch.utils.data import DataLoader
rows = [torch.full((3, 16), float(i)) for i in range(64)]
context = mp.get_context("fork") if sys.argv[1] == "context" else None
total = 0.0
for n, batch in enumerate(DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context=context)):
    total += batch.sum().item()
    if n in (3, 7):
        say("at", n)
        sys.stdin.readline()
say(total)
""",
        road,
    )
    for n in (3, 7):
        assert c.hear() == f"at {n}"
        own.end(signal.SIGKILL if n == 3 else signal.SIGTERM)
        own.start()
        c.tell()
    assert c.hear() == str(48.0 * sum(range(64)))
    c.end()


# A DataLoader whose workers make rows from `gate` on when they are told to.
LOADER = """
import torch, baton.torch
if sys.argv[1] == "drop-in":
    import baton.torch.multiprocessing
baton.torch.install()
from torch.utils.data import DataLoader
go = torch.multiprocessing.Event()

class Row:
    def __init__(self, x):
        self.x = x

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        if i >= gate:
            go.wait()
        return torch.full((16,), float(i))

def loader(kind, **options):
    collate = {"own": lambda rows: Row(torch.stack(rows))}.get(kind)
    return DataLoader(Rows(), batch_size=4, num_workers=2, collate_fn=collate, persistent_workers=True, **options)

def first(batch):
    return (batch.x if isinstance(batch, Row) else batch)[:, 0].tolist()
"""


@pytest.mark.parametrize("road", ["install", "drop-in"])
@pytest.mark.parametrize("kind", ["default", "own"])
def test_an_epoch_goes_on_when_the_session_is_lost(own, child, road, kind):
    c = child(
        LOADER
        + """
gate = 24
it, seen = iter(loader(sys.argv[2])), []
seen += [n for _ in range(6) for n in first(next(it))]  # all there is: no item lies in the session
say("lost one", len(seen))
sys.stdin.readline()
go.set()
seen += [n for batch in it for n in first(batch)]
say(seen == list(range(64)))
""",
        road,
        kind,
    )
    assert c.hear() == "lost one 24"
    own.end(signal.SIGINT)  # for good
    own.start()
    c.tell()
    assert c.hear() == "True"
    c.end()


def test_an_item_that_lies_in_the_lost_session_is_an_error_and_the_others_come(own, child):
    c = child(
        LOADER
        + """
import time
gate = 16
all = loader("default", prefetch_factor=1)
it = iter(all)
assert first(next(it)) == [0, 1, 2, 3]
while it._worker_result_queue._reader.poll(0) is False:
    time.sleep(0.001)  # the next one is on its way
say("ready")
sys.stdin.readline()
go.set()
seen, lost = [], 0
while True:
    try:
        seen += first(next(it))
    except StopIteration:
        break
    except baton.SessionLost as e:
        assert "which is lost" in str(e) and "from DataLoader worker process" in str(e), e
        lost += 1
say(1 <= lost <= 2, len(seen) == 60 - 4 * lost, seen[-1])
say([n for batch in all for n in first(batch)] == list(range(64)))  # the next epoch
""",
        "install",
    )
    assert c.hear() == "ready"
    own.end(signal.SIGINT)
    own.start()
    c.tell()
    assert c.hear() == "True True 63.0"
    assert c.hear() == "True"
    c.end()


@pytest.mark.parametrize("first", ["text", "tensor", "parameter"])
def test_no_item_is_left_out_when_the_session_is_lost(own, child, first):
    c = child(
        """
import torch, torch.multiprocessing as mp, baton.torch
baton.torch.install()
q, kept = mp.Queue(), torch.zeros(3).share_memory_()
q.put("begun")
assert q.get() == "begun"  # its thread runs
say("ready")
sys.stdin.readline()
for first in ("text", sys.argv[1]):
    items = {"text": "text", "tensor": torch.ones(2), "parameter": torch.nn.Parameter(torch.ones(2))}
    say(torch.zeros(1).is_shared())
    q.put(items[first])
    q.put(kept + 1)
    got = q.get(timeout=60), q.get(timeout=60)
    say(got[0] if first == "text" else got[0].tolist(), got[1].tolist(), got[1].is_shared())
""",
        first,
    )
    assert c.hear() == "ready"
    own.end(signal.SIGINT)  # for good: the session is lost
    if first == "text":  # which needs no broker
        c.tell()
        assert c.hear() == "False"
        own.start()
    else:
        own.start()
        c.tell()
        assert c.hear() == "False"
    assert c.hear() == "text [1.0, 1.0, 1.0] True"
    assert c.hear() == "False"
    assert c.hear() == f"{'text' if first == 'text' else [1.0, 1.0]} [1.0, 1.0, 1.0] True"
    c.end()


def test_a_text_needs_no_broker(own, child):
    c = child(
        """
import torch, torch.multiprocessing as mp, baton.torch
baton.torch.install()
q = mp.Queue()
say("ready")
sys.stdin.readline()
q.put(["text", {"n": 1}])
say(q.get(timeout=20), torch.zeros(2).is_shared(), torch.zeros(0).is_shared())
"""
    )
    assert c.hear() == "ready"
    own.end(signal.SIGINT)
    c.tell()
    assert c.hear() == "['text', {'n': 1}] False False"
    c.end()


def test_threads_that_put_one_tensor_share_it():
    for _ in range(20):
        q, x = mp.Queue(), torch.zeros(1000)
        threads = [threading.Thread(target=q.put, args=(x[k:],)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        x.fill_(3)
        got = [q.get(timeout=PATIENCE) for _ in threads]
        assert all(storage_of(t) == storage_of(x) and (t == 3).all() for t in got)


def test_what_was_put_keeps_its_size():
    q, x = mp.Queue(), torch.zeros(4)
    q.put(x)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(1000)
    assert q.get(timeout=PATIENCE).shape == (4,)


def test_a_storage_that_is_made_empty_lets_its_memory_go():
    x = torch.arange(4.0).share_memory_()
    view, other = x[1:], baton.share(x, copy=False)
    assert x.untyped_storage().resize_(0).nbytes() == 0
    assert baton.share(other.torch(), copy=False).tolist() == [0, 1, 2, 3]  # other owners keep it
    x.untyped_storage().resize_(16)
    x.fill_(5)
    assert view.tolist() == [5, 5, 5] and other.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["int4", "uint1", "uint7", "float4_e2m1fn_x2", "float8_e4m3fn", "int8", "bits8"])
def test_every_type_of_torchs_arrives_as_it_is(dtype):
    x = torch.empty(4, dtype=getattr(torch, dtype))
    for q in (mp.SimpleQueue(), stock.SimpleQueue()):
        for sent in (x, x[1:], {"a": x, "b": x[:2]}):
            q.put(sent)
            got = q.get()
            for a, b in zip(*(list(v.values()) if isinstance(v, dict) else [v] for v in (sent, got)), strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape and storage_of(a) == storage_of(b)


def test_what_has_no_capsule_says_so_as_ever():
    baton.empty(3).torch()
    with pytest.raises(BufferError):
        torch.eye(2).to_sparse().__dlpack__()
    assert torch.Tensor.__dlpack__.__name__ == "__dlpack__"


def test_an_item_that_no_memory_is_left_for_is_an_error_of_put(own, child):
    c = child(
        """
import torch, baton.torch.multiprocessing as mp
q, kept = mp.Queue(), torch.ones(4)
q.put(kept)
try:
    q.put(torch.ones(1 << 29))  # 2 GiB of 1
except baton.Error as e:
    say(type(e).__name__)
q.put(1)
say(q.get().sum().item(), q.get(), kept.sum().item())
"""
    )
    assert c.hear() in ("OutOfMemory", "QuotaExceeded")
    assert c.hear() == "4.0 1 4.0"
    c.end()


@pytest.mark.parametrize("context", ["None", 'mp.get_context("fork")'])
@pytest.mark.parametrize("collate", ["None", "torch.stack", 'lambda rows: {"rows": torch.stack(rows)}'])
def test_memory_that_ends_in_a_worker_is_an_error_of_the_trainer(own, child, context, collate):
    c = child(
        """
import torch, baton.torch
import baton.torch.multiprocessing as mp
from torch.utils.data import DataLoader
rows = [torch.zeros(1 << 24)] * 40  # batches of 128 MiB, of 1 GiB
context, collate = map(eval, sys.argv[1:])
try:
    kept = list(DataLoader(rows, 2, num_workers=2, collate_fn=collate, multiprocessing_context=context))
except baton.Error as e:
    say(type(e).__name__, "in DataLoader worker process" in str(e))
""",
        context,
        collate,
    )
    kind, told = c.hear().split()
    assert kind in ("OutOfMemory", "QuotaExceeded") and told == "True"
    c.end()


def test_a_process_that_shares_nothing_starts_without_the_broker(own, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing, os, signal, sys, baton.torch

def idle():
    print("idle", baton.torch._install.moves(), flush=True)

if __name__ == "__main__":
    baton.torch.install()
    os.kill(int(sys.argv[1]), signal.SIGKILL)
    p = multiprocessing.get_context("spawn").Process(target=idle)
    p.start()
    p.join()
    print(p.exitcode)
"""
    )
    done = subprocess.run(
        [sys.executable, program, str(own.process.pid)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "idle True\n0\n", done.stderr
