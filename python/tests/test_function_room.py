"""Calls of tasks that wait for room, or for a provider: the event loop goes on meanwhile."""

import asyncio
import contextlib
import threading

import baton
import pytest
from conftest import PATIENCE
from function_kit import nothing_is_defined, provider  # noqa: F401

ROOM = 64  # calls of a function that a session has under way

HOLDS = """
go = threading.Event()
@baton.function({name!r}, concurrency=4)
def hold(n):
    say("runs", n)
    while not go.wait(0.01) and not baton.current_call().cancelled: pass
    return n
@baton.function({name!r} + "/parts", concurrency=100)
def parts(n):
    yield n
    while not go.wait(0.01) and not baton.current_call().cancelled: pass
    yield -n
"""


async def turns(n=20):
    """Lets the tasks of the loop come as far as they can."""
    for _ in range(n):
        await asyncio.sleep(0)


async def full(f, n=ROOM):
    """Tasks that take all the room."""
    return [asyncio.create_task(f(i)) for i in range(n)]


def test_more_calls_than_there_is_room_for_are_gathered(child, name):
    provider(child, f"@baton.function({name!r}, concurrency=4)\ndef same(n): return n")
    f = baton.get_function(name)

    async def all():
        return await asyncio.gather(*[f.acall(i) for i in range(3 * ROOM + 8)])

    assert asyncio.run(all()) == list(range(3 * ROOM + 8))


def test_coroutines_of_one_loop_call_each_other_however_many_they_are(name):
    @baton.function(name + "/inner", concurrency=4)
    async def inner(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @baton.function(name + "/parts", concurrency=4)
    async def parts(n: int):
        yield n
        yield -n

    @baton.function(name)
    async def outer(n: int, parts: bool) -> int:
        async def taken(i):
            return sum([part async for part in f.astream(i)])

        if parts:
            f = baton.get_function(name + "/parts")
            return sum(await asyncio.gather(*[taken(i) for i in range(n)]))
        f = baton.get_function(name + "/inner")
        return sum(await asyncio.gather(*[f.acall(i) for i in range(n)]))

    with baton.start_functions(inner, parts, outer):
        f = baton.get_function(name).options(timeout=PATIENCE)
        assert f(200, False) == sum(range(200))
        assert f(100, True) == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_many_tasks_read_streams_of_one_function(name, ahead):
    @baton.function(name, concurrency=4)
    def count(n: int):
        yield from range(n)

    async def read(f):
        if ahead:  # those for which there is room are sent, and wait for their task
            begun = [f.astream(50) for _ in range(3)]
        for i in range(3):
            assert [part async for part in (begun[i] if ahead else f.astream(50))] == list(range(50))

    async def all():
        f = baton.get_function(name)
        return await asyncio.wait_for(asyncio.gather(*[read(f) for _ in range(80)]), PATIENCE)

    with baton.start_functions(count):
        assert len(asyncio.run(all())) == 80


@pytest.mark.parametrize("stream", [False, True])
def test_the_loop_goes_on_while_a_call_waits_for_room(child, name, stream):
    c = provider(child, HOLDS.format(name=name))
    f = baton.get_function(name + "/parts" * stream)

    async def one(f, n):
        if stream:
            return [part async for part in f.astream(n)]
        return await f.acall(n)

    async def run():
        held = await full(lambda n: one(f, n))
        await turns()
        cancelled = asyncio.create_task(one(f, -1))
        last = asyncio.create_task(one(f, ROOM))
        late = asyncio.create_task(one(f.options(timeout=0.01), -2))
        await turns()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(baton.Full):
            await late
        assert not last.done() and not any(t.done() for t in held)
        c.tell("go.set()")
        return await asyncio.wait_for(asyncio.gather(*held, last), PATIENCE)

    done = asyncio.run(run())
    assert done == [[n, -n] if stream else n for n in range(ROOM + 1)]
    # What was cancelled, and what was late, was not sent.
    assert baton.functions(f.name)[0].calls == ROOM + 1


def test_the_loop_goes_on_while_a_call_waits_for_a_provider(child, name):
    script = f"@baton.function({name!r})\ndef same(n): return n"
    first = provider(child, script)
    f = baton.get_function(name)
    first.end()

    async def run():
        with pytest.raises(baton.NoProvider):
            await f.acall(0)
        with pytest.raises(baton.NoProvider):
            await f.options(wait=0.01).acall(0)
        with pytest.raises(baton.Timeout):
            await f.options(wait=PATIENCE, timeout=0.01).acall(0)
        cancelled = asyncio.create_task(f.options(wait=PATIENCE).acall(0))
        waits = asyncio.create_task(f.options(wait=PATIENCE).acall(1))
        await turns()
        cancelled.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled
        assert not waits.done()
        await asyncio.to_thread(provider, child, script)
        return await waits

    assert asyncio.run(run()) == 1
    assert baton.functions(name)[0].calls == 1


def test_a_call_that_waits_within_another_ends_with_it(child, name):
    c = provider(child, HOLDS.format(name=name))
    full, ended = threading.Event(), threading.Event()

    @baton.function(name + "/outer")
    async def outer() -> int:
        f = baton.get_function(name)
        held = [asyncio.create_task(f.acall(i)) for i in range(ROOM)]
        try:
            await turns()
            full.set()
            return await f.acall(-1)
        finally:
            for t in held:
                t.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            ended.set()

    with baton.start_functions(outer):
        call = baton.get_function(name + "/outer").submit()
        assert c.hear().startswith("runs") and full.wait(PATIENCE)
        call.cancel()
        assert ended.wait(PATIENCE)
