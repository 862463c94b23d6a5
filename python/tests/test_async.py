"""Waiting in asyncio, without a thread for each task."""

import asyncio
import threading

import baton
import numpy as np
import pytest
from conftest import PATIENCE


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def test_items_are_awaited(name, child):
    c = child("q = baton.queue(sys.argv[1])\nfor _ in range(3): q.put(np.full(2, int(sys.stdin.readline())))", name)
    q = baton.queue(name)

    async def main():
        for i in (5, 6, 7):
            waiting = asyncio.create_task(q.get_async())
            await asyncio.sleep(0)
            c.tell(str(i))
            assert (await waiting).numpy().tolist() == [i, i]

    run(main())
    c.end()


def test_many_tasks_wait_without_threads(name):
    q = baton.queue(name)

    async def main():
        tasks = [asyncio.create_task(q.get_async()) for _ in range(50)]
        await asyncio.sleep(0)
        before = threading.active_count()
        for i in range(50):
            await q.put_async(i)
        got = await asyncio.gather(*tasks)
        assert sorted(got) == list(range(50)) and threading.active_count() <= before

    run(main())


def test_put_waits_for_room(name):
    q = baton.queue(name, depth=1)
    q.put(0)

    async def main():
        putting = asyncio.create_task(q.put_async({"a": np.arange(3)}))
        await asyncio.sleep(0)
        assert not putting.done()
        assert await q.get_async() == 0
        await putting
        assert (await q.get_async())["a"].numpy().tolist() == [0, 1, 2]

    run(main())


def test_send_waits_for_the_slowest_reader(name):
    t = baton.topic(name, depth=1, overwrite=False)
    r = t.reader()

    async def main():
        await t.send_async({"a": np.arange(3)}, meta={"n": 0})
        with pytest.raises(baton.Full):
            await t.send_async(1, timeout=0)
        sending = asyncio.create_task(t.send_async(np.arange(2), meta={"n": 1}))
        await asyncio.sleep(0)
        assert not sending.done()
        m = await r.receive_async()
        assert (m["a"].numpy().tolist(), m.meta) == ([0, 1, 2], {"n": 0})
        await sending
        m = await r.receive_async()
        assert (m.value.numpy().tolist(), m.meta) == ([0, 1], {"n": 1})

    run(main())


def test_messages_and_revisions_are_iterated(name):
    t, w = baton.topic(name), baton.watch(name)
    r, q = t.reader(), baton.queue(name + "/q")

    async def main():
        t.send(1)
        seen = []
        async for m in r:
            seen.append(m.value)
            if len(seen) == 3:
                t.close()
            else:
                asyncio.get_running_loop().call_later(0, t.send, len(seen) + 1)
        assert seen == [1, 2, 3]
        q.put("a")
        q.close()
        assert [x async for x in q] == ["a"]
        asyncio.get_running_loop().call_later(0, baton.set, name, np.zeros(1))
        async for b in w:
            assert b.revision == 1
            break
        with pytest.raises(baton.Closed):
            await r.receive_async()

    run(main())
    baton.delete(name)


def test_none_is_an_item(name):
    q = baton.queue(name)
    q.put(None)
    assert run(q.get_async()) is None


def test_time_runs_out(name):
    q, r, w = baton.queue(name, depth=1), baton.topic(name + "t").reader(), baton.watch(name)

    async def main():
        for wait, error in (
            (q.get_async(timeout=0), baton.Empty),
            (q.get_async(timeout=0.01), baton.Empty),
            (r.receive_async(timeout=0.01), baton.Timeout),
            (w.receive_async(timeout=0.01), baton.Timeout),
        ):
            with pytest.raises(error):
                await wait
        q.put(1)
        with pytest.raises(baton.Full):
            await q.put_async(2, timeout=0.01)
        assert await q.get_async(timeout=0) == 1
        with pytest.raises(ValueError):
            q.get_async(timeout=-1)

    run(main())


def test_a_cancelled_task_takes_nothing(name):
    q = baton.queue(name)

    async def main():
        for i in range(100):
            task = asyncio.create_task(q.get_async())
            await asyncio.sleep(0)
            q.put(i)
            await asyncio.sleep(0)
            task.cancel()
            try:
                got = await task
            except asyncio.CancelledError:
                got = q.get(0)
            assert got == i
        assert q.qsize() == 0

    run(main())


def test_loops_of_several_threads_wait_on_one_session(name):
    q = baton.queue(name)
    got, lock = [], threading.Lock()

    async def take():
        async for x in q:
            with lock:
                got.append(x)

    threads = [threading.Thread(target=lambda: asyncio.run(take())) for _ in range(4)]
    for t in threads:
        t.start()
    for i in range(200):
        q.put(i, timeout=PATIENCE)
    q.close()
    for t in threads:
        t.join(PATIENCE)
    assert sorted(got) == list(range(200))


def test_a_closed_session_ends_its_waits(name):
    s = baton.connect()
    q = s.queue(name)

    async def main():
        waiting = asyncio.create_task(q.get_async())
        await asyncio.sleep(0)
        s.close()
        with pytest.raises(baton.Closed):
            await waiting

    run(main())


class ClosesWhenLookedAt(asyncio.SelectorEventLoop):
    """A loop that another thread closes after it was found open."""

    looked_at = False

    def is_closed(self):
        closed = super().is_closed()
        if self.looked_at and not closed:
            self.looked_at = False
            self.close()
        return closed


def test_a_loop_that_closes_as_others_are_woken_leaves_them_awake(name):
    """The ring of a session goes on to the other loops that wait on it."""
    loops = [ClosesWhenLookedAt(), asyncio.new_event_loop()]  # in this order they are woken
    here, closing, there = (baton.queue(f"{name}/{i}") for i in range(3))
    errors = []

    async def waits(q):
        task = asyncio.ensure_future(q.get_async())
        await asyncio.sleep(0)
        return task

    tasks = [loop.run_until_complete(waits(q)) for loop, q in zip(loops, (closing, there), strict=True)]

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        task = await waits(here)
        loops[0].looked_at = True
        there.put(2)
        here.put(1)
        assert await task == 1

    run(main())
    assert errors == [] and loops[0].is_closed()
    assert loops[1].run_until_complete(asyncio.wait_for(tasks[1], PATIENCE)) == 2
    loops[1].close()
    tasks[0]._log_destroy_pending = False  # its loop is closed
