"""Sessions: the default one, explicit ones, namespaces, what pickles lead to."""

import asyncio
import gc
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref

import baton
import numpy as np
import pytest
from conftest import BATON, PATIENCE, eventually, handed_over, listing, need, suspend


def test_sessions_see_the_names_of_their_namespace(name):
    with baton.connect(namespace="other") as s:
        s.set(name, np.zeros(1))
        assert s.names(name) == [name] and baton.names(name) == [] and s.namespace == "other"
        q = s.queue(name)
        q.put(1)
        with pytest.raises(baton.Empty):
            baton.queue(name).get(0)
        s.delete(name)


def test_a_closed_session_says_so():
    with baton.connect() as s:
        x = s.zeros(3)
    assert s.closed
    for call in (lambda: s.zeros(3), lambda: s.topic(), lambda: s.names(), lambda: x.handle()):
        with pytest.raises(baton.Closed):
            call()


def test_loops_end_with_what_they_go_through_and_not_with_the_session():
    async def each(of):
        return [x async for x in of]

    loops = (list, lambda of: asyncio.run(each(of)))
    s = baton.connect()
    q, t = s.queue(), s.topic()
    r = t.reader()
    q.close()
    t.close()
    for loop in loops:
        assert loop(q) == loop(r) == []
    s = baton.connect()
    q, t = s.queue(), s.topic()
    r, w = t.reader(), s.watch("apart")
    r.close()
    for loop in loops:
        with pytest.raises(baton.Closed, match="the reader was closed"):
            loop(r)
    r = t.reader()
    s.close()
    for loop in loops:
        for of in (q, r, w):
            with pytest.raises(baton.Closed, match="the session is closed"):
                loop(of)
    with pytest.raises(baton.Closed, match="the session is closed") as e:
        r.receive()
    assert "topic" not in e.value.detail


def test_pickles_lead_to_the_same_broker_and_namespace(name, child):
    s = baton.connect(namespace="apart")
    s.set(name, np.arange(3))
    q, t = s.queue(name), s.topic(name + "/t", depth=2)
    things = [s, s.queue(), q, t, s.full(2, 7), s.get(name)]
    c = child(
        """
import pickle
assert "baton" in sys.modules
s, private, q, t, x, b = pickle.loads(bytes.fromhex(sys.argv[1]))
assert s.namespace == "apart" and s.names(sys.argv[2]) == [sys.argv[2]]
assert pickle.loads(pickle.dumps(s)) is s
private.put("private"); q.put("named"); t.send("topic"); say(x.numpy().sum(), b["" if "" in b else b.keys()[0]].numpy().sum())
""",
        handed_over(things).hex(),
        name,
    )
    assert c.hear() == "14 3"
    assert (things[1].get(PATIENCE), q.get(PATIENCE)) == ("private", "named")
    c.end()
    s.delete(name)
    assert t.reader(start="all").receive(PATIENCE).value == "topic"
    assert isinstance(pickle.loads(pickle.dumps(s)), baton.Session)
    s.close()


def test_pickles_lead_to_brokers_that_are_not_the_default(tmp_path, child):
    tmp_path.chmod(0o700)
    other = str(tmp_path / "b.sock")
    p = subprocess.Popen([BATON, "serve", "--address", other, "--no-nats", "--log-level", "error"])
    try:
        s = baton.connect(address=other)
        q = s.queue()
        c = child(
            "import pickle; q, x = pickle.loads(bytes.fromhex(sys.argv[1])); q.put(x)",
            handed_over((q, s.full(3, 5))).hex(),
        )
        assert q.get(PATIENCE).numpy().tolist() == [5, 5, 5]
        c.end()
        with pytest.raises(baton.InvalidHandle, match="broker"):
            baton.open(s.zeros(1).handle())
        with pytest.raises(baton.InvalidArgument, match="another session: .* of broker .*copy its elements"):
            baton.queue().put(s.zeros(1))
        s.close()
    finally:
        p.send_signal(signal.SIGINT)
        assert p.wait(PATIENCE) == 0


def test_a_process_that_has_not_imported_baton_unpickles(name):
    x, q = baton.full((3,), 4), baton.queue()
    script = "import pickle, sys; q, x = pickle.loads(bytes.fromhex(sys.argv[1])); x.numpy()[0] = 9; q.put(x)"
    done = subprocess.run([sys.executable, "-c", script, handed_over((q, x)).hex()], timeout=PATIENCE)
    assert done.returncode == 0
    assert q.get(PATIENCE).numpy().tolist() == [9, 4, 4] == x.numpy().tolist()


def test_readers_are_not_pickled(name):
    t = baton.topic(name)
    r = t.reader()
    t.send(1)
    for thing in (r, baton.watch(name), r.receive()):
        with pytest.raises(TypeError, match="process"):
            pickle.dumps(thing)


@pytest.mark.parametrize("live", [False, True])
def test_ephemeral_names_go_with_their_setter(name, live):
    s = baton.connect()
    s.set(name, np.zeros(1), live=live, ephemeral=True)
    assert baton.get(name).live == live
    assert baton.names(name) == [name]
    s.close()
    eventually(lambda: baton.names(name) == [], "the name to be deleted")


def test_linger_is_how_long_a_topic_stays(name):
    with baton.connect() as s:
        s.topic(name, linger=0).send(1)
        s.topic(name + "/stays").send(1)

    def topics():
        return {r["name"] for r in listing("topics")}

    eventually(lambda: name not in topics(), "the topic to end")
    assert name + "/stays" in topics()
    assert baton.topic(name + "/stays").reader(start="all").receive(PATIENCE).value == 1


def test_with_closes_queues_and_topics_for_everybody(name):
    with baton.queue(name) as q:
        q.put(1)
        q.put(2)
        assert q.qsize() == 2
    assert list(baton.queue(name)) == [1, 2]
    with baton.topic(name + "/t") as t, t.reader() as r:
        t.send(1)
        assert r.receive(PATIENCE).value == 1
    with pytest.raises(baton.Closed):
        t.send(2)


def test_lost_counts_messages_of_senders_that_have_left(name):
    t = baton.topic(name, depth=2)
    r = t.reader()
    with baton.connect() as s:
        leaver = s.topic(name)
        for _ in range(5):
            leaver.send("gone")
    sent, received, lost = 5, 0, 0

    def all_are_told():
        nonlocal sent, received, lost
        t.send("here")
        sent += 1
        while True:
            m = r.receive(PATIENCE)
            received, lost = received + 1, lost + m.lost
            if m.value == "here":
                return received + lost == sent

    eventually(all_are_told, "the messages of the sender that has left to be counted")
    assert lost >= 3


def test_qsize_counts_what_waits(name):
    q = baton.queue(name, depth=4)
    assert q.qsize() == 0
    for i in range(3):
        q.put(i)
    assert (q.qsize(), q.get(), q.qsize()) == (3, 0, 2)
    with baton.connect() as other:
        other.queue(name).put(9)
        assert q.qsize() == 3
    assert [q.get(0) for _ in range(3)] == [1, 2, 9] and q.qsize() == 0


def test_full_memory_is_awaited(tmp_path):
    tmp_path.chmod(0o700)
    address = str(tmp_path / "b.sock")
    p = subprocess.Popen(
        [BATON, "serve", "--address", address, "--no-nats", "--log-level", "error", "--memory", "64MiB"]
    )
    try:
        s, other = baton.connect(address=address), baton.connect(address=address)
        x = other.empty((48 << 20,), "uint8")
        with pytest.raises(baton.QuotaExceeded, match="largest: "):
            s.empty((48 << 20,), "uint8")
        with pytest.raises(baton.QuotaExceeded):
            s.empty((48 << 20,), "uint8", timeout=0.05)

        def give_back():
            x.release()
            eventually(lambda: other.collect() or other.stats()["granted"] == 0, "the memory to be given back")

        t = threading.Thread(target=give_back)
        t.start()
        assert s.empty((48 << 20,), "uint8", timeout=PATIENCE).nbytes == 48 << 20
        t.join()
        other.close()
        s.close()
    finally:
        p.send_signal(signal.SIGINT)
        assert p.wait(PATIENCE) == 0


def test_stats_tell_what_is_held():
    with baton.connect() as s:
        assert s.stats()["live"] == 0
        x = s.zeros(1000)
        stats = s.stats()
        assert stats["live"] == 1 and stats["granted"] >= x.nbytes and stats["handovers"] == 0


# What is not about a session: it makes one, names functions for whichever, or is about several.
WITHOUT_A_SESSION = "connect current_call function functions_of pickle_handles register_error wait_any".split()
FUNCTIONS = [n for n in dir(baton) if inspect.isroutine(getattr(baton, n)) and n not in WITHOUT_A_SESSION]


@pytest.mark.parametrize("call", FUNCTIONS)
def test_a_session_has_the_functions_of_the_module(call):
    of_module = inspect.signature(getattr(baton, call)).parameters
    of_session = dict(inspect.signature(getattr(baton.Session, call)).parameters)
    del of_session["self"]
    assert list(of_module) == list(of_session)
    for name, p in of_module.items():
        assert of_session[name].kind == p.kind, name
        assert of_session[name].default == p.default or name == "dtype", name  # None: float32


def test_help_tells_the_defaults():
    assert inspect.signature(baton.Tensor.handle).parameters["lease"].default == 30.0
    assert inspect.signature(baton.Session).parameters["timeout"].default == 30.0


def test_objects_are_referenced_weakly_and_handles_are_keys():
    q, t = baton.queue(), baton.topic()
    r, w, b, h = t.reader(), baton.watch("never/set"), baton.share({"a": np.zeros(2)}), baton.zeros(1).handle()
    assert all(weakref.ref(o)() is o for o in (q, t, r, w, b, h))
    assert {h: 1}[baton.Handle.from_json(h.to_json())] == 1
    assert repr(q) == "baton.Queue(private)" and repr(r) == "baton.Reader(private)"


def test_a_weak_reference_does_not_lead_to_the_next_tensor():
    for _ in range(3):
        gone = []
        x = baton.zeros(3)
        old = weakref.ref(x, gone.append)
        of = id(x)
        del x
        y = baton.zeros(4)
        assert id(y) == of, "the object is used anew"
        assert old() is None and gone == [old] and weakref.getweakrefcount(y) == 0
        assert y.shape == (4,) and not gc.is_tracked(y)


def test_a_tensor_of_another_session_goes_by_its_handle():
    with baton.connect() as s:
        x, q = s.full(2, 7), baton.queue()
        default = baton._default.session().serial
        text = f"belongs to another session: to {s.serial}, and this is {default} .*handle"
        with pytest.raises(baton.InvalidArgument, match="the tensor " + text):
            q.put(x)
        with pytest.raises(baton.InvalidArgument, match='tensor "a" ' + text):
            q.put({"a": x})
        q.put(baton.open(x.handle()))
        assert q.get(10).tolist() == [7, 7]


def test_a_runtime_directory_that_cannot_be_made_says_what_to_set():
    code = "import baton\ntry: baton.zeros(1)\nexcept baton.PermissionDenied as e: print(e)"
    env = {k: v for k, v in os.environ.items() if k != "BATON_ADDRESS"} | {"XDG_RUNTIME_DIR": "/proc/none"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE
    ).stdout
    assert "/proc/none" in said and "that you may write" in said


def test_the_timeout_of_a_first_call_bounds_its_wait_for_a_broker(tmp_path, child, monkeypatch):
    monkeypatch.setenv("BATON_ADDRESS", str(tmp_path / "b.sock"))
    c = child(
        """
import threading
from baton import _default
def patient():
    try: baton.connect(timeout=29)
    except baton.NoBroker: pass
waits = threading.Thread(target=patient, daemon=True)
waits.start()
def first():
    for call in (lambda: baton.get("x", timeout=0.01), lambda: baton.zeros(1, timeout=0.01)):
        try: call()
        except baton.NoBroker as e: say(e)
first()
opens = threading.Thread(target=lambda: baton.get("x", timeout=29), daemon=True)
opens.start()
while _default._lock.acquire(blocking=False): _default._lock.release()
first()
say(waits.is_alive(), opens.is_alive())
"""
    )
    heard = [c.hear() for _ in range(5)]
    assert all("nothing listens" in line for line in heard[:2])
    assert all("another thread" in line for line in heard[2:4])
    assert heard[4] == "True True"
    c.kill()


def test_timeouts_bound_the_wait_for_the_next_broker(own, child):
    need("torch")
    c = child(
        """
import threading
import baton.torch.weights
receiver = baton.torch.weights.Receiver("x")
say("ready")
sys.stdin.readline()
while not receiver._lost:
    try: receiver.receive(0.01)
    except (baton.Timeout, baton.SessionLost): pass
def patient():
    try: baton.connect(timeout=29)
    except baton.NoBroker: pass
waits = threading.Thread(target=patient, daemon=True)
waits.start()
def bounded(call):
    while True:
        try: return call()
        except baton.NoBroker: return say("no broker")
        except baton.SessionLost: pass  # it is said once
bounded(lambda: receiver.receive(0.01))
bounded(lambda: baton.get_function("x", wait=0.01))
say(waits.is_alive())
"""
    )
    assert c.hear() == "ready"
    own.end(signal.SIGINT)
    c.tell()
    assert [c.hear() for _ in range(3)] == ["no broker", "no broker", "True"]
    c.kill()


def test_timeouts_hold_while_the_broker_is_stopped(tmp_path, child, monkeypatch):
    tmp_path.chmod(0o700)
    socket = str(tmp_path / "b.sock")
    broker = subprocess.Popen([BATON, "serve", "--address", socket, "--no-nats", "--log-level", "error"])
    monkeypatch.setenv("BATON_ADDRESS", socket)
    calls = """
import threading
def patient():
    try: baton.connect(timeout=29)
    except baton.Timeout: pass
def outlast(*calls):
    waits = threading.Thread(target=patient, daemon=True)
    waits.start()
    for call in calls:
        try: say(call())
        except baton.Timeout as e: say(type(e).__name__)
    say(waits.is_alive())
"""
    try:
        new, old = (
            child(calls + "sys.stdin.readline()\noutlast(lambda: baton.get('x', timeout=0.01))"),
            child(
                calls + "q = baton.queue()\nsay('there')\nsys.stdin.readline()\noutlast(lambda: q.get(timeout=0.01))"
            ),
        )
        assert old.hear() == "there"
        suspend(broker)
        for c, error in ((new, "Timeout"), (old, "Empty")):
            c.tell()
            assert (c.hear(), c.hear()) == (error, "True")
            c.kill()
    finally:
        broker.kill()
        broker.wait()


def test_what_is_left_of_a_timeout_goes_to_the_call(monkeypatch):
    session = baton._default.session()
    monkeypatch.setattr(baton._default, "_session", None)
    monkeypatch.setattr(baton._native, "Session", lambda timeout: session)
    for timeout in (None, 0, 60):
        baton._default._session = None
        s, left = baton._default.within(timeout)
        assert s is session and (left == timeout if not timeout else 0 < left < 60)


def test_threads_open_their_first_sessions_at_once(child):
    c = child(
        """
import threading
begin, serials = threading.Barrier(8), []
def open_one():
    begin.wait()
    with baton.connect() as s: serials.append(s.serial)
threads = [threading.Thread(target=open_one) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
say(len(set(serials)))
"""
    )
    assert c.hear() == "8"
    c.end()


def test_a_session_is_called_what_the_program_is(tmp_path):
    code = "import baton; s = baton.connect(); print([r['name'] for r in LIST if r['pid'] == PID])"
    code = code.replace("LIST", "json.loads(subprocess.check_output([BATON, 'ls', 'sessions', '--json']))")
    code = f"import json, os, subprocess; BATON = {BATON!r}\n" + code.replace("PID", "os.getpid()")
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(code)

    def named(*args, **more):
        env = os.environ | more
        return subprocess.check_output([sys.executable, *args], cwd=tmp_path, env=env, text=True).strip()

    assert named("train.py", "--fast") == "['train.py']"
    assert named("-m", "package") == "['package']"
    assert named("-c", code) == "['python']"
    run = subprocess.run([sys.executable, "-"], input=code, stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout.strip() == "['python (stdin)']"
    assert named("train.py", BATON_NAME="learner 3") == "['learner 3']"


def test_memory_of_many_sessions_needs_few_descriptors(child, name):
    q = baton.queue(name)
    c = child(
        """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
q, held = baton.queue(sys.argv[1]), []
say('open')
for _ in range(30):
    held.append(q.get(timeout=60))
say(sum(float(x.numpy().sum()) for x in held))
sys.stdin.readline()
""",
        name,
    )
    assert c.hear() == "open"
    sessions = [baton.Session() for _ in range(30)]
    for i, s in enumerate(sessions):
        s.queue(name).put(s.full((4,), float(i)))
    assert float(c.hear()) == 4 * sum(range(30))
    c.end()
    del q


def test_what_lies_in_another_session_is_copied_by_share(tmp_path):
    """A tensor of a session that lives, of a closed one, and what is within a value; one of its own stays."""
    with baton.connect() as s, baton.connect() as closing:
        x, gone, own = closing.full((3,), 5), closing.full((2,), 6), s.full((3,), 7)
        closing.set("other/bundle", {"w": x})
        bundle, q = closing.get("other/bundle"), s.queue()

        def comes(given):
            made = s.share(given)
            q.put(made, timeout=0)
            return made, q.get(10)

        for given in (x, bundle["w"]):
            made, came = comes(given)
            assert made.numpy().ctypes.data != given.numpy().ctypes.data
            assert came.tolist() == [5, 5, 5]
        for given in ({"a": x, "b": [own, bundle["w"]]}, bundle):
            made, came = comes(given)
            assert made is not given
        made, _ = comes({"a": x, "b": own})
        assert made["b"].numpy().ctypes.data == own.numpy().ctypes.data
        assert made["a"].numpy().ctypes.data != x.numpy().ctypes.data
        assert s.share(own).numpy().ctypes.data == own.numpy().ctypes.data
        assert s.share(own, copy=False).numpy().ctypes.data == own.numpy().ctypes.data
        for given in (x, {"a": x}, bundle):
            with pytest.raises(baton.InvalidArgument, match="memory of this session .*copy=False"):
                s.share(given, copy=False)
            with pytest.raises(baton.InvalidArgument, match=r"another session: .*share\(x\) in Python"):
                q.put(given, timeout=0)
        closing.close()
        assert comes(gone)[1].tolist() == [6, 6]
        with pytest.raises(baton.InvalidArgument, match="closed: .*copy its elements"):
            q.put(gone, timeout=0)
    baton.delete("other/bundle")
