"""Parent → child → parent by every way of starting processes, and children that die."""

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys

import baton
import numpy as np
import pytest
from conftest import PATIENCE, eventually, handed_over, listing, need
from worker import Doubler, double, doubled

METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing(method):
    context = multiprocessing.get_context(method)
    x, q = baton.full((4,), 3), baton.queue()
    p = context.Process(target=double, args=(x, q))
    p.start()
    got = q.get(PATIENCE)
    p.join(PATIENCE)
    assert p.exitcode == 0
    assert np.asarray(x).tolist() == [6, 6, 6, 6] == np.asarray(got).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_pools_and_futures(method):
    context = multiprocessing.get_context(method)
    xs = [baton.full((1000,), i) for i in range(8)]
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        for i, y in enumerate(pool.map(doubled, xs)):
            assert isinstance(y, baton.Tensor) and (y.numpy() == 2 * i).all()
    assert all((x.numpy() == 2 * i).all() for i, x in enumerate(xs))  # in place
    with context.Pool(2) as pool:
        assert [int(y.numpy()[0]) for y in pool.map(doubled, xs)] == [4 * i for i in range(8)]


def test_topics_and_bundles_travel_too():
    context = multiprocessing.get_context("spawn")
    t, b = baton.topic(), baton.share({"a": np.arange(3), "l": [np.ones(2)]})
    r = t.reader()
    p = context.Process(target=Doubler(t), args=(b,))
    p.start()
    assert r.receive(PATIENCE)["l"][0].numpy().tolist() == [2, 2]
    p.join(PATIENCE)
    assert p.exitcode == 0


def test_subprocess():
    x, q = baton.full((4,), 3), baton.queue()
    script = "import pickle, sys; from worker import double; double(*pickle.loads(bytes.fromhex(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", script, handed_over((x, q)).hex()], timeout=PATIENCE, cwd=os.path.dirname(__file__)
    )
    assert done.returncode == 0 and q.get(PATIENCE).numpy().tolist() == [6, 6, 6, 6]


def test_subprocess_with_a_hook_before_exec():
    x = baton.zeros(1000)
    done = subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: x.numpy().fill(1), timeout=PATIENCE)
    assert done.returncode == 0 and x.numpy().sum() == 1000


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_torch_multiprocessing(method):
    torch = need("torch")
    context = torch.multiprocessing.get_context(method)
    x, back = baton.full((4,), 3), context.SimpleQueue()
    p = context.Process(target=_through_torch, args=(x, back))
    p.start()
    got = back.get()
    p.join(PATIENCE)
    assert p.exitcode == 0 and isinstance(got, baton.Tensor)
    assert got.numpy().tolist() == [6, 6, 6, 6] == x.numpy().tolist()


def _through_torch(x, back):
    back.put(doubled(x))


def test_joblib_and_loky():
    joblib = need("joblib")
    xs = [baton.full((100,), i) for i in range(4)]
    got = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(doubled)(x) for x in xs)
    assert all((y.numpy() == 2 * i).all() for i, y in enumerate(got))
    loky = need("loky")
    with loky.ProcessPoolExecutor(2) as pool:
        assert [int(y.numpy()[0]) for y in pool.map(doubled, xs)] == [0, 4, 8, 12]


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "_exit", "raise", "exec"])
def test_a_child_that_dies_in_any_way_releases_what_it_held(name, child, how):
    s = baton.connect()
    q = s.queue(name)
    q.put(s.zeros(1000))
    c = child("import os\nx = baton.queue(sys.argv[1]).get(120); a = x.numpy(); say('holds')\nhow = sys.stdin.readline().strip()\nexec({'_exit': 'os._exit(3)', 'raise': 'raise SystemExit(3)', 'exec': 'os.execv(\"/bin/true\", [\"true\"])'}.get(how, 'import signal; sys.stdin.readline()'))", name)  # fmt: skip
    assert c.hear() == "holds"
    assert s.stats()["live"] == 1
    if how.startswith("SIG"):
        os.kill(c.pid, getattr(signal, how))
    c.tell(how) if not how.startswith("SIG") else None
    c.process.wait(PATIENCE)
    eventually(lambda: s.collect() >= 0 and s.stats()["live"] == 0, "what the dead held to be free")
    eventually(lambda: c.pid not in {r["pid"] for r in listing("sessions")}, "the broker to end its session")
    s.close()


def test_redelivery_gives_a_dead_takers_item_to_another(name, child):
    q = baton.queue(name, redeliver=True)
    q.put(np.arange(3))
    c = child("x = baton.queue(sys.argv[1], redeliver=True).get(120); say('took'); sys.stdin.readline()", name)
    assert c.hear() == "took" and q.qsize() == 0
    c.kill()
    assert q.get(PATIENCE).numpy().tolist() == [0, 1, 2]


def test_ctrl_c_ends_every_process_of_a_group(name, tmp_path):
    p = subprocess.Popen(
        [sys.executable, "-c", "from worker import wait_for_ever; wait_for_ever()", name],
        cwd=os.path.dirname(__file__),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert p.stdout is not None and p.stdout.readline() == "waits\n" and p.stdout.readline() == "waits\n"
    os.killpg(p.pid, signal.SIGINT)
    assert p.stdout.read() == "interrupted\ninterrupted\n" and p.wait(PATIENCE) == 0
