"""Processes of baton.torch.multiprocessing: how they are started, forked, interrupted and ended."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch.multiprocessing as stock
from conftest import PATIENCE, eventually, need
from torch_kit import lies_in_baton, module, torch

mp: Any = None  # the drop-in, by the fixture `module`


def write(i, x, seen):
    x[i] += i + 1
    seen.put((i, x, lies_in_baton(x)))


@pytest.mark.parametrize("method", [None, "fork"])
def test_what_spawned_functions_write_is_seen(method):
    """Of None by `spawn`, which starts them by that; else by `start_processes`."""
    x, seen = torch.zeros(3), mp.get_context(method or "spawn").Queue()
    if method is None:
        mp.spawn(write, args=(x.share_memory_(), seen), nprocs=2)
    else:
        started = mp.start_processes(write, args=(x.share_memory_(), seen), nprocs=2, join=False, start_method=method)
        while not started.join(PATIENCE):
            pass
    assert x.tolist() == [1, 2, 0] and lies_in_baton(x)
    got = sorted((seen.get(timeout=PATIENCE) for _ in range(2)), key=lambda item: item[0])
    assert [(i, t.data_ptr(), lay) for i, t, lay in got] == [(i, x.data_ptr(), True) for i in range(2)]


def fails(_i, x):
    raise KeyError(f"as asked, with {x.sum().item()}")


def test_what_a_spawned_function_raises_is_raised():
    with pytest.raises(mp.ProcessRaisedException, match="as asked, with 3"):
        mp.start_processes(fails, args=(torch.ones(3),), nprocs=1, start_method="fork")


def test_a_sharing_strategy_is_accepted_and_changes_nothing():
    before = mp.get_sharing_strategy()
    try:
        for strategy in sorted(mp.get_all_sharing_strategies()):
            mp.set_sharing_strategy(strategy)
            assert mp.get_sharing_strategy() == stock.get_sharing_strategy() == strategy
            q, x = mp.Queue(), torch.zeros(3)
            q.put(x)
            got = q.get(timeout=PATIENCE)
            x.fill_(5)
            assert got.tolist() == [5, 5, 5] and lies_in_baton(torch.zeros(2).share_memory_())
    finally:
        mp.set_sharing_strategy(before)


def put_more_than_is_taken(q):
    for i in range(600):
        q.put(torch.tensor(i))
    q.cancel_join_thread()


def test_a_process_may_end_with_items_unsent():
    ctx = mp.get_context("fork")
    q = ctx.Queue()
    p = ctx.Process(target=put_more_than_is_taken, args=(q,))
    p.start()
    p.join(PATIENCE)
    try:
        assert p.exitcode == 0  # though nothing has been taken
    finally:
        p.kill()
    got = []
    while q.qsize():
        got.append(q.get(timeout=PATIENCE).item())
    assert got == list(range(len(got))) and 0 < len(got) < 600
    q.put(1)
    assert q.get(timeout=PATIENCE) == 1


@pytest.mark.parametrize("make", ["Queue()", "JoinableQueue(2)"])
def test_ctrl_c_ends_a_program_that_waits_for_an_item(child, make):
    c = child(
        """
import torch, baton.torch.multiprocessing as mp
q = eval("mp." + sys.argv[1])
q.put(torch.ones(1))
q.get()
try:
    say("waits")
    q.get()
except KeyboardInterrupt:
    say("interrupted")
    raise
""",
        make,
    )
    assert c.hear() == "waits"
    eventually(lambda: "S" in open(f"/proc/{c.pid}/stat").read().rsplit(")", 1)[1].split()[0], "the child to sleep")
    os.kill(c.pid, signal.SIGINT)
    assert c.hear() == "interrupted"
    assert c.process.wait(PATIENCE) == -signal.SIGINT


def put_one(q, i):
    q.put(("child", i, torch.tensor(i)))


@pytest.mark.parametrize("maxsize", [0, 500])
def test_a_process_is_forked_while_a_thread_puts(maxsize):
    ctx = mp.get_context("fork")
    q, enough, put = ctx.Queue(maxsize), threading.Event(), []

    def puts():
        while not enough.is_set():
            q.put(("thread", len(put), torch.tensor(len(put))))
            put.append(1)

    t = threading.Thread(target=puts, daemon=True)
    t.start()
    children, got = [], []
    for i in range(12):
        children.append(ctx.Process(target=put_one, args=(q, i)))
        children[-1].start()
        for _ in range(20):
            got.append(q.get(timeout=PATIENCE))

    def ended(what):
        while not q.empty():  # what has no place would wait
            got.append(q.get(timeout=PATIENCE))
            if len(got) % 100 == 0:
                break
        return not any(w.is_alive() for w in what)

    try:
        eventually(lambda: ended(children), "the children's end")
    finally:
        enough.set()
        for p in children:
            p.kill()
    eventually(lambda: ended([t]), "the thread's end")
    while len(got) < len(put) + len(children):
        got.append(q.get(timeout=PATIENCE))
    assert all(p.exitcode == 0 for p in children) and q.empty()
    numbers = {who: [i for w, i, x in got if w == who and x.item() == i] for who in ("thread", "child")}
    assert numbers["thread"] == list(range(len(put)))  # each once, in order
    assert sorted(numbers["child"]) == list(range(12))


# A program that does not import Baton, and what its workers say of memory that they share.
LOOKS = """
import os, sys, joblib, loky, torch

def work(x):
    own = torch.zeros(3).share_memory_()
    for line in open("/proc/self/maps"):
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= own.data_ptr() < high:
            return x.sum().item(), "memfd:baton" in line, "baton.torch" in sys.modules

if __name__ == "__main__":
    xs = [torch.full((4,), float(i)) for i in range(3)]
    with loky.ProcessPoolExecutor(1) as pool:
        said = [pool.submit(work, x).result() for x in xs]
    said += joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(work)(x) for x in xs)
    print(*sorted({s[0] for s in said}), {s[1:] for s in said})
"""


CLOSES = """
import os, threading
forked, closes, closed = threading.Event(), threading.Event(), []
os.register_at_fork(after_in_parent=forked.set)  # before the module's own, which waits for its thread then
import multiprocessing
import baton.torch.multiprocessing as mp
from baton.torch.multiprocessing import _on_the_way

class Waits:
    "The module os, but that the thread of the module waits for a fork where it has closed its own descriptor."
    made = set()
    def __getattr__(self, name): return getattr(os, name)
    def eventfd(self, *args):
        self.made.add(fd := os.eventfd(*args))
        return fd
    def close(self, fd):
        os.close(fd)
        if fd in self.made and threading.get_ident() != threading.main_thread().ident:
            closed.append(fd)
            closes.set()
            forked.wait()

_on_the_way.os = Waits()
ctx = mp.get_context("fork")
q, go = ctx.Queue(), multiprocessing.Event()
p = ctx.Process(target=go.wait)
p.start()
forked.clear()
go.set()
closes.wait()
while (fd := os.open("/dev/null", os.O_RDONLY)) != closed[0]: pass  # then the next descriptor has that number
os.close(fd)
other = ctx.Process(target=int)
other.start()
other.join()
say(other.exitcode)
"""


def test_the_child_of_a_fork_closes_nothing_that_is_closed(child):
    c = child(CLOSES)
    assert c.hear() == "0"
    c.end()


def test_workers_of_loky_and_joblib_inherit_the_variable(tmp_path):
    need("loky"), need("joblib")
    program = tmp_path / "program.py"
    program.write_text(LOOKS)
    env = os.environ | {"BATON_TORCH_INSTALL": "1"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=PATIENCE, env=env)
    assert done.stdout == "0.0 4.0 8.0 {(True, True)}\n", done.stderr
