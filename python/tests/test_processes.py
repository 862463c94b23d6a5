"""Between processes: Python to Python, and what death and fork leave behind."""

import multiprocessing
import os
import pickle
import signal
import threading

import baton
import numpy as np
import pytest
from baton import _default
from conftest import PATIENCE, asleep, eventually, handed_over, listing
from worker import double


def test_topic_goes_to_another_process_and_back(name, child):
    c = child(
        """
there, back = baton.topic(sys.argv[1]), baton.topic(sys.argv[1] + "/back")
r = there.reader()
say("ready")
for m in r:
    assert m["x"].readonly and m["x"].numpy().sum() == m.meta["sum"]
    back.send({"y": m["x"], "double": m["x"].numpy() * 2})
""",
        name,
    )
    there, back = baton.topic(name), baton.topic(name + "/back")
    r = back.reader()
    assert c.hear() == "ready"
    x = baton.share(np.arange(1000.0))
    there.send({"x": x}, meta={"sum": float(np.asarray(x).sum())})
    m = r.receive(PATIENCE)
    assert (m.sequence, m.lost) == (1, 0) and m.sender
    assert (np.asarray(m["double"]) == np.arange(1000.0) * 2).all()
    np.asarray(x)[0] = 7  # it came back by reference
    assert np.asarray(m["y"])[0] == 7
    there.close()
    c.end()


def test_queue_gives_each_item_to_one_taker(name, child):
    script = """
q = baton.queue(sys.argv[1])
got = [int(x.numpy()[0]) for x in q]
say(*got)
"""
    takers = [child(script, name) for _ in range(3)]
    q = baton.queue(name, depth=4)
    for i in range(60):
        q.put(np.full(10, i), timeout=PATIENCE)
    q.close()
    got = [int(w) for c in takers for w in c.hear().split()]
    assert sorted(got) == list(range(60))
    with pytest.raises(baton.Closed):
        q.put(1)
    with pytest.raises(baton.Closed):
        q.get()


def test_taker_may_write_what_it_took(name, child):
    c = child("x = baton.queue(sys.argv[1]).get(120); x.numpy()[:] = 5; say('written'); sys.stdin.readline()", name)
    x = baton.zeros((10,))
    baton.queue(name).put(x)
    assert c.hear() == "written"
    assert (np.asarray(x) == 5).all()


def test_full_queue_lets_put_time_out(name):
    q = baton.queue(name, depth=2)
    q.put(1)
    q.put(2)
    with pytest.raises(baton.Full):
        q.put(3, timeout=0)


def test_item_that_holds_up_its_sender_is_named(name):
    q, other = baton.queue(name, depth=3, redeliver=True), baton.Session()
    takes = other.queue(name, redeliver=True)
    x = baton.zeros((10,))
    for _ in range(3):
        q.put(x)
    first, second = takes.get(120), takes.get(120)
    del second
    with pytest.raises(
        baton.Full, match="item 1 of this sender holds it up, which a taker has and has not released: 1 of 3"
    ):
        q.put(x, timeout=0)
    del first
    q.put(x, timeout=120)
    other.close()


def test_name_is_seen_and_watched(name, child):
    c = child(
        """
w = baton.watch(sys.argv[1])
for _ in range(2):
    b = w.receive(120)
    say(b.revision, b.value["step"], b["w"].numpy()[0], b["w"].readonly)
""",
        name,
    )
    w = baton.zeros((4,))
    assert baton.set(name, {"w": w, "step": 1}) == 1
    assert c.hear() == "1 1 0.0 True"
    assert baton.set(name, {"w": np.ones(4, "float32"), "step": 2}) == 2
    assert c.hear() == "2 2 1.0 True"
    c.end()
    b = baton.get(name)
    assert (b.revision, b.live, list(b), len(b), "w" in b) == (2, False, ["w"], 1, True)
    assert b.numpy()["w"].tolist() == [1, 1, 1, 1] and b.get("z") is None
    assert baton.names(name) == [name] and name in baton.names("test/*")
    baton.delete(name)
    assert baton.names(name) == []
    assert b["w"].numpy().tolist() == [1, 1, 1, 1]  # what was got stays
    with pytest.raises(baton.NotFound):
        baton.delete(name)


def test_live_name_is_written_in_place(name, child):
    baton.set(name, {"w": np.zeros(4)}, live=True)
    c = child("b = baton.get(sys.argv[1]); assert b.live; b['w'].numpy()[2] = 9; say('ok')", name)
    assert c.hear() == "ok"
    assert baton.get(name)["w"].numpy().tolist() == [0, 0, 9, 0]
    baton.delete(name)


def test_handle_is_opened_elsewhere(child):
    x = baton.share(np.arange(6).reshape(2, 3))
    c = child(
        "x = baton.open(sys.argv[1]); y = baton.open(sys.argv[1], readonly=True); x.numpy()[0] = 5; say(y.readonly, x.shape)",
        x[1].handle().to_json(),
    )
    assert c.hear() == "True (3,)"
    assert np.asarray(x).tolist() == [[0, 1, 2], [5, 4, 5]]
    h = x.handle(lease=5)
    assert baton.Handle.from_json(h.to_json()) == h and pickle.loads(pickle.dumps(h)) == h


def test_handles_are_pickled(name, child):
    c = child(
        "import pickle; x = pickle.loads(bytes.fromhex(sys.argv[1])); x.numpy()[0] = 4; say(x.shape)",
        handed_over(x := baton.zeros((1 << 16,))).hex(),
    )
    assert c.hear() == "(65536,)"
    assert np.asarray(x)[0] == 4
    q = baton.queue()
    c = child("import pickle; pickle.loads(bytes.fromhex(sys.argv[1])).put('hello')", pickle.dumps(q).hex())
    assert q.get(PATIENCE) == "hello"
    c.end()


def test_what_was_sent_before_the_end_is_received(name, child):
    r = baton.queue(name)
    c = child("baton.queue(sys.argv[1]).put({'x': np.arange(5)})", name)
    c.end()
    assert np.asarray(r.get(PATIENCE)["x"]).tolist() == [0, 1, 2, 3, 4]


def test_killed_child_leaves_nothing(name, child):
    s = baton.connect()
    q = s.queue(name)
    x = s.full((1 << 20,), 1, "uint8")
    q.put(x)
    c = child(
        """
q = baton.queue(sys.argv[1])
held = [q.get(120), q.get(120)["x"], baton.zeros((1 << 20,), "uint8")]
arrays = [h.numpy() for h in held]
say("holds")
sys.stdin.readline()
""",
        name,
    )
    q.put({"x": x[10:]})

    def of_child():
        return [
            r
            for r in listing("storages")
            if r["creator_pid"] == c.pid or any(h.get("pid") == c.pid for h in r["holders"])
        ]

    assert c.hear() == "holds"
    assert of_child()
    os.kill(c.pid, signal.SIGKILL)
    eventually(lambda: not of_child(), "the broker to drop what the dead held")
    assert (np.asarray(x) == 1).all()
    serial = {r["serial"] for r in listing("sessions") if r["pid"] == c.pid}
    assert not serial
    x.release()
    eventually(lambda: s.collect() >= 0 and s.stats()["live"] == 0, "the memory to be free again")
    s.close()


def in_child(work):
    p = multiprocessing.get_context("fork").Process(target=work)
    p.start()
    p.join(PATIENCE)
    assert p.exitcode == 0


def test_forked_child_uses_what_it_inherited(name):
    x, q = baton.full((1000,), 3), baton.queue(name)
    t = baton.topic(name + "/t")
    r = t.reader()
    array = np.asarray(x)
    t.send({"n": 1})
    of_parent = _default.session().serial

    def work():
        assert (array == 3).all()
        assert _default.session().serial not in (0, of_parent)
        assert r.receive(PATIENCE).value == {"n": 1}  # the parent receives it too
        x.numpy()[0] = 8
        q.put({"x": x, "new": baton.full((4,), 1)})
        assert any(h["pid"] == os.getpid() for row in listing("storages") for h in row["holders"])

    in_child(work)
    got = q.get(PATIENCE)
    assert got["x"].numpy()[0] == 8 == array[0] and got["new"].numpy().tolist() == [1] * 4
    assert r.receive(PATIENCE).value == {"n": 1}
    r.close()


def test_what_a_forked_child_inherited_outlives_the_parent(name, child):
    q = baton.queue(name)
    c = child(
        """
import os
x, q = baton.full((1000,), 3), baton.queue(sys.argv[1])
if os.fork():
    os._exit(0)
sys.stdin.readline()
assert (x.numpy() == 3).all()
q.put(x)
del x
q.put("dropped")
""",
        name,
    )
    assert c.process.wait(PATIENCE) == 0
    eventually(lambda: c.pid not in {r["pid"] for r in listing("sessions")}, "the parent's session to be over")
    c.tell()
    got = q.get(PATIENCE)
    assert (got.numpy() == 3).all() and q.get(PATIENCE) == "dropped"
    assert (got.numpy() == 3).all()


def test_a_reader_in_use_at_the_fork_is_refused_in_the_child(name):
    t = baton.topic(name)
    r = t.reader()
    waits = threading.Thread(target=lambda: r.receive(PATIENCE))
    waits.start()
    eventually(lambda: asleep(waits), "the thread to wait")

    def work():
        with pytest.raises(baton.Closed, match="forked"):
            r.receive(0)
        mine = t.reader()
        t.send("there")
        assert mine.receive(PATIENCE).value == "there"

    in_child(work)
    waits.join(PATIENCE)
    assert not waits.is_alive()  # it received what the child sent


def test_forks_of_forks(name):
    x, q = baton.full((4,), 3), baton.queue(name)

    def work():
        y = baton.full((4,), 5)
        in_child(lambda: q.put([x, y]))

    multiprocessing.get_context("fork").Process(target=work).start()
    x_, y_ = q.get(PATIENCE)
    assert x_.numpy().tolist() == [3] * 4 and y_.numpy().tolist() == [5] * 4


def test_forks_of_several_threads_under_load_do_not_hang(name, child):
    c = child(
        """
import os, signal, threading
name, over, wrong = sys.argv[1], threading.Event(), []
topic, waiting = baton.topic(name, linger=0), baton.queue(name + "/never", linger=0)

def load(i):
    r = topic.reader()
    while not over.is_set():
        topic.send({"x": baton.full((100,), i)})
        r.receive(120)
        baton.set(f"{name}/{i}", baton.zeros(3))
    baton.delete(f"{name}/{i}")

def wait():
    try:
        waiting.get()
    except baton.Closed:
        pass

def heir(x, i):
    assert (x.numpy() == i).all()
    r = topic.reader()
    topic.send({"x": x})
    r.receive(120)
    mine = baton.queue()
    mine.put(x)
    assert (mine.get(120).numpy() == i).all()
    baton.names()

def forks(t):
    for i in range(10):
        x = baton.full((100,), 100 * t + i)
        if not (pid := os.fork()):
            signal.alarm(240)  # what hangs is killed, and so seen
            status = 1
            try:
                heir(x, 100 * t + i)
                status = 0
            finally:
                os._exit(status)
        if how := os.waitpid(pid, 0)[1]:
            wrong.append((t, i, how))

others = [threading.Thread(target=load, args=(i,)) for i in range(2)] + [threading.Thread(target=wait)]
forking = [threading.Thread(target=forks, args=(t,)) for t in range(1, 4)]
for t in others + forking:
    t.start()
for t in forking:
    t.join()
over.set()
waiting.close()
for t in others:
    t.join()
say(wrong)
""",
        name,
    )
    assert c.hear() == "[]"
    c.end()
    eventually(lambda: not any(r["creator_pid"] == c.pid for r in listing("storages")), "all to be free again")


def test_a_raw_fork_is_refused(child, name):
    c = child(
        """
import ctypes, os, platform
x, q = baton.full((4,), 3), baton.queue(sys.argv[1])
clone, SIGCHLD = 56 if platform.machine() == "x86_64" else 220, 17
pid = ctypes.CDLL(None).syscall(clone, SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    try:
        q.put(x)
    except baton.Closed as e:
        os._exit(0 if "forked" in str(e) else 1)
    os._exit(2)
say(os.waitpid(pid, 0)[1])
""",
        name,
    )
    assert c.hear() == "0"
    c.end()


def test_another_interpreter_of_the_process_is_told_why_not(child):
    c = child(
        """
try:
    import _interpreters as other
except ImportError:
    import _xxsubinterpreters as other
baton.zeros(1)
i = other.create()
other.run_string(i, '''
try:
    import baton
    print("imported", flush=True)
except ImportError as e:
    print(e, flush=True)
'''.strip())
other.destroy(i)
say(baton.zeros(1).tolist())
"""
    )
    assert "interpreter" in c.hear()
    assert c.hear() == "[0.0]"
    c.end()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_hand_tensors_over(method):
    context = multiprocessing.get_context(method)
    x, q = baton.full((4,), 3), baton.queue()
    p = context.Process(target=double, args=(x, q))
    p.start()
    got = q.get(PATIENCE)
    p.join(PATIENCE)
    assert p.exitcode == 0
    assert np.asarray(x).tolist() == [6, 6, 6, 6] == np.asarray(got).tolist()


WAITS = {
    "receive": "baton.topic(n).reader().receive()",
    "receive with a timeout": "baton.topic(n).reader().receive(600)",
    "queue.get": "baton.queue(n).get()",
    "queue.put": "q = baton.queue(n, depth=1); q.put(1); q.put(2)",
    "watch": "baton.watch(n).receive()",
    "iteration": "next(baton.topic(n).reader())",
    "topic.send": "t = baton.topic(n, depth=1, overwrite=False); r = t.reader(); t.send(1); t.send(2)",
    "get": "baton.get(n, timeout=600)",
    "queue iteration": "list(baton.queue(n))",
    "connect": "baton.connect(address='/tmp/' + n.replace('/', '-'), timeout=600)",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(name, child, wait):
    c = child(
        f"n = sys.argv[1]\ntry:\n    baton.names(); say('waits')\n    {WAITS[wait]}\nexcept KeyboardInterrupt:\n    say('interrupted')",
        name,
    )
    assert c.hear() == "waits"

    eventually(lambda: "S" in open(f"/proc/{c.pid}/stat").read().rsplit(")", 1)[1].split()[0], "the child to sleep")
    os.kill(c.pid, signal.SIGINT)
    assert c.hear() == "interrupted"
    c.end()


def test_handlers_that_do_not_raise_let_the_wait_go_on(name, child):
    c = child(
        """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"handled\\n"))  # in the midst of say it may not say
r = baton.topic(sys.argv[1]).reader()
say("waits")
say(r.receive(120).value)
""",
        name,
    )
    assert c.hear() == "waits"
    os.kill(c.pid, signal.SIGUSR1)
    assert c.hear() == "handled"
    baton.topic(name).send("there")
    assert c.hear() == "there"
    c.end()


def test_waiting_lets_other_threads_run(name):
    r = baton.topic(name).reader()
    got = []
    t = threading.Thread(target=lambda: got.append(r.receive(PATIENCE).value))
    t.start()
    eventually(lambda: asleep(t), "the thread to wait")
    baton.topic(name).send("x")
    t.join(PATIENCE)
    assert got == ["x"]


@pytest.mark.parametrize("kind", ["queue", "topic", "name"])
def test_a_thread_that_waits_does_not_take_the_timeout_from_others(name, kind):
    if kind == "queue":
        q = baton.queue(name)
        wait, error, give = q.get, baton.Empty, q.put
    elif kind == "topic":
        topic = baton.topic(name)
        wait, error, give = topic.reader().receive, baton.Timeout, topic.send
    else:
        wait, error, give = baton.watch(name).receive, baton.Timeout, lambda v: baton.set(name, v, ephemeral=True)
    t = threading.Thread(target=wait, daemon=True)
    t.start()
    eventually(lambda: asleep(t), "the thread to wait")
    for timeout in (0, 0.01):
        with pytest.raises(error):
            wait(timeout)
    assert t.is_alive()
    give(1)
    t.join(PATIENCE)
    assert not t.is_alive()


TURNS = {
    "queue.get": ("o = baton.queue(n)", "get"),
    "receive": ("o = baton.topic(n).reader()", "receive"),
    "watch": ("o = baton.watch(n)", "receive"),
}


@pytest.mark.parametrize("kind", TURNS)
def test_ctrl_c_ends_the_wait_for_a_turn(name, child, kind):
    make, method = TURNS[kind]
    c = child(
        f"""
import threading
sys.path.insert(0, sys.argv[2])
from conftest import asleep, eventually
n = sys.argv[1]
{make}
t = threading.Thread(target=o.{method}, daemon=True)
t.start()
eventually(lambda: asleep(t), "the thread to wait")
try:
    say("waits")
    o.{method}()
except KeyboardInterrupt:
    say("interrupted", t.is_alive())
""",
        name,
        os.path.dirname(__file__),
    )
    assert c.hear() == "waits"
    eventually(lambda: "S" in open(f"/proc/{c.pid}/stat").read().rsplit(")", 1)[1].split()[0], "the child to sleep")
    os.kill(c.pid, signal.SIGINT)
    assert c.hear() == "interrupted True"
    c.end()
