"""The queues of baton.torch.multiprocessing."""

import concurrent.futures
import gc
import importlib
import json
import multiprocessing.connection
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import baton
import numpy as np
import pytest
import torch.multiprocessing as stock
from conftest import PATIENCE, command, eventually
from torch.utils.data import DataLoader
from torch_kit import Echo, Images, ctx, fill, lies_in_baton, module, storage_of, torch

mp: Any = None  # the drop-in, by the fixture `module`


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


def put_many_and_die(q, n):
    for i in range(n):
        q.put(i)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_waits_in_a_sender_is_killed_with_it():
    ctx = mp.get_context("fork")
    q = ctx.Queue()
    p = ctx.Process(target=put_many_and_die, args=(q, 2100))
    p.start()
    p.join(PATIENCE)
    assert p.exitcode == -signal.SIGKILL
    assert [q.get(timeout=PATIENCE) for _ in range(2047)] == list(range(2047))
    with pytest.raises(queue.Empty):
        q.get(block=False)


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


MANY_FILES = """
import concurrent.futures, multiprocessing.connection, os, resource, threading
import baton.torch.multiprocessing as mp
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
put, take = mp.SimpleQueue(), threading.Event()
def puts():
    for i in range(2):
        take.wait()
        take.clear()
        put.put(i)
threading.Thread(target=puts).start()
assert not put._reader.poll(0) and multiprocessing.connection.wait([put._reader], 0) == []
take.set()
ready = multiprocessing.connection.wait([put._reader])
say(ready == [put._reader] and put.get())
take.set()
say(put._reader.poll(None) and put.get())
with concurrent.futures.ProcessPoolExecutor(1, mp_context=mp.get_context("fork")) as pool:
    say(pool.submit(abs, -2).result())
"""


def test_readers_are_waited_for_among_many_files(child):
    c = child(MANY_FILES)
    assert [c.hear(), c.hear(), c.hear()] == ["0", "1", "2"]
    c.end()


def test_an_executor_is_told_of_each_result():
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=mp.get_context("fork")) as pool:
        results = [pool.submit(number, i) for i in range(2000)]
        waits = concurrent.futures.wait(results, PATIENCE).not_done
        assert not [r.cancel() for r in waits]
    assert [r.result() for r in results] == list(range(2000))


def take_one(q):
    q.get()


def test_what_another_process_took_is_not_seen_for_long():
    ctx = mp.get_context("fork")
    q = ctx.Queue()
    q.put(1)
    look = select.poll()
    look.register(q._reader.fileno(), select.POLLIN)
    assert look.poll(PATIENCE * 1000)
    p = ctx.Process(target=take_one, args=(q,))
    p.start()
    p.join(PATIENCE)
    with pytest.raises(queue.Empty):
        q.get(False)
    assert look.poll(0) == []
    q.put(2)
    assert look.poll(PATIENCE * 1000) and q.get() == 2


LOST = """
import select, threading
import baton.torch.multiprocessing as mp
patience = float(sys.argv[1])
lost = mp.Queue()
look = select.poll()
look.register(lost._reader.fileno(), select.POLLIN)
thread, = (t for t in threading.enumerate() if t.name == "baton-readable")
say(os.getpid())
say(bool(look.poll(1000 * patience)))
try:
    lost._reader.recv()
except baton.SessionLost:
    say("lost")
thread.join(patience)
say(thread.is_alive())
q = mp.Queue()
look.register(q._reader.fileno(), select.POLLIN)
q.put(1)
look.unregister(lost._reader.fileno())
say(bool(look.poll(1000 * patience)) and q.get())
"""


def test_who_waits_hears_that_the_session_is_lost(child):
    c = child(LOST, str(PATIENCE))
    command("evict", "--yes", c.hear())
    assert [c.hear(), c.hear(), c.hear(), c.hear()] == ["True", "lost", "False", "1"]
    c.end()


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

    monkeypatch.setattr("baton.torch.multiprocessing._on_the_way.KEPT", 0.3)
    before = queues()
    q = mp.Queue()
    q.put(torch.ones(1))
    p = mp.get_context("spawn").Process(target=len, args=([q],))
    p.start()
    p.join(PATIENCE)
    del q, p
    gc.collect()
    eventually(lambda: queues() <= before, "the queue to end, though nothing else travels")


def pass_on(told, said):
    """Of a child that was forked while a thread of its parent lets go of queues."""
    importlib.import_module("baton.torch.multiprocessing._on_the_way").KEPT = 0.1
    before = told.recv()
    q = mp.Queue()
    pickle.loads(ForkingPickler.dumps(q)).put(1)
    del q
    gc.collect()
    said.send(before)
    told.recv()


def test_a_queue_that_a_forks_child_has_passed_on_ends_by_itself():
    def queues():
        return json.loads(command("status", "--json"))["counts"]["queues"]

    kept = mp.Queue()
    ForkingPickler.dumps(kept)
    assert mp.queue._on_the_way.runs
    context = mp.get_context("fork")
    (told, tell), (hear, said) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    p = context.Process(target=pass_on, args=(told, said))
    p.start()
    eventually(lambda: queues() > 0, "the queue")
    before = queues()
    tell.send(before)
    assert hear.recv() == before
    eventually(lambda: queues() <= before, "the child's queue to end while the child lives")
    tell.send(None)
    p.join(PATIENCE)
    assert p.exitcode == 0


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


WAITS = """
import multiprocessing.connection, os, threading
import baton.torch.multiprocessing as mp
q = mp.SimpleQueue()
q.put(1)
def forks():
    if pid := os.fork():
        ended.append(os.waitpid(pid, 0)[1])
    else:
        assert multiprocessing.connection.wait([q._reader]) == [q._reader]
ended = []
t = threading.Thread(target=forks)
t.start()
t.join()
say(ended[0], q.get())
"""


def test_a_child_that_has_waited_for_a_queue_ends_with_the_thread_that_forked_it(child):
    c = child(WAITS)
    assert c.hear() == "0 1"
    c.end()
