"""Functions: provided in other processes, called here, and the other way round."""

import asyncio
import concurrent.futures
import dataclasses
import inspect
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading

import baton
import numpy as np
import pytest
from conftest import BATON, PATIENCE, command, eventually, listing

SERVES = """
import dataclasses, threading
import os, time
def say(*a): os.write(1, (" ".join(map(str, a)) + "\\n").encode())  # at once, whichever threads speak
{}
started = baton.start_functions()
say("ready", os.getpid())
for line in sys.stdin:
    exec(line)
started.close()
"""


@pytest.fixture(autouse=True)
def nothing_is_defined():
    yield
    baton._functions._defined.clear()


def provider(child, script):
    c = child(SERVES.format(script))
    assert c.hear().startswith("ready")
    return c


@dataclasses.dataclass
class Point:
    x: int
    y: object


ECHO = """
@baton.function({name!r})
def echo(*args, **named):
    if len(args) == 1 and not named:
        return args[0]
    return args, named
"""


def test_values_of_every_kind_go_there_and_back(child, name):
    provider(child, ECHO.format(name=name))
    f = baton.get_function(name)
    plain = [
        None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**200), 0.5, math.inf, -0.0, "", "text ä\0", b"", b"\0\xff",
        [], (), {}, [1, [2.5, "x", None]], (1, (b"y",)), {"a": {1: "b", (2, "c"): None}}, {"$": 1},
    ]  # fmt: skip
    for v in plain:
        got = f(v)
        assert got == v and type(got) is type(v), v
        assert f(1, v, x=v) == ((1, v), {"x": v})
    assert math.isnan(f(math.nan)) and math.copysign(1, f(-0.0)) == -1
    assert f() == ((), {}) and f(*range(300)) == (tuple(range(300)), {})
    assert f(*plain, **{f"k{i}": v for i, v in enumerate(plain)})[0] == tuple(plain)
    assert f(np.float32(0.5)) == 0.5 and f(np.int16(3)) == 3 and f(np.bool_(True)) is True
    assert f(np.dtype("int16")) == "int16"
    # A dataclass of a module that only the caller has is a dict there.
    assert f(Point(1, [2])) == {"x": 1, "y": [2]}


def test_dataclasses_are_those_of_modules_that_both_have(name):
    @baton.function(name)
    def moved(p: Point, by: int) -> Point:
        assert type(p) is Point
        return Point(p.x + by, p.y)

    with baton.start_functions(moved):
        got = baton.call(name, Point(1, np.arange(3)), by=2)
        assert type(got) is Point and got.x == 3 and got.y.tolist() == [0, 1, 2]
        assert baton.get_function(name).signature == "(p: test_functions:Point, by: int) -> test_functions:Point"


def test_tensors_and_arrays_go_there_and_back(child, name):
    provider(child, ECHO.format(name=name))
    f = baton.get_function(name)
    x = baton.share(np.arange(6, dtype="int16").reshape(2, 3))
    for given in (x, x.numpy(), np.arange(6, dtype="int16").reshape(2, 3), x.T.T):
        got = f(given)
        assert isinstance(got, baton.Tensor) and got.dtype == "int16" and got.tolist() == [[0, 1, 2], [3, 4, 5]]
    (args, named) = f(x, [np.ones(2), x], 7, np.zeros(1), y={"z": np.full(2, 5.0), "w": (x,)}, v=np.ones((1, 1)))
    assert args[0].tolist() == x.tolist() and args[1][0].tolist() == [1, 1] and args[1][1].tolist() == x.tolist()
    assert args[2] == 7 and args[3].tolist() == [0.0]
    assert named["y"]["z"].tolist() == [5, 5] and named["y"]["w"][0].tolist() == x.tolist()
    assert named["v"].tolist() == [[1.0]]


def test_a_function_writes_into_the_tensor_of_its_caller(child, name):
    provider(
        child,
        f"""
@baton.function({name!r})
def fill(out: np.ndarray, by: float) -> int:
    assert type(out) is np.ndarray
    out[:] = by
    return out.size
@baton.function({name + "/b"!r})
def readonly(x: baton.Tensor) -> bool:
    return x.readonly
""",
    )
    x = baton.zeros((2, 2))
    assert baton.call(name, x, by=3) == 4
    assert x.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert baton.call(name + "/b", x) is False and baton.call(name + "/b", x.as_readonly()) is True


SIGNED = """
from typing import Optional
@baton.function({name!r}, concurrency=3, idempotent=True)
def scale(image: np.ndarray, by: int | float = 2, /, *, mode: str = "fast", pad: Optional[int] = None) -> baton.Tensor:
    "Scales an image."
@baton.function({name!r} + "/wide")
def wide(a, *rest: int, flag: bool, **more: list[int]): pass
@baton.function({name!r} + "/num")
def num(b: bool, i: int, f: float): return b, i, f
"""


def test_signature_and_doc_say_what_the_function_takes(child, name):
    c = provider(child, SIGNED.format(name=name))
    f = baton.get_function(name)
    assert f.name == name and f.doc == "Scales an image." and f.providers == 1
    assert f.signature == '(image: tensor, by: int|float = 2, *, mode: str = "fast", pad: int|none = null) -> tensor'
    wide = baton.get_function(name + "/wide")
    assert wide.signature == "(a: any, *rest: int, *, flag: bool, **more: list)"
    (info,) = baton.functions(name)
    assert (info.name, info.signature, info.doc, info.idempotent) == (name, f.signature, f.doc, True)
    (p,) = info.providers
    assert (p.pid, p.concurrency, p.running, p.stopped) == (c.pid, 3, 0, False)
    assert [i.name for i in baton.functions(name + "*")] == [name, name + "/num", name + "/wide"]


def test_what_a_function_does_not_take_is_refused_before_it_is_sent(child, name):
    provider(child, SIGNED.format(name=name))
    f, wide, num = (baton.get_function(name + end) for end in ("", "/wide", "/num"))
    for call, what in [
        (lambda: f(), "image is not given"),
        (lambda: f("text"), "image is tensor, and str is given"),
        (lambda: f(np.ones(2), "2"), "by is int|float"),
        (lambda: f(np.ones(2), by=2), "no parameter by"),
        (lambda: f(np.ones(2), 2, 3), "3 arguments by position are too many"),
        (lambda: f(np.ones(2), colour=1), "no parameter colour"),
        (lambda: f(np.ones(2), pad=1.5), "pad is int|none, and float is given"),
        (lambda: wide(1, 2, "x", flag=True), "rest is int, and str is given"),
        (lambda: wide(1), "flag is not given"),
        (lambda: wide(1, flag=True, z=3), "more is list, and int is given"),
        (lambda: num(1, 2, 3), "b is bool, and int is given"),
        (lambda: num(True, 2.0, 3), "i is int, and float is given"),
        (lambda: num(True, 2, (3,)), "f is float, and tuple is given"),
        (lambda: num(True, 2, {"a": 3}), "f is float, and dict is given"),
    ]:
        with pytest.raises(baton.InvalidArgument) as e:
            call()
        assert what in str(e.value) and name in str(e.value)


def test_numbers_become_what_the_function_takes_and_nothing_else_does(child, name):
    provider(child, SIGNED.format(name=name))
    num = baton.get_function(name + "/num")
    for given, want in [
        ((True, True, True), (True, 1, 1.0)),
        ((np.array(True), np.array(7), np.array(7)), (True, 7, 7.0)),
        ((np.bool_(False), np.int8(7), np.float32(0.5)), (False, 7, 0.5)),
        ((True, 2**80, 2**80), (True, 2**80, float(2**80))),
        ((True, np.array(2**64 - 1, "uint64"), 1), (True, 2**64 - 1, 1.0)),
    ]:
        got = num(*given)
        assert got == want and [type(v) for v in got] == [bool, int, float]


def test_what_cannot_be_sent_is_a_type_error_that_names_the_argument(child, name):
    provider(
        child,
        SIGNED.format(name=name)
        + f"""
@baton.function({name + "/bad"!r})
def bad(): return {{"a": [object()]}}
""",
    )
    wide = baton.get_function(name + "/wide")
    for call, what in [
        (lambda: wide(object(), flag=True), "the argument a"),
        (lambda: wide(lambda: 1, flag=True), "the argument a"),
        (lambda: wide(1, 2, object(), flag=True), "the argument 2"),
        (lambda: wide(1, flag=True, deep=[1, [object()]]), "the argument deep"),
        (lambda: wide(int, flag=True), "the argument a"),
    ]:
        with pytest.raises(TypeError, match=what):
            call()
    with pytest.raises(ValueError, match="surrogate"):
        wide("\ud800", flag=True)
    with pytest.raises(TypeError, match="the result") as e:
        baton.call(name + "/bad")
    assert isinstance(e.value.__cause__, baton.RemoteError)


FAILS = """
class Odd(Exception): pass
class Registered(Exception): pass
baton.register_error("test.Registered", Registered)
@baton.function({name!r})
def fail(how):
    def inner(): raise KeyError("inner")
    if how == "cause":
        try: inner()
        except KeyError as e: raise ValueError("outer") from e
    if how == "exit": sys.exit(3)
    if how == "interrupt": raise KeyboardInterrupt
    if how == "odd": raise Odd("it is odd")
    if how == "registered": raise Registered("it is known")
    if how == "baton": raise baton.Timeout("slow")
    if how == "nested": baton.call({name!r} + "/none")
    if how == "remote": raise baton.RemoteError("x")
    if how == "mute":
        class Mute(ValueError):
            def __str__(self): raise RuntimeError
        raise Mute()
    raise eval(how)
"""


def test_errors_of_builtin_types_are_raised_as_what_they_are(child, name):
    c = provider(child, FAILS.format(name=name))
    f = baton.get_function(name)
    for what in [
        ValueError("bad"), TypeError("bad"), KeyError("k"), IndexError("i"), RuntimeError("r"), ZeroDivisionError("z"),
        NotImplementedError("n"), FileNotFoundError("f"), PermissionError("p"), TimeoutError("t"), AssertionError("a"),
        Exception("e"), OSError("o"), StopAsyncIteration("s"),
    ]:  # fmt: skip
        alike = not isinstance(what, StopAsyncIteration)
        with pytest.raises(type(what) if alike else baton.RemoteError) as e:
            f(repr(what))
        if alike:
            assert type(e.value) is type(what) and e.value.args == what.args
            cause = e.value.__cause__
        else:
            cause = e.value
        assert isinstance(cause, baton.RemoteError)
        assert (cause.type, cause.message) == (type(what).__name__, str(what.args[0]))
        assert "in fail" in cause.trace and cause.provider and cause.cause is None
        assert any("in fail" in note for note in e.value.__notes__)
    assert f.providers == 1 and c.process.poll() is None


def test_other_errors_are_remote_errors(child, name):
    c = provider(child, FAILS.format(name=name))
    f = baton.get_function(name)
    for how, kind, message in [
        ("odd", "__main__.Odd", "it is odd"),
        ("registered", "test.Registered", "it is known"),
        ("exit", "SystemExit", "3"),
        ("interrupt", "KeyboardInterrupt", ""),
        ("baton", "baton.Timeout", "slow"),
        ("nested", "baton.NotFound", None),
        ("remote", "baton.Remote", "x"),
        ("mute", "__main__.fail.<locals>.Mute", None),
    ]:
        with pytest.raises(baton.RemoteError) as e:
            f(how)
        assert e.value.type == kind and name in str(e.value)
        assert message is None or e.value.message == message
    with pytest.raises(ValueError, match="outer") as e:
        f("cause")
    cause = e.value.__cause__.cause
    assert (cause.type, cause.message) == ("KeyError", "inner") and "in inner" in cause.trace and cause.cause is None
    assert c.process.poll() is None and f.providers == 1  # it goes on


class Registered(Exception):
    pass


def test_errors_that_both_sides_have_registered_are_raised(child, name):
    provider(child, FAILS.format(name=name))
    baton.register_error("test.Registered", Registered)
    try:
        with pytest.raises(Registered, match="it is known"):
            baton.call(name, "registered")
    finally:
        baton._errors._registered.clear()
    with pytest.raises(baton.Conflict):
        baton.register_error("ValueError", Registered)
    with pytest.raises(TypeError):
        baton.register_error("x", int)


SLOW = """
@baton.function({name!r}, concurrency={n})
def slow(what=None):
    say("runs", what)
    while not baton.current_call().cancelled:
        time.sleep(0.005)
    say("cancelled", what)
"""


def test_a_provider_that_is_killed_while_it_runs(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    f = baton.get_function(name)
    running, waiting = f.submit(1), f.submit(2)
    assert c.hear() == "runs 1"
    c.kill()
    with pytest.raises(baton.ProviderDied) as e:
        running.result(PATIENCE)
    assert e.value.pid == c.pid and e.value.reason and str(c.pid) in str(e.value)
    with pytest.raises(baton.NoProvider):
        waiting.result(PATIENCE)
    with pytest.raises((baton.NoProvider, baton.NotFound)):
        f(3)


def test_what_was_not_begun_goes_to_another_provider(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    f = baton.get_function(name)
    running, waiting = f.submit(1), f.submit(2)
    assert c.hear() == "runs 1"
    other = child(SERVES.format(SLOW.format(name=name, n=1)))
    assert sorted(other.hear().split()[0] for _ in range(2)) == ["ready", "runs"]
    third = f.submit(3)
    c.kill()
    with pytest.raises(baton.ProviderDied):
        running.result(PATIENCE)
    waiting.cancel()
    assert other.hear() == "cancelled 2"
    assert other.hear() == "runs 3"
    third.cancel()
    assert other.hear() == "cancelled 3"


def test_a_call_that_is_begun_again_tells_so(child, name):
    script = f"""
@baton.function({name!r}, idempotent=True)
def again():
    say("runs", baton.current_call().attempt)
    if baton.current_call().attempt == 1: time.sleep(1000)
    return baton.current_call().attempt
"""
    c = provider(child, script)
    future = baton.get_function(name).submit()
    assert c.hear() == "runs 1"
    other = provider(child, script)
    c.kill()
    assert other.hear() == "runs 2"
    assert future.result(PATIENCE) == 2


def test_no_provider_and_no_function(child, name):
    with pytest.raises(baton.NotFound):
        baton.call(name)
    with pytest.raises(baton.NotFound):
        baton.get_function(name, wait=0.01)
    c = provider(child, ECHO.format(name=name))
    f = baton.get_function(name)
    with pytest.raises(baton.NotFound, match=name):  # names similar ones
        baton.get_function(name + "x")
    c.tell("started.close(); say('closed')")
    assert c.hear() == "closed"
    with pytest.raises(baton.NoProvider):
        f(1)
    with pytest.raises(baton.NoProvider):
        f.options(wait=0.01)(1)
    waits = threading.Thread(target=lambda: results.append(f.options(wait=PATIENCE)(5)))
    results = []
    waits.start()
    provider(child, ECHO.format(name=name))
    waits.join(PATIENCE)
    assert results == [5]
    late = []
    waits = threading.Thread(target=lambda: late.append(baton.get_function(name + "/later", wait=PATIENCE)(6)))
    waits.start()
    provider(child, ECHO.format(name=name + "/later"))
    waits.join(PATIENCE)
    assert late == [6]


def test_a_call_that_takes_too_long_is_cancelled(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    f = baton.get_function(name).options(timeout=0.05)
    with pytest.raises(baton.Timeout) as e:
        f("sync")
    assert isinstance(e.value, TimeoutError)
    assert [c.hear(), c.hear()] == ["runs sync", "cancelled sync"]
    with pytest.raises(baton.Timeout):
        f.submit("later").result(PATIENCE)
    assert [c.hear(), c.hear()] == ["runs later", "cancelled later"]
    with pytest.raises(baton.Timeout):
        asyncio.run(f.acall("async"))
    assert [c.hear(), c.hear()] == ["runs async", "cancelled async"]


def test_so_many_calls_run_at_a_time_as_was_said(child, name):
    provider(
        child,
        f"""
barrier = threading.Barrier(4)
@baton.function({name!r}, concurrency=4)
def meet(i):
    barrier.wait({PATIENCE})
    return i
@baton.function({name + "/one"!r})
def one():
    runs.append(1)
    n = len(runs)
    time.sleep(0.01)
    runs.pop()
    return n
runs = []
""",
    )
    f = baton.get_function(name)
    assert sorted(t.result(PATIENCE) for t in [f.submit(i) for i in range(8)]) == list(range(8))
    one = baton.get_function(name + "/one")
    assert [t.result(PATIENCE) for t in [one.submit() for _ in range(5)]] == [1] * 5


def test_a_call_that_is_waited_for_makes_no_thread(child, name):
    provider(child, ECHO.format(name=name))
    f = baton.get_function(name)
    f(1)
    before = set(os.listdir("/proc/self/task"))
    assert [f(i) for i in range(100)] == list(range(100)) and baton.call(name, 3) == 3
    assert set(os.listdir("/proc/self/task")) <= before


def test_ctrl_c_in_a_caller_cancels_the_call(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    caller = child(
        f"""
try:
    baton.call({name!r}, "here")
except KeyboardInterrupt:
    say("interrupted")
"""
    )
    assert c.hear() == "runs here"
    caller.process.send_signal(signal.SIGINT)
    assert caller.hear() == "interrupted" and c.hear() == "cancelled here"
    caller.end()


def test_a_caller_that_is_killed_cancels_its_calls(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    caller = child(f"baton.call({name!r}, 'here')")
    assert c.hear() == "runs here"
    caller.kill()
    assert c.hear() == "cancelled here"


def test_the_end_of_a_function_waits_for_what_runs(child, name):
    c = child(
        f"""
import threading
go = threading.Event()
@baton.function({name!r})
def waits():
    say("runs")
    go.wait()
    return 5
started = baton.start_functions()
say("ready")
sys.stdin.readline()
threading.Timer(0.05, go.set).start()
started.close()
say("closed", started.names)
"""
    )
    assert c.hear() == "ready"
    future = baton.get_function(name).submit()
    assert c.hear() == "runs"
    c.tell()
    assert future.result(PATIENCE) == 5
    assert c.hear() == "closed []"
    c.end()


def test_serving_ends_by_ctrl_c_without_an_error(child, name):
    c = child(
        f"""
@baton.function({name!r})
def f(): return 1
say("serves")
baton.serve_functions()
say("ended")
"""
    )
    assert c.hear() == "serves"
    f = baton.get_function(name, wait=PATIENCE)
    assert f() == 1
    c.process.send_signal(signal.SIGINT)
    assert c.hear() == "ended"
    c.end()
    assert eventually(lambda: f.providers == 0, "the function to have no provider")


def test_serving_ends_when_the_function_is_removed(child, name):
    c = child(
        f"""
@baton.function({name!r})
def f(): return 1
baton.serve_functions()
say("ended")
"""
    )
    assert baton.get_function(name, wait=PATIENCE)() == 1
    assert baton.remove_function(name, everywhere=True) == 1
    assert c.hear() == "ended"
    c.end()


def test_a_program_ends_cleanly_whatever_it_has_under_way(child, name):
    slow = provider(child, SLOW.format(name=name, n=2))
    script = f"""
import baton, asyncio
@baton.function({name + "/mine"!r}, concurrency=3)
def mine(x): return x
@baton.function({name + "/async"!r}, concurrency=3)
async def wait(): await asyncio.sleep(1000)
started = baton.start_functions()
f = baton.get_function({name!r})
futures = [f.submit(i) for i in range(2)]
assert baton.call({name + "/mine"!r}, 3) == 3
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    heard = sorted(slow.hear() for _ in range(4))
    assert heard == ["cancelled 0", "cancelled 1", "runs 0", "runs 1"]


ASYNC = """
import asyncio
@baton.function({name!r}, concurrency=8)
async def wait(n, forever=False):
    say("runs", n)
    try:
        global met
        met += 1
        if met == 8: all.set()
        await (asyncio.Event() if forever else all).wait()
    except asyncio.CancelledError:
        say("cancelled", n)
        raise
    return n, baton.current_call().attempt
@baton.function({name!r} + "/fail")
async def fail(how):
    if how == "exit": sys.exit(1)
    raise ValueError(how)
@baton.function({name!r} + "/outer")
async def outer():
    return await baton.get_function({name!r}).acall(7, forever=True)
met, all = 0, asyncio.Event()
"""


def test_coroutines_run_at_a_time_and_are_awaited(child, name):
    c = provider(child, ASYNC.format(name=name))

    async def calls():
        f = baton.get_function(name)
        return await asyncio.gather(*[f.acall(i) for i in range(8)])

    assert asyncio.run(calls()) == [(i, 1) for i in range(8)]
    assert sorted(c.hear() for _ in range(8)) == [f"runs {i}" for i in range(8)]
    for how, error in (("bad", ValueError), ("exit", baton.RemoteError), ("bad", ValueError)):
        with pytest.raises(error):
            baton.call(name + "/fail", how)


def test_a_task_that_is_cancelled_cancels_the_call_and_its_coroutine(child, name):
    c = provider(child, ASYNC.format(name=name))

    async def cancels(which, *args):
        task = asyncio.create_task(baton.get_function(which).acall(*args))
        assert await asyncio.to_thread(c.hear) == "runs 7"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancels(name, 7, True))
    assert c.hear() == "cancelled 7"
    asyncio.run(cancels(name + "/outer"))  # which calls the first
    assert c.hear() == "cancelled 7"


def test_calls_within_calls_inherit_the_deadline(child, name):
    c = provider(
        child,
        SLOW.format(name=name, n=1)
        + f"""
@baton.function({name + "/outer"!r})
def outer():
    call = baton.current_call()
    say(0 < call.deadline - time.monotonic() <= 0.2, call.caller, call.attempt)
    try:
        baton.call({name!r}, "inner")
    except baton.Error as e:
        say(type(e).__name__)
        raise
@baton.function({name + "/loop"!r})
def loop():
    return baton.call({name + "/loop"!r})
assert baton.current_call() is None
""",
    )
    with pytest.raises(baton.Timeout):
        baton.get_function(name + "/outer").options(timeout=0.2)()
    said = c.hear().split()
    assert (said[0], said[-1]) == ("True", "1") and len(said) > 2
    heard = {c.hear() for _ in range(3)}
    assert "runs inner" in heard and "cancelled inner" in heard and heard & {"Timeout", "Cancelled"}
    with pytest.raises(baton.RemoteError, match="would wait for itself"):
        baton.call(name + "/loop")


def test_futures_of_calls(child, name):
    c = provider(child, SLOW.format(name=name, n=2) + ECHO.format(name=name + "/e") + FAILS.format(name=name + "/f"))
    echo = baton.get_function(name + "/e")
    futures = [echo.submit(i) for i in range(20)]
    assert isinstance(futures[0], concurrent.futures.Future)
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures, PATIENCE)) == list(range(20))
    assert [f.result() for f in futures] == list(range(20))
    e = baton.get_function(name + "/f").submit("KeyError('k')").exception(PATIENCE)
    assert type(e) is KeyError and e.args == ("k",)
    slow = baton.get_function(name).submit(1)
    assert c.hear() == "runs 1"
    assert slow.cancel() and c.hear() == "cancelled 1"
    with pytest.raises(baton.InvalidArgument):
        baton.get_function(name).submit(1, 2)


def test_a_forked_child_provides_nothing_and_calls(child, name):
    c = child(
        f"""
import os
@baton.function({name!r})
def f(x): return os.getpid()
@baton.function({name + "/forks"!r})
def forks():
    if (pid := os.fork()) == 0:
        return "the child's"
    return os.waitpid(pid, 0)[0] == pid
started = baton.start_functions()
g = baton.get_function({name!r})
g(1)
if (pid := os.fork()) == 0:
    assert baton.call({name!r}, 1) == g(2) == os.getppid()
    assert baton.get_function({name!r}).submit(1).result(30) == os.getppid()
    say("called", started.names)
    started.close()
    os._exit(0)
say("child", os.waitpid(pid, 0)[1])
say(len(baton.functions({name!r})[0].providers))
sys.stdin.readline()
"""
    )
    assert c.hear() == "called []" and c.hear() == "child 0" and c.hear() == "1"
    assert baton.call(name, 1) == c.pid
    assert baton.call(name + "/forks") is True  # and not what the child returned
    assert baton.call(name, 1) == c.pid
    c.tell()
    c.end()


def test_a_function_is_called_in_its_own_process_too(name):
    @baton.function(name, version="2", concurrency=2)
    def twice(x: int) -> int:
        return baton.call(name + "/inner", x) * 2

    @baton.function(name + "/inner")
    def inner(x: int) -> int:
        return x + 1

    assert inner(1) == 2
    with baton.start_functions(twice, inner) as started:
        assert sorted(started.names) == sorted([f"{name}@2", name + "/inner"])
        assert baton.call(name, 1) == 4 and baton.get_function(name, version="2")(2) == 6
        assert "inner" in repr(started)
        with pytest.raises(baton.Conflict):
            baton.start_functions(inner)
        assert baton.remove_function(name + "/inner") == 1
        with pytest.raises(baton.NotFound):
            baton.remove_function(name + "/inner")
        with pytest.raises((baton.NoProvider, baton.NotFound)):
            baton.call(name + "/inner", 1)
    assert started.names == []
    with pytest.raises((baton.NoProvider, baton.NotFound)):
        baton.call(name, 1)
    with pytest.raises(baton.NotFound):
        baton.start_functions(name + "/never")


def test_names_are_those_of_modules_or_given(tmp_path):
    def nested(): ...

    for bad in (lambda: baton.function()(nested), lambda: baton.function(lambda: 1)):
        with pytest.raises(baton.InvalidArgument, match="inside another function"):
            bad()
    for bad in ("a b", "", "a//b", "a/@1/b"):
        with pytest.raises(baton.InvalidArgument):
            baton.function(bad or "/")(nested)
    with pytest.raises(baton.InvalidArgument):
        baton.function("a@1", version="2")(nested)
    with pytest.raises(baton.InvalidArgument):
        baton.function("a", concurrency=0)(nested)
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "ops.py").write_text(
        "import baton\n@baton.function\ndef blur(x: int): return x\n"
        "class K:\n    @staticmethod\n    @baton.function(version='1.2')\n    def m(): return 5\n"
    )
    script = """
import baton, vision.ops
with baton.start_functions() as s: print(*s.names, baton.call("vision/ops/blur", 2), baton.bind("vision/ops/K").m())
def f(): pass
try: baton.function(f)
except baton.InvalidArgument as e: print(e)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "vision/ops/blur vision/ops/K/m@1.2 2 5",
        'f is a function of __main__: give it a name, @baton.function("…")',
    ]


def test_a_namespace_has_functions_as_attributes(child, name):
    provider(child, ECHO.format(name=name + "/echo") + ECHO.format(name=name + "/other@3").replace("def echo", "def o"))
    there = baton.bind(name)
    assert there.echo(3) == 3 and there.echo is there.echo and there.other(4) == 4
    assert dir(there) == ["echo", "other"]
    with pytest.raises(AttributeError):
        there.missing
    assert not hasattr(there, "missing")


def test_a_provider_with_another_signature_conflicts(child, name):
    provider(child, SIGNED.format(name=name))

    @baton.function(name)
    def other(x: int): ...

    with pytest.raises(baton.Conflict):
        baton.start_functions(other)

    @baton.function(name + "/num", override=True)
    def num(x: int):
        return x

    with baton.start_functions(num):
        assert baton.call(name + "/num", 5) == 5
        assert baton.get_function(name + "/num").signature == "(x: int)"


def test_the_signature_of_what_is_decorated_stays():
    @baton.function("test/stays")
    def f(x: int = 3) -> int:
        "Doc."
        return x

    assert f() == 3 and f.__doc__ == "Doc." and str(inspect.signature(f)) == "(x: int = 3) -> int"


def test_the_command_line_calls_a_function(name, tmp_path):
    """`baton` is a caller in Go."""

    @baton.function(name)
    def scale(x: np.ndarray, by: float = 2.0, *, deep: dict | None = None) -> dict:
        "Scales."
        if deep == {"fail": True}:
            raise ValueError("bad value 3")
        return {"y": x * by, "deep": deep, "n": 2**70}

    np.save(tmp_path / "x.npy", np.arange(3.0))
    with baton.start_functions(scale):
        out = command("call", name, f"@{tmp_path}/x.npy", "by=3", 'deep={"a": [1, null]}')
        assert json.loads(out) == {"deep": {"a": [1, None]}, "n": 2**70, "y": {"dtype": "float64", "shape": [3]}}
        (row,) = [row for row in listing("functions") if row["name"] == name]
        assert row["providers"][0]["pid"] == os.getpid()
        failed = subprocess.run(
            [BATON, "call", name, f"@{tmp_path}/x.npy", 'deep={"fail": true}'],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert failed.returncode != 0 and "ValueError: bad value 3" in failed.stderr and "in scale" in failed.stderr


def test_nothing_of_a_call_is_held_when_it_is_over(child, name):
    provider(
        child,
        f"""
@baton.function({name!r})
def first(x: baton.Tensor, fail: bool) -> baton.Tensor:
    if fail: raise ValueError
    return x
@baton.function({name + "/async"!r})
async def second(x: baton.Tensor, fail: bool) -> baton.Tensor:
    return first(x, fail)
""",
    )
    x = baton.zeros(1000)
    for f in (baton.get_function(name), baton.get_function(name + "/async")):
        f(x, False)
        before = baton.stats()["live"]
        for i in range(300):
            y = baton.zeros(1000)
            if i % 2:
                assert f(y, False).shape == (1000,)
            else:
                with pytest.raises(ValueError):
                    f(y, True)
            del y
        assert baton.stats()["live"] < before + 100  # the memory of one serves later ones


@pytest.mark.parametrize("stands_still", [False, True])
def test_serving_ends_with_an_error_where_the_session_is_lost(own, child, name, stands_still):
    c = child(
        f"""
@baton.function({name!r})
def f(): return 1
try: baton.serve_functions()
except baton.SessionLost as e: say(e)
else: say("ended")
"""
    )
    with baton.connect() as s:
        f = baton.get_function(name, wait=PATIENCE, session=s)
        assert f() == 1
        (p,) = baton.functions(name, session=s)[0].providers
        if stands_still:  # then it finds its registration ended before it has read why
            os.kill(c.pid, signal.SIGSTOP)
        command("evict", str(p.session), "--yes")
        os.kill(c.pid, signal.SIGCONT)
        assert re.search("an operator (has )?evicted it", c.hear())
        c.end()
        with pytest.raises((baton.NoProvider, baton.NotFound)):
            baton.get_function(name, session=s)()
