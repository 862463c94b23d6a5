"""What receives is closed while a thread, a task or a signal's handler is in it."""

import asyncio
import contextlib
import threading

import baton
import pytest
from conftest import PATIENCE, asleep, eventually, listing

KINDS = {
    "reader": lambda name: baton.topic(name).reader(),
    "watch": lambda name: baton.watch(name),
}


def receiving(r):
    """A thread that waits in it, and what it then raised."""
    raised = []

    def receive():
        try:
            r.receive()
        except baton.Error as e:
            raised.append(e)

    t = threading.Thread(target=receive, daemon=True)
    t.start()
    return t, raised


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_wait_are_told_that_it_was_closed(name, kind):
    r = KINDS[kind](name)
    first, of_first = receiving(r)
    eventually(lambda: asleep(first), "the first to wait")
    second, of_second = receiving(r)  # for its turn
    r.close()
    for t in (first, second):
        t.join(PATIENCE)
        assert not t.is_alive()
    for (e,) in (of_first, of_second):
        assert type(e) is baton.Closed and f"the {kind} was closed" in str(e)
    for again in (r.receive, r._poll):
        with pytest.raises(baton.Closed, match=f"the {kind} was closed"):
            again()
    r.close()


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_wait_are_told_that_it_was_closed(name, kind):
    r = KINDS[kind](name)

    async def main():
        task = asyncio.create_task(r.receive_async())
        await asyncio.sleep(0)
        r.close()
        with pytest.raises(baton.Closed, match=f"the {kind} was closed"):
            await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())


def test_a_topic_is_left_behind_the_thread_that_waits(name):
    t = baton.topic(name, overwrite=False, depth=1)
    r = t.reader()
    thread, _ = receiving(r)
    eventually(lambda: asleep(thread), "the thread to wait")
    r.close()
    thread.join(PATIENCE)

    def readers():
        (found,) = [t for t in listing("topics") if t["name"] == name]
        return found["readers"]

    eventually(lambda: readers() == 0, "the topic to be left")
    for i in range(3):
        t.send(i, timeout=PATIENCE)  # no reader holds it back


def test_a_topic_is_left_whatever_comes_meanwhile(name):
    """A close between the message that a thread takes and the end of its turn is its own to carry out."""
    t = baton.topic(name, overwrite=False, depth=1)
    for _ in range(200):
        r = t.reader()

        def takes(r=r):
            with contextlib.suppress(baton.Closed):
                while True:
                    r.receive()

        thread = threading.Thread(target=takes, daemon=True)
        thread.start()
        t.send(1, timeout=PATIENCE)
        r.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        t.send(2, timeout=PATIENCE)
        t.send(3, timeout=PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_signals_handler_closes_what_its_thread_waits_in(name, kind, child):
    c = child(
        """
import signal
r = baton.topic(sys.argv[1]).reader() if sys.argv[2] == "reader" else baton.watch(sys.argv[1])
signal.signal(signal.SIGUSR1, lambda *_: r.close())
say("ready")
try: r.receive()
except baton.Closed as e: say(e)
""",
        name,
        kind,
    )
    assert c.hear() == "ready"
    c.process.send_signal(10)
    assert f"the {kind} was closed" in c.hear()
    c.end()


def test_a_child_of_a_fork_closes_its_own(name, child):
    c = child(
        """
import os
t = baton.topic(sys.argv[1])
r = t.reader()
t.send(1)
pid = os.fork()
if pid == 0:
    r.close()
    try: r.receive()
    except baton.Closed: os._exit(7)
    os._exit(1)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), r.receive(timeout=60).value)
""",
        name,
    )
    assert c.hear() == "7 1"
    c.end()
