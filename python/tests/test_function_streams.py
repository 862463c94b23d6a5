"""Functions that give parts: generators of other processes, and of this one."""

import asyncio
import gc
import os
import signal
import threading

import baton
import numpy as np
import pytest
from conftest import PATIENCE, eventually, listing
from function_kit import counted, late, nothing_is_defined, provider  # noqa: F401 - a fixture


def running(name):
    (f,) = baton.functions(name)
    return f.running, f.waiting


COUNT = """
@baton.function({name!r}, idempotent={idempotent})
def count(n: int, die: int = -1):
    for i in range(n):
        if i == die and baton.current_call().attempt == 1:
            os.kill(os.getpid(), 9)
        yield i, np.full(3, i)
    return baton.current_call().attempt
"""


def test_a_generator_gives_its_parts_and_its_result(child, name):
    provider(child, COUNT.format(name=name, idempotent=False))
    f = baton.get_function(name)
    assert f.signature == "(n: int, die: int = -1) -> parts"
    for n in 0, 1, 200:
        parts = f.stream(n)
        assert [i for i, x in parts if x.tolist() == [i] * 3] == list(range(n))
        assert list(parts) == [] and parts.result() == 1
    assert f.stream(50).result() == 1  # its parts are let go
    with pytest.raises(baton.InvalidArgument, match="stream"):
        f(1)
    with pytest.raises(baton.InvalidArgument, match="stream"):
        f.submit(1)


def test_a_plain_function_gives_none(name):
    @baton.function(name)
    def plain():
        return [1, 2]

    with baton.start_functions(plain), pytest.raises(baton.InvalidArgument, match="without stream"):
        baton.get_function(name).stream()


def test_what_generators_say_of_their_parts(name):
    from collections.abc import AsyncIterator, Generator, Iterator

    def a() -> Iterator[int]:
        yield 1

    def b() -> Generator[np.ndarray, None, str]:
        yield np.ones(1)
        return "done"

    async def c() -> AsyncIterator[str]:
        yield "x"

    for f, text in (a, "int"), (b, "tensor"), (c, "str"):
        baton.function(f"{name}/{f.__name__}")(f)
        with baton.start_functions(f):
            g = baton.get_function(f"{name}/{f.__name__}")
            assert g.signature == f"() -> parts of {text}"
            assert len(list(g.stream())) == 1


def test_a_provider_is_ahead_as_far_as_it_may(name):
    made = {1: [], 7: [], 63: []}

    @baton.function(name)
    def ahead(n):
        for i in range(1000):
            made[n].append(i)
            yield i

    with baton.start_functions(ahead):
        f = baton.get_function(name)
        for n, all in made.items():
            with f.options(ahead=n).stream(n) as parts:
                # Those that are sent, and one that waits.
                eventually(lambda: len(all) == n + 1, "it is ahead")  # noqa: B023
                assert next(parts) == 0
                eventually(lambda: len(all) == n + 2, "it is ahead")  # noqa: B023
        for n in 0, 64, -1:
            with pytest.raises(baton.InvalidArgument, match="ahead"):
                f.options(ahead=n).stream(1)


def test_a_loop_over_parts_calls_their_provider(child, name):
    provider(child, COUNT.format(name=name, idempotent=False))
    f = baton.get_function(name).options(ahead=1)
    got = [(i, k) for i, _ in f.stream(4) for k, _ in f.stream(3)]
    assert got == [(i, k) for i in range(4) for k in range(3)]


def test_streams_that_nobody_reads_hold_up_nothing(child, name):
    provider(child, COUNT.format(name=name, idempotent=False))
    f = baton.get_function(name).options(ahead=2)
    unread = [f.stream(10**9) for _ in range(20)]
    eventually(lambda: running(name) == (20, 0), "all of them wait")
    for _ in range(20):
        assert f.stream(10).result() == 1
    assert next(unread[3])[0] == 0 and next(unread[3])[0] == 1
    unread.clear()
    eventually(lambda: running(name) == (0, 0), "they are cancelled")


LEFT = """
@baton.function({name!r})
def left():
    try:
        for i in range(10**9):
            yield i
    finally:
        say("left", baton.current_call().cancelled)
"""


def test_a_stream_that_is_left_is_cancelled(child, name):
    c = provider(child, LEFT.format(name=name))
    f = baton.get_function(name)
    for part in f.stream():
        if part == 40:
            break
    gc.collect()
    assert c.hear() == "left True"
    parts = f.stream()
    assert next(parts) == 0
    parts.close()
    assert c.hear() == "left True" and list(parts) == []
    with pytest.raises(baton.Closed):
        parts.result()
    with f.stream() as parts:
        next(parts)
    assert c.hear() == "left True"
    with pytest.raises(ZeroDivisionError):
        for part in f.stream():
            1 / part
    gc.collect()
    assert c.hear() == "left True"


def test_an_error_comes_behind_the_parts(name):
    @baton.function(name)
    def fails(what):
        yield 1
        yield 2
        if what == "value":
            yield object()
        raise KeyError(what)

    with baton.start_functions(fails):
        f = baton.get_function(name)
        for what, error in ("key", KeyError), ("value", TypeError):
            parts = f.stream(what)
            assert (next(parts), next(parts)) == (1, 2)
            with pytest.raises(error):
                next(parts)
            assert list(parts) == []
            with pytest.raises(error):
                f.stream(what).result()


def test_a_deadline_is_of_the_whole_stream(name):
    ended = []

    @baton.function(name)
    def endless():
        try:
            while True:
                yield 1
        finally:
            ended.append(baton.current_call().deadline is not None)

    with baton.start_functions(endless):

        def unread(timeout):
            parts = baton.get_function(name).options(timeout=timeout).stream()
            eventually(lambda: counted(name), "its provider ends it")
            list(parts)

        for _ in late(unread, name):
            pass
        assert ended == [True] * len(ended)

        async def taken():
            async for _ in baton.get_function(name).options(timeout=0.05).astream():
                await asyncio.sleep(0.001)

        with pytest.raises(baton.Timeout):
            asyncio.run(taken())


def test_a_provider_that_is_killed_in_mid_stream(child, name):
    c = provider(child, COUNT.format(name=name, idempotent=False))
    parts = baton.get_function(name).stream(100, die=10)
    assert [next(parts)[0] for _ in range(10)] == list(range(10))
    with pytest.raises(baton.ProviderDied) as e:
        next(parts)
    assert e.value.pid == c.pid and list(parts) == []


def test_an_idempotent_stream_goes_on_at_another_provider(child, name):
    for die in 0, 1, 50:
        script = COUNT.format(name=name, idempotent=True)
        both = [provider(child, script), provider(child, script)]
        parts = baton.get_function(name).stream(100, die=die)
        assert [(i, int(x[0])) for i, x in parts] == [(i, i) for i in range(100)]
        assert parts.result() >= 2
        for c in both:
            c.kill()
        eventually(lambda: baton.get_function(name).providers == 0, "they have left")


def test_a_caller_that_is_killed_in_mid_stream(child, name):
    c = provider(child, LEFT.format(name=name))
    caller = child(
        f"parts = baton.get_function({name!r}).stream()\nsay(next(parts), next(parts))\nfor _ in parts: pass"
    )
    assert caller.hear() == "0 1"
    caller.kill()
    assert c.hear() == "left True"
    assert next(baton.get_function(name).stream()) == 0


def test_ctrl_c_ends_a_loop(child, name):
    c = provider(
        child,
        LEFT.format(name=name).replace(
            "yield i",
            "if i < 3: yield i\n            else: threading.Event().wait(0.01)\n            if baton.current_call().cancelled: return",
        ),
    )
    caller = child(
        f"""
try:
    for part in baton.get_function({name!r}).stream(): say(part)
except KeyboardInterrupt:
    say("interrupted")
"""
    )
    assert [caller.hear() for _ in range(3)] == ["0", "1", "2"]
    caller.process.send_signal(signal.SIGINT)
    assert caller.hear() == "interrupted" and c.hear() == "left True"


def test_asynchronous_generators(name):
    ended = []

    @baton.function(name)
    async def numbers(n: int):
        try:
            for i in range(n):
                yield i
                if i % 3 == 0:
                    await asyncio.sleep(0)
        finally:
            ended.append(n)

    async def main():
        f = baton.get_function(name).options(ahead=2)
        unread = [f.astream(10**6) for _ in range(10)]  # of a concurrency of 1
        got = [[part async for part in f.astream(n)] for n in (0, 1, 50)]
        beside = await asyncio.gather(*[collect(f.astream(20)) for _ in range(8)])
        async for part in f.astream(10**6):
            if part == 30:
                break
        del part
        parts = f.astream(5)
        assert [part async for part in parts] == [0, 1, 2, 3, 4] and parts.result() is None
        unread.clear()
        return got, beside

    async def collect(parts):
        return [part async for part in parts]

    with baton.start_functions(numbers):
        got, beside = asyncio.run(main())
        assert got == [[], [0], list(range(50))] and beside == [list(range(20))] * 8
        assert list(baton.get_function(name).stream(9)) == list(range(9))
        gc.collect()
        eventually(lambda: running(name) == (0, 0), "what was left is cancelled")
        assert ended.count(10**6) == 11


def test_a_coroutine_that_takes_parts_ends_with_its_call(name):
    seen = threading.Event()
    left = threading.Event()

    @baton.function(f"{name}/inner")
    async def inner():
        try:
            while True:
                yield 1
                seen.set()
                await asyncio.sleep(0.001)
        finally:
            left.set()

    @baton.function(f"{name}/outer")
    async def outer():
        async for _ in baton.get_function(f"{name}/inner").astream():
            pass

    with baton.start_functions(inner, outer):
        future = baton.get_function(f"{name}/outer").submit()
        assert seen.wait(PATIENCE)
        future.cancel()
        assert left.wait(PATIENCE)


def test_two_threads_do_not_take_parts_at_once(name):
    go = threading.Event()

    @baton.function(name)
    def waits():
        yield 1
        go.wait(PATIENCE)
        yield 2

    with baton.start_functions(waits):
        parts = baton.get_function(name).stream()
        assert next(parts) == 1
        got = []
        other = threading.Thread(target=lambda: got.append(next(parts)))
        other.start()

        def refused():
            try:
                parts._poll()
            except RuntimeError:
                return True
            return False

        eventually(refused, "the other one waits")
        go.set()
        other.join()
        assert got == [2] and list(parts) == []


def test_the_child_of_a_fork_has_no_part_of_a_stream(name):
    @baton.function(name)
    def count():
        yield from range(100)

    with baton.start_functions(count):
        parts = baton.get_function(name).options(ahead=1).stream()
        assert next(parts) == 0
        pid = os.fork()
        if pid == 0:
            try:
                del parts  # the parent's, which goes on with it
                gc.collect()
                os._exit(0 if list(baton.get_function(name).stream())[-1] == 99 else 1)
            except BaseException:  # noqa: BLE001 - the child goes nowhere else
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert list(parts) == list(range(1, 100))
    assert not [t for t in listing("functions") if t["name"] == name and t["providers"]]
