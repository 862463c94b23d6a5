"""Calls that run beside others: deadlines, futures, tasks, calls within calls, forks."""

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import os
import threading

import baton
import pytest
from conftest import PATIENCE
from function_kit import ECHO, FAILS, SLOW, late, nothing_is_defined, provider  # noqa: F401


def test_a_call_that_takes_too_long_is_cancelled(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    f = baton.get_function(name)
    for how, call in {
        "sync": lambda timeout: f.options(timeout=timeout)("sync"),
        "later": lambda timeout: f.options(timeout=timeout).submit("later").result(PATIENCE),
        "async": lambda timeout: asyncio.run(f.options(timeout=timeout).acall("async")),
    }.items():
        for _, (ended,) in late(call, name):
            assert [c.hear() for _ in range(2 * ended)] == [f"runs {how}", f"cancelled {how}"] * ended


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
    say(call.deadline - time.monotonic(), call.attempt, call.caller)
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
    outer = baton.get_function(name + "/outer")
    for timeout, (outer_ended, inner_ended) in late(lambda t: outer.options(timeout=t)(), name + "/outer", name):
        if not outer_ended:
            continue
        said = c.hear().split()
        assert float(said[0]) <= timeout and said[1] == "1" and said[2]
        heard = {c.hear() for _ in range(1 + 2 * inner_ended)}
        assert heard & {"Timeout", "Cancelled"}
        assert inner_ended == 0 or {"runs inner", "cancelled inner"} <= heard
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


@pytest.mark.parametrize("kind", ["f(x)", "submit", "stream", "acall", "future", "lent"])
def test_what_is_made_within_a_call_is_cancelled_with_it(name, kind):
    begun, ended, over = threading.Event(), threading.Event(), threading.Event()

    def waits():
        call = baton.current_call()
        begun.set()
        while not call.cancelled and not over.wait(0.001):
            pass
        if call.cancelled:
            ended.set()

    @baton.function(name + "/inner")
    def inner():
        waits()

    @baton.function(name + "/parts")
    def parts():
        yield waits()

    @baton.function(name + "/apply")
    def apply(f: baton.Function):
        f()

    @baton.function(name)
    def outer():
        f = baton.get_function(name + "/inner")
        if kind == "f(x)":
            f()
        elif kind == "submit":
            f.submit().result()
        elif kind == "stream":  # which another thread takes
            taken = baton.get_function(name + "/parts").stream()
            with concurrent.futures.ThreadPoolExecutor() as all:
                all.submit(list, taken).result()
        else:
            baton.call(name + "/apply", waits)

    @baton.function(name + "/task")
    async def task():
        f = baton.get_function(name + "/inner")
        if kind == "acall":
            await f.acall()
        else:
            future = f.submit()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # its end is not disturbed
                with contextlib.suppress(concurrent.futures.CancelledError):
                    await asyncio.to_thread(future.result)

    with baton.start_functions(inner, parts, apply, outer, task):
        future = baton.get_function(name + "/task" * (kind in ("acall", "future"))).submit()
        assert begun.wait(PATIENCE)
        future.cancel()
        was_cancelled = ended.wait(PATIENCE)
        over.set()
        assert was_cancelled


def test_the_child_of_a_fork_is_not_within_the_call_of_its_parent(child, name):
    script = """
import os
@baton.function({name!r}, concurrency=4)
def one(x): return os.getpid(), x
def child():
    before = baton.current_call()
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            f = baton.get_function({name!r})
            told = baton.current_call(), before and before.cancelled, f(1)[1], f.submit(2).result()[1]
        except BaseException as e:
            told = e
        os.write(writes, repr(told).encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as told:
        return told.read(), os.waitpid(pid, 0)[1]
@baton.function({name!r} + "/forks")
def forks(): return child()
@baton.function({name!r} + "/task")
async def task(): return child()
@baton.function({name!r} + "/parts")
def parts(): yield child()
@baton.function({name!r} + "/lent")
def lent(f): return f()
@baton.function({name!r} + "/lends")
def lends(): return baton.call({name!r} + "/lent", child)
"""
    provider(child, script.format(name=name))

    def f(what):
        return baton.get_function(name + what).options(timeout=PATIENCE)

    well = ("(None, False, 1, 2)", 0)
    assert f("/forks")() == well and f("/task")() == well and f("/lends")() == well
    assert list(f("/parts").stream()) == [well]


def pooled(called):
    name, n = called
    return baton.call(name, n)


def test_a_pool_of_a_function_calls(name):
    @baton.function(name + "/one", concurrency=2)
    def one(n: int) -> int:
        return n + 1

    @baton.function(name)
    def pool() -> list:
        with multiprocessing.get_context("fork").Pool(2) as all:
            return all.map(pooled, [(name + "/one", n) for n in range(5)])

    with baton.start_functions(one, pool):
        assert baton.get_function(name).options(timeout=PATIENCE)() == [1, 2, 3, 4, 5]


def test_a_function_that_calls_itself_without_an_end_fails(name):
    @baton.function(name, concurrency=200)
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + baton.call(name, n - 1)

    with baton.start_functions(down):
        f = baton.get_function(name).options(timeout=PATIENCE)
        assert f(63) == 63
        for n in (64, 65, 1000):
            with pytest.raises(baton.RemoteError, match=f"64 deep: {name} > {name} > "):
                f(n)


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
