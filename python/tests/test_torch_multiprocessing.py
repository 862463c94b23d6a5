"""Values, pools and contexts of baton.torch.multiprocessing."""

import concurrent.futures
import gc
import json
import multiprocessing.connection
import multiprocessing.forkserver
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
from typing import Any

import baton
import numpy as np
import pytest
import torch.multiprocessing as stock
from conftest import PATIENCE, command, eventually, lives
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader
from torch_kit import Echo, Images, ctx, fill, lies_in_baton, module, storage_of, torch

mp: Any = None  # the drop-in, by the fixture `module`


def test_every_name_of_torchs_is_there():
    assert not [n for n in dir(stock) if not hasattr(mp, n)]
    for part in ("queue", "pool", "reductions", "spawn"):
        of_torch = __import__(f"torch.multiprocessing.{part}", fromlist=["x"])
        own = __import__(f"baton.torch.multiprocessing.{part}", fromlist=["x"])
        assert not [n for n in getattr(of_torch, "__all__", ["Pool"][: part == "pool"]) if not hasattr(own, n)]
    assert callable(mp.spawn) and mp.spawn is stock.spawn and mp.reductions.ForkingPickler
    assert mp.get_all_sharing_strategies() == stock.get_all_sharing_strategies()


def test_what_one_process_writes_others_see_through_every_view(ctx):
    x = torch.arange(10.0)
    part, grid = x[2:5], x.view(2, 5)
    with Echo(ctx) as e:
        back = e(part)
        assert storage_of(back) == storage_of(x) and back.storage_offset() == 2
        x[2] = 77
        assert back[0] == 77 and grid[0, 2] == 77 and x.is_shared() and grid.is_shared()


def test_a_receiver_writes_what_the_sender_has(ctx):
    x, inbox, done = torch.zeros(3, 4), ctx.Queue(), ctx.Event()
    inbox.put(x[1])
    p = ctx.Process(target=fill, args=(inbox, done))
    p.start()
    assert done.wait(PATIENCE)
    p.join(PATIENCE)
    assert x.tolist() == [[0] * 4, [4] * 4, [0] * 4]


def hand_on(q, back, model, part, plain, go):
    part.share_memory_()
    assert part.is_shared() and baton.share(part.numpy(), copy=False).shape == (3,)
    q.put(model.weight)
    q.put(part)
    q.put({"all": [part, model.bias.data], "model": model, "made": torch.ones(2), "plain": plain[1:]})
    assert storage_of(back.get(timeout=PATIENCE)) == storage_of(part)
    q.put([t.fill_(2) for t in (part, plain)])
    assert go.wait(PATIENCE)


@pytest.mark.parametrize("road", ["drop-in", "stock"])
@pytest.mark.parametrize("line", ["child", "grandchild"])
def test_a_forked_child_hands_on_what_its_parent_shared(road, line):
    ctx: Any = (stock if road == "stock" else mp).get_context("fork")
    model, x, plain = torch.nn.Linear(3, 2), torch.zeros(10).share_memory_(), torch.zeros(4)
    model.share_memory()
    q, back, go = ctx.Queue(), ctx.Queue(), ctx.Event()
    arguments = (q, back, model, x[2:5], plain, go)
    p = ctx.Process(target=hand_on if line == "child" else start_to_hand_on, args=arguments)
    p.start()
    weight, part, rest = (q.get(timeout=PATIENCE) for _ in range(3))
    again, others = rest["all"]
    with torch.no_grad():
        x.fill_(3), model.weight.fill_(5), model.bias.fill_(7)
    assert (part == 3).all() and (weight == 5).all() and (rest["model"].weight == 5).all() and (others == 7).all()
    assert storage_of(part) == storage_of(again) == storage_of(x) and storage_of(weight) == storage_of(model.weight)
    assert rest["made"].tolist() == [1, 1]
    back.put(x[1:])
    _, theirs = q.get(timeout=PATIENCE)
    assert x.tolist() == [3, 3, 2, 2, 2, 3, 3, 3, 3, 3]
    # What the parent had not shared is the child's own, as in torch.
    assert theirs.tolist() == [2, 2, 2, 2] and rest["plain"].tolist() == [2, 2, 2] and plain.tolist() == [0, 0, 0, 0]
    go.set()
    p.join(PATIENCE)
    assert p.exitcode == 0


def start_to_hand_on(*arguments):
    p = stock.get_context("fork").Process(target=hand_on, args=arguments)
    p.start()
    p.join(PATIENCE)
    assert p.exitcode == 0


def hand_on_late(q, x, told):
    assert told.recv() == "gone"
    q.put(x[1:])
    assert told.recv() == "taken"


def test_a_forked_child_hands_on_what_its_parent_has_released():
    ctx = mp.get_context("fork")
    x, q = torch.arange(100_000.0).share_memory_(), ctx.Queue()
    told, tell = ctx.Pipe(duplex=False)
    p = ctx.Process(target=hand_on_late, args=(q, x, told))
    p.start()
    del x
    gc.collect()
    own = [torch.zeros(100_000).share_memory_() for _ in range(4)]  # what was free by then would be taken
    tell.send("gone")
    got = q.get(timeout=PATIENCE)
    assert torch.equal(got, torch.arange(1, 100_000.0)) and not any(t.any() for t in own)
    tell.send("taken")
    p.join(PATIENCE)
    assert p.exitcode == 0 and got[0] == 1


class Own:
    def __init__(self, x):
        self.x = x


def test_values_keep_what_they_have(ctx):
    base = torch.arange(12.0)
    shared: list[Any] = [base]
    with Echo(ctx) as e:
        v = e({"a": base, "b": [base[3:], base.view(3, 4).T], 3: (shared, shared), "t": base})
        assert v["a"] is v["t"] and v[3][0] is v[3][1] and v[3][0][0] is v["a"]
        assert len({storage_of(t) for t in (base, v["a"], *v["b"])}) == 1
        assert v["b"][1].stride() == (1, 4) and torch.equal(v["b"][1], base.view(3, 4).T)
        for scalar in (1, True, [None], "é", 1.5, b"bytes", 1 << 100, ..., {1, 2}, 2 + 1j, b"x" * 100_000):
            assert e(scalar) == scalar
        p = e(torch.nn.Parameter(base, requires_grad=False))
        assert type(p) is torch.nn.Parameter and not p.requires_grad and storage_of(p) == storage_of(base)
        leaf = e(torch.ones(2, requires_grad=True))
        assert leaf.requires_grad and leaf.is_leaf
        c = torch.tensor([1 + 2j, 3 - 1j])
        conj, neg = e(c.conj()), e(c.conj().imag)
        assert conj.is_conj() and torch.equal(conj, c.conj()) and storage_of(conj) == storage_of(c)
        assert neg.is_neg() and torch.equal(neg, c.conj().imag)
        a = e({"n": np.arange(5000).reshape(50, 100), "small": np.float32(2)})
        assert a["n"].shape == (50, 100) and a["n"].sum() == 12497500 and a["n"].flags.writeable and a["small"] == 2
        cube, wide = np.arange(600.0).reshape(2, 3, 100), np.broadcast_to(np.arange(300.0), (2, 300))
        fixed = cube.transpose(1, 0, 2)
        fixed.flags.writeable = False
        for array in (wide, fixed, cube.transpose(1, 0, 2), cube.T, cube[:, ::2], cube[0, 0, ::-1]):
            came = e(array)
            assert came.strides == pickle.loads(pickle.dumps(array)).strides and np.array_equal(came, array)
        own = e([Own(base), base])
        assert own[0].x is own[1]
        state = torch.nn.BatchNorm1d(3).state_dict()
        back = e(state)
        assert type(back) is type(state) and [*back] == [*state] and back._metadata == state._metadata
        assert all(storage_of(back[k]) == storage_of(state[k]) for k in state)
        state.other = base
        assert storage_of(e(state).other) == storage_of(base)
        scalar = e(torch.tensor(3.5))
        assert scalar.shape == () and scalar.item() == 3.5
        for whole in (torch.arange(6).view(2, 3), torch.ones(5, dtype=torch.bool)):
            back = e(whole)
            assert torch.equal(back, whole) and storage_of(back) == storage_of(whole)
            assert back.stride() == whole.stride() and back.dtype == whole.dtype
        assert e(torch.arange(6).view(2, 3).T).stride() == (1, 3)
        assert e(torch.empty(0, 3)).shape == (0, 3) and e(torch.empty(2, 3, device="meta")).is_meta
        assert torch.equal(e(base.to_sparse()).to_dense(), base)
        assert e(torch.zeros(3, dtype=torch.bfloat16)).dtype == torch.bfloat16
        assert e(torch.zeros(4, dtype=torch.float8_e4m3fn)).dtype == torch.float8_e4m3fn
        assert e(base.untyped_storage())._cdata == storage_of(base)
        x = e(baton.share(np.arange(3)))
        assert type(x) is baton.Tensor and x.tolist() == [0, 1, 2]
        nested = e(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged))
        assert [t.shape for t in nested.unbind()] == [(2,), (3,)]
        layer = torch.nn.Linear(2, 2)
        assert storage_of(e(layer).weight) == storage_of(layer.weight)


def test_a_recursive_value_is_kept(ctx):
    loop: list[Any] = [torch.ones(2)]
    loop.append(loop)
    deep: Any = torch.ones(1)
    for _ in range(200):
        deep = (deep,)
    with Echo(ctx) as e:
        back = e(loop)
        assert back[1] is back and torch.equal(back[0], torch.ones(2))
        back = e(deep)
        while type(back) is tuple:
            (back,) = back
        assert torch.equal(back, torch.ones(1))


class Marked(torch.Tensor):
    """A plain subclass."""


def test_a_subclass_of_torchs_keeps_its_class_and_its_storage():
    x = torch.arange(6.0)
    marked = x.as_subclass(Marked)
    with Echo(mp.get_context("fork")) as e:
        for sent in (marked, marked[2:], [marked], {"a": marked, "b": x}):
            back = e(sent)
            got = back[0] if type(back) is list else back["a"] if type(back) is dict else back
            assert type(got) is Marked and storage_of(got) == storage_of(x)
        assert type(back["b"]) is torch.Tensor and storage_of(back["b"]) == storage_of(x)
    x.fill_(3)
    assert torch.equal(got.as_subclass(torch.Tensor), torch.full((6,), 3.0))


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_what_has_no_memory_of_its_own_is_an_error_of_put(kind):
    q: Any = getattr(mp, kind)()
    with FakeTensorMode():
        fake = torch.zeros(3)
    for value in (fake, [fake, 1], {"a": fake, "b": torch.ones(1)}):
        with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
            q.put(value)
    functional = torch._to_functional_tensor(torch.zeros(3))
    for value in (functional, [functional, 1], {"a": functional, "b": torch.ones(1)}):
        with pytest.raises(RuntimeError, match="storage"):
            q.put(value)
    assert q.empty()
    q.put(torch.ones(2))
    assert q.get().tolist() == [1, 1]


def through(q, x):
    """What becomes of a tensor in a queue."""
    try:
        q.put(x)
        got = q.get()
        return got.dtype, got.is_quantized, got.int_repr().tolist(), storage_of(got) == storage_of(x)
    except RuntimeError as e:
        return type(e)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_a_quantized_tensor_goes_as_by_torchs_own_queue(per):
    def make():
        x = torch.arange(4.0).view(2, 2)
        if per == "tensor":
            return torch.quantize_per_tensor(x, 0.5, 1, torch.qint8)
        return torch.quantize_per_channel(x, torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.qint8)

    seen = [through(q, make()) for q in (mp.SimpleQueue(), mp.Queue(), stock.SimpleQueue())]
    baton.torch.uninstall()
    try:
        of_torch = through(stock.SimpleQueue(), make())
    finally:
        baton.torch.install()
    assert seen == [of_torch] * 3


def double(t):
    return t * 2


def add_one(t):
    t.add_(1)


def fail(t):
    raise KeyError("as asked")


def test_pool(ctx):
    x = torch.zeros(4)
    with ctx.Pool(2) as pool:
        assert [t.item() for t in pool.map(double, [torch.tensor(i) for i in range(50)])] == list(range(0, 100, 2))
        pool.map(add_one, [x[1:], x[:2]])
        with pytest.raises(KeyError, match="as asked"):
            pool.apply(fail, (x,))
        assert len(list(pool.imap_unordered(double, [x] * 10))) == 10
    assert x.tolist() == [1, 2, 1, 1]
    pool = ctx.Pool(1)
    pool.close()
    pool.join()


def test_executor_takes_the_context(ctx):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=ctx) as pool:
        assert [t.item() for t in pool.map(double, [torch.tensor(i) for i in range(10)])] == list(range(0, 20, 2))


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_data_loader_makes_batches_in_shared_memory(method):
    context = method and mp.get_context(method)
    loader = DataLoader(Images(), batch_size=4, num_workers=2, multiprocessing_context=context)
    for _ in range(2):
        batches = list(loader)
        assert [t.sum().item() for t, _ in batches] == [1152, 4224, 7296]
        assert [n.tolist() for _, n in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert all(lies_in_baton(t) for t, _ in batches)


def queues_of_all():
    """The numbers of all queues. Those that tests before have left end at any time."""
    gc.collect()
    rows = json.loads(command("ls", "topics", "--all", "--json"))
    return {row["id"] for row in rows if row["kind"] == "queue"}


def test_queues_of_loaders_that_were_left_early_end_with_their_workers(monkeypatch):
    mp.queue._on_the_way.all.clear()  # of other tests, which would end meanwhile
    before, ours = queues_of_all(), set()
    monkeypatch.setattr("baton.torch.multiprocessing._on_the_way.KEPT", 10 * PATIENCE)
    for _ in range(3):
        for _ in DataLoader(Images(), batch_size=2, num_workers=2, multiprocessing_context=mp.get_context("fork")):
            new = queues_of_all() - before - ours
            assert new
            ours |= new
            break
    eventually(lambda: not ours & queues_of_all(), "the loaders' queues to end with what was in them")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_queue_that_a_process_did_not_open_ends_with_it(monkeypatch, method):
    mp.queue._on_the_way.all.clear()  # of other tests, which would end meanwhile
    before, ctx = queues_of_all(), mp.get_context(method)
    monkeypatch.setattr("baton.torch.multiprocessing._on_the_way.KEPT", 10 * PATIENCE)
    go, q = ctx.Event(), ctx.Queue()
    q.put(torch.ones(1))
    p = ctx.Process(target=wait_for, args=(go, q))
    p.start()
    del q
    ours = queues_of_all() - before
    assert ours
    go.set()
    p.join(PATIENCE)
    eventually(lambda: not ours & queues_of_all(), "the queue to end with the process")


def test_a_fork_servers_process_is_not_over_while_it_is_started(monkeypatch):
    before, ctx, looked = queues_of_all(), mp.get_context("forkserver"), []
    read_signed = multiprocessing.forkserver.read_signed

    def look_first(fd):
        select.select([fd], [], [])  # the number of the process is there to be read
        looked.append(mp.queue._on_the_way._goes_on())
        return read_signed(fd)

    go, q = ctx.Event(), ctx.Queue()
    q.put(torch.ones(1))
    ours = queues_of_all() - before
    p = ctx.Process(target=wait_for, args=(go, q))
    with monkeypatch.context() as patched:
        patched.setattr("multiprocessing.forkserver.read_signed", look_first)
        p.start()
    del q
    assert looked == [True] and ours <= queues_of_all()
    go.set()
    p.join(PATIENCE)
    assert p.exitcode == 0


def wait_for(go, _q):
    go.wait()


LEAVES_TASKS = """
import sys, torch, baton.torch.multiprocessing as mp

def slow(x):
    import time
    time.sleep(60)

if __name__ == "__main__":
    pool = mp.get_context("fork").Pool(2)
    pool.map_async(slow, [torch.zeros(1)] * 1000, chunksize=1)
    pool.terminate()
    pool.join()
"""


def test_a_program_that_leaves_a_pools_tasks_ends(tmp_path):
    program = tmp_path / "leaves.py"
    program.write_text(LEAVES_TASKS)
    for _ in range(3):
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr


def test_arrays_are_the_receivers_own():
    shared = torch.arange(1000.0).share_memory_()
    seen, plain = shared.numpy(), np.arange(2000.0)
    for kind in (mp.SimpleQueue, mp.Queue, lambda: mp.Queue(3)):
        q = kind()
        q.put(
            [
                seen,
                plain[:1000],
                plain[500:1500],
                np.frombuffer(bytes(4000), np.uint8),
                np.asfortranarray(plain[:6].reshape(2, 3)),
            ]
        )
        shared[0] = plain[600] = -1
        view, first, second, fixed, columns = q.get()
        shared[0], plain[600] = 0, 600
        assert view[0] == 0 and first[600] == 600 and second[100] == 600 and columns.flags.f_contiguous
        for a in (view, first, second, fixed):
            a += 1
        assert shared[5] == 5 and plain[600] == 600 and second[0] == 501 and first[500] == 501
        q.put(view)  # what came out of Baton's memory, too
        view += 1
        assert q.get()[5] == 6


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pools_workers_end_with_its_process(method, child):
    c = child(
        """
import os, baton.torch.multiprocessing as mp
pool = mp.get_context(sys.argv[1]).Pool(2, maxtasksperchild=4)
pids = set()
while len(pids) < 4:  # two of them have taken another one's place
    pids.add(pool.apply(os.getpid))
say(*(w.pid for w in pool._pool))
sys.stdin.readline()
""",
        method,
    )
    pids = [int(pid) for pid in c.hear().split()]
    c.kill()
    eventually(lambda: not any(lives(pid) for pid in pids), "their end")
