"""The queues, pools and contexts of baton.torch.multiprocessing."""

import concurrent.futures
import gc
import json
import multiprocessing.connection
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

import baton
import numpy as np
import pytest
import torch.multiprocessing as stock
from conftest import PATIENCE, command, eventually
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


def test_errors_are_puts_and_lose_nothing():
    q = mp.Queue()
    grown = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        q.put(grown)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        q.put(lambda: 1)
    q.put(1)
    assert q.get(timeout=PATIENCE) == 1
    with pytest.raises(queue.Empty):
        q.get_nowait()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.01)
    q.close()
    for use in (lambda: q.put(1), q.get):
        with pytest.raises(ValueError, match="is closed"):
            use()
    q.join_thread()
    with pytest.raises(ValueError, match="at most 65536"):
        mp.Queue(1 << 17)


def put_all(q, n):
    for i in range(n):
        q.put((i, torch.full((2,), float(i))))


def test_a_queue_without_maxsize_takes_all_there_is(ctx):
    q = ctx.Queue()
    put_all(q, 2000)
    assert q.qsize() == 2000 and not q.full()
    p = ctx.Process(target=put_all, args=(q, 1000))
    p.start()
    got = [q.get(timeout=PATIENCE) for _ in range(3000)]
    p.join(PATIENCE)
    assert p.exitcode == 0 and q.empty()
    assert sorted(i for i, _ in got) == sorted([*range(2000), *range(1000)])
    assert all(t.tolist() == [i, i] for i, t in got)


def put_within(q, go, n):
    go.wait()
    put_all(q, n)


def test_maxsize_counts_the_items_of_all_senders(ctx):
    q, go = ctx.Queue(3), ctx.Event()
    senders = [ctx.Process(target=put_within, args=(q, go, 40)) for _ in range(3)]
    for p in senders:
        p.start()
    go.set()
    eventually(q.full, "three items")
    with pytest.raises(queue.Full):
        q.put(1, timeout=0.05)
    with pytest.raises(queue.Full):
        q.put_nowait(1)
    got = []
    for _ in range(120):
        assert q.qsize() <= 3
        got.append(q.get(timeout=PATIENCE)[0])
    for p in senders:
        p.join(PATIENCE)
    assert sorted(got) == sorted([*range(40)] * 3) and q.empty()
    q.put(1)


def put_for_ever(q):
    while True:
        q.put(torch.ones(1))


def take_for_ever(q):
    while True:
        q.get()


@pytest.mark.parametrize("target", [put_for_ever, take_for_ever])
def test_a_killed_process_takes_no_place_along(target):
    ctx = mp.get_context("fork")
    q = ctx.Queue(2)
    other = take_for_ever if target is put_for_ever else put_for_ever
    for _ in range(12):
        killed, partner = ctx.Process(target=target, args=(q,)), ctx.Process(target=other, args=(q,))
        killed.start()
        partner.start()
        killed.join(0.05)  # at any step
        for p in (killed, partner):
            os.kill(p.pid, signal.SIGKILL)
            p.join(PATIENCE)
    while q.qsize():
        q.get(timeout=PATIENCE)
    q.put(1, timeout=PATIENCE)
    q.put(2, timeout=PATIENCE)
    assert q.full() and (q.get(), q.get()) == (1, 2)


def put_and_die(q, put):
    q.put(torch.arange(3))
    put.set()
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_put_outlives_its_sender(ctx):
    q, put = ctx.Queue(), ctx.Event()
    p = ctx.Process(target=put_and_die, args=(q, put))
    p.start()
    assert put.wait(PATIENCE)
    p.join(PATIENCE)
    assert p.exitcode == -signal.SIGKILL and q.get(timeout=PATIENCE).tolist() == [0, 1, 2]


def work(tasks, results):
    while (t := tasks.get()) is not None:
        results.put(t * 2)
        tasks.task_done()
    tasks.task_done()


def test_joinable_queue(ctx):
    tasks, results = ctx.JoinableQueue(), ctx.Queue()
    p = ctx.Process(target=work, args=(tasks, results))
    p.start()
    for i in range(20):
        tasks.put(torch.tensor(i))
    tasks.put(None)
    tasks.join()
    p.join(PATIENCE)
    assert sorted(results.get(timeout=PATIENCE).item() for _ in range(20)) == list(range(0, 40, 2))
    with pytest.raises(ValueError, match="too many times"):
        tasks.task_done()


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


def test_readers_are_waited_for():
    ctx = mp.get_context("fork")
    full, empty = ctx.SimpleQueue(), ctx.Queue()
    readers = [full._reader, empty._reader]
    assert multiprocessing.connection.wait(readers, 0) == []
    with Echo(ctx) as e:
        e(full)  # a queue goes through a queue
    full.put(torch.ones(1))
    assert multiprocessing.connection.wait(readers, PATIENCE) == [full._reader]
    assert full._reader.poll() and full._reader.recv().item() == 1
    assert multiprocessing.connection.wait(readers, 0) == [] and not full._reader.poll()
    late = threading.Timer(0.05, empty.put, ["late"])
    late.start()
    assert empty._reader.poll(PATIENCE) and multiprocessing.connection.wait(readers, PATIENCE) == [empty._reader]
    assert empty.get() == "late"


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


def test_queues_of_loaders_that_were_left_early_end(monkeypatch):
    def queues():
        return json.loads(command("status", "--json"))["counts"]["queues"]

    gc.collect()
    before = queues()
    monkeypatch.setattr(mp.queue, "_KEPT", PATIENCE)
    for _ in range(3):
        for _ in DataLoader(Images(), batch_size=2, num_workers=2, multiprocessing_context=mp.get_context("fork")):
            break
    assert queues() > before  # a process may still open them
    monkeypatch.setattr(mp.queue, "_KEPT", 0.0)
    mp.queue._on_the_way.all.clear()
    gc.collect()
    eventually(lambda: queues() <= before, "the loaders' queues to end with what was in them")


def die_in_put(q, waits):
    waits.set()
    q.put(torch.zeros(1))  # there is no place


def test_a_killed_putter_leaves_nothing_to_be_done():
    ctx = mp.get_context("fork")
    q, waits = ctx.JoinableQueue(1), ctx.Event()
    q.put(torch.zeros(1))
    p = ctx.Process(target=die_in_put, args=(q, waits))
    p.start()
    assert waits.wait(PATIENCE)
    p.join(0.2)  # until it waits for a place
    os.kill(p.pid, signal.SIGKILL)
    p.join(PATIENCE)
    q.get(timeout=PATIENCE)
    q.task_done()
    joined = threading.Thread(target=q.join, daemon=True)
    joined.start()
    joined.join(PATIENCE)
    assert not joined.is_alive()


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


def number(i):
    return i


def tensors(i):
    return {"made": torch.full((300,), i)}


def put_until_told(q, make, n, put):
    for i in range(n):
        q.put(make(i))
        put.value = i + 1


@pytest.mark.parametrize(("make", "n", "most"), [(number, 5000, 2047), (tensors, 600, 256)])
def test_a_simple_queues_sender_waits_for_its_takers(ctx, make, n, most):
    q, put = ctx.SimpleQueue(), ctx.Value("i", 0)
    p = ctx.Process(target=put_until_told, args=(q, make, n, put))
    p.start()
    eventually(lambda: put.value == most, "as many as may be under way")
    got = [q.get() for _ in range(n)]
    assert [v if make is number else v["made"][0].item() for v in got] == list(range(n))
    p.join(PATIENCE)
    assert p.exitcode == 0


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


def test_a_finalizer_may_put_many_into_another_queue():
    data, log = mp.SimpleQueue(), mp.SimpleQueue()

    class Noted:
        def __init__(self):
            self.me = self

        def __del__(self):
            log.put("gone")

    gc.disable()
    try:
        for _ in range(1500):
            Noted()
        gc.enable()
        while log.empty():
            data.put([torch.ones(1), [[] for _ in range(50)]])
            data.get()
        gc.collect()
        assert log._carrier.qsize() == 1500
    finally:
        gc.enable()


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_queue_that_was_waited_for_leaves_nothing():
    def use():
        q = mp.SimpleQueue()
        q.put(1)
        assert multiprocessing.connection.wait([q._reader], PATIENCE) and q.get() == 1
        return q._reader

    use()
    was = descriptors()
    for _ in range(50):
        end = use()
    with pytest.raises(OSError, match="closed"):
        end.recv()
    del end
    eventually(lambda: descriptors() <= was, "no descriptor of theirs")


def test_bounded_queues_end_with_their_last_use():
    for _ in range(4200):  # more than a broker has topics
        q = mp.Queue(2)
        q.put(1)
        assert q.get() == 1


def test_a_closed_queue_is_of_no_use_here():
    for q, error in ((mp.SimpleQueue(), OSError), (mp.Queue(), ValueError)):
        reader = q._reader
        q.put(1)
        assert not reader.closed
        q.close()
        assert reader.closed
        with pytest.raises(error, match="closed"):
            q.put(1)
        with pytest.raises(error, match="closed"):
            q.get()
        with pytest.raises(OSError, match="closed"):
            q.empty()


def test_a_queue_that_was_passed_on_ends_by_itself(monkeypatch):
    def queues():
        return json.loads(command("status", "--json"))["counts"]["queues"]

    monkeypatch.setattr(mp.queue, "_KEPT", 0.3)
    before = queues()
    q = mp.Queue()
    q.put(torch.ones(1))
    p = mp.get_context("spawn").Process(target=len, args=([q],))
    p.start()
    p.join(PATIENCE)
    del q, p
    gc.collect()
    eventually(lambda: queues() <= before, "the queue to end, though nothing else travels")


PUTS_WHEN_COLLECTED = """
import gc, sys, torch, baton.torch.multiprocessing as mp

queues = mp.Queue(), mp.SimpleQueue(), mp.Queue(5000), mp.JoinableQueue()

class Puts:
    def __init__(self):
        self.me = self

    def __del__(self):
        for q in queues:
            q.put(torch.zeros(1))

gc.set_threshold(1)  # a collection wherever anything is made
n = 0
for _ in range(200):
    Puts()
    for q in queues:
        q.put([torch.ones(2), torch.ones(3)])
    for q in queues:
        while not q.empty():
            q.get()
            n += 1
print(n > 800)
"""


def test_finalizers_may_put_while_something_is_put():
    done = subprocess.run(
        [sys.executable, "-c", PUTS_WHEN_COLLECTED], capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert done.stdout == "True\n", done.stderr


def put_and_end(queue):
    queue.put(3)


def test_what_a_process_put_before_its_end_is_there_at_its_end():
    context = mp.get_context("fork")
    for _ in range(60):
        queue = context.SimpleQueue()
        process = context.Process(target=put_and_end, args=(queue,))
        process.start()
        ready = multiprocessing.connection.wait([queue._reader, process.sentinel], PATIENCE)
        assert queue._reader in ready or queue.empty()
        assert queue.get() == 3
        process.join()
        assert process.sentinel in multiprocessing.connection.wait([queue._reader, process.sentinel], 0)
