"""One wait for several readers, watches and queues."""

import asyncio
import os
import signal
import subprocess
import threading

import baton
import pytest
from conftest import BATON, PATIENCE, asleep, eventually


def waiting(objects):
    """A thread that waits for them, and what that gives."""
    ready = []
    t = threading.Thread(target=lambda: ready.append(baton.wait_any(objects, PATIENCE)), daemon=True)
    t.start()
    return t, ready


def after(objects, act):
    """What a thread that sleeps in its wait is given when something is done."""
    t, ready = waiting(objects)
    eventually(lambda: not t.is_alive() or waits(t), "the thread to wait")
    act()
    t.join(PATIENCE)
    assert ready, "it waits on"
    return ready[0]


def waits(thread):
    """Whether it sleeps on one bell, or on several (futex_waitv)."""
    words = open(f"/proc/self/task/{thread.native_id}/syscall").read().split()
    return asleep(thread) or words[0] == "449"


def test_all_that_are_ready_are_given_until_they_are_taken(name):
    topic, q = baton.topic(name), baton.queue(f"{name}/q")
    r, w = topic.reader(), baton.watch(f"{name}/w")
    everything = [r, q, w, q, r]
    assert baton.wait_any(everything, 0) == [] == baton.wait_any(everything, timeout=0.001)
    topic.send(1)
    q.put(2)
    for _ in range(3):
        assert baton.wait_any(iter(everything)) == [r, q, q, r]
    assert r.receive(0).value == 1
    assert baton.wait_any(everything) == [q, q]
    assert q.get(0) == 2
    baton.set(f"{name}/w", {"x": bytearray(8)})
    assert baton.wait_any(everything) == [w]
    assert w.receive(0).revision == 1
    assert baton.wait_any(everything, 0) == []
    baton.delete(f"{name}/w")


def test_what_cannot_be_waited_for_is_refused(name):
    with pytest.raises(baton.InvalidArgument, match="no objects"):
        baton.wait_any([])
    for wrong in (baton.topic(name), 3, None):
        with pytest.raises(TypeError, match="readers, watches and queues"):
            baton.wait_any([baton.queue(), wrong])
    for wrong in (-1, float("nan")):
        with pytest.raises(baton.InvalidArgument, match="no time"):
            baton.wait_any([baton.queue()], wrong)
    with pytest.raises(TypeError):
        baton.wait_any(baton.topic(name))


ECHO = """
n = sys.argv[1]
back = baton.topic(n + "/back")
r, q = baton.topic(n).reader(), baton.queue(n + "/q")
say("reads")
while True:
    for x in baton.wait_any([r, q]):
        back.send(("r", r.receive(0).value) if x is r else ("q", q.get(0)))
"""


def test_whichever_comes_first_ends_the_wait_of_another_process(name, child):
    topic, q, back = baton.topic(name), baton.queue(f"{name}/q"), baton.topic(f"{name}/back").reader()
    c = child(ECHO, name)
    assert c.hear() == "reads"
    for k in range(300):
        topic.send(k) if k % 2 else q.put(k)
        assert back.receive(PATIENCE).value == ("r" if k % 2 else "q", k)
    c.kill()


def test_objects_of_several_sessions(name):
    with baton.connect() as s, baton.connect(namespace="elsewhere") as t:
        r, q, mine = s.topic(name).reader(), t.queue(name), baton.queue()
        assert after([r, q, mine], lambda: t.queue(name).put(1)) == [q]
        assert q.get(0) == 1
        assert after([r, q, mine], lambda: baton.topic(name).send(2)) == [r]
        assert r.receive(0).value == 2
        assert after([r, q, mine], lambda: mine.put(3)) == [mine]


SENDS = """
n = sys.argv[1]
t = baton.topic(n)
t.send("first")
say("sent")
sys.stdin.readline()
t.send("second")
say("sent")
sys.stdin.readline()
"""


def test_what_a_killed_sender_sent_is_ready(name, child):
    r, q = baton.topic(name).reader(), baton.queue(f"{name}/q")
    c = child(SENDS, name)
    assert c.hear() == "sent"
    assert baton.wait_any([q, r]) == [r] and r.receive(0).value == "first"
    c.tell()
    assert c.hear() == "sent"
    c.kill()
    assert baton.wait_any([q, r]) == [r] and r.receive(0).value == "second"
    assert after([q, r], lambda: q.put(1)) == [q]


TAKES = """
q = baton.queue(sys.argv[1], redeliver=True)
x = q.get()
say("taken")
sys.stdin.readline()
"""


def test_an_item_comes_back_from_a_killed_taker(name, child):
    q, other = baton.queue(name, redeliver=True), baton.queue()
    q.put({"x": bytearray(8)})
    c = child(TAKES, name)
    assert c.hear() == "taken"
    assert baton.wait_any([q, other], 0) == []
    assert after([q, other], c.kill) == [q]
    assert list(q.get(0)) == ["x"]


def test_it_goes_on_with_the_next_broker(own, name):
    with baton.connect() as s:
        r, q = s.topic(name).reader(), s.queue(name + "/q")

        def replaced():
            args = [BATON, "serve", "--replace", "--address", own.socket, "--no-nats", "--log-level", "error"]
            before, own.process = own.process, subprocess.Popen(args)
            assert before.wait(PATIENCE) == 0
            with baton.connect() as late:
                late.topic(name).send(1)
                late.queue(name + "/q").put(2)

        ready = after([r, q], replaced)
        assert ready and set(ready) <= {r, q}
        assert (r.receive(PATIENCE).value, q.get(PATIENCE)) == (1, 2)

        def killed():
            own.end(signal.SIGKILL)
            own.start()
            with baton.connect() as late:
                late.topic(name).send(3)

        assert after([r, q], killed) == [r]
        assert r.receive(0).value == 3


ENDS = {
    "its close": lambda r, w, q, s: r.close(),
    "the watch's close": lambda r, w, q, s: w.close(),
    "the queue's close": lambda r, w, q, s: q.close(),
    "the session's close": lambda r, w, q, s: s.close(),
}


@pytest.mark.parametrize("end", ENDS)
def test_each_end_ends_the_wait(name, end):
    with baton.connect() as s:
        r, w, q = s.topic(name).reader(), s.watch(name), s.queue(name + "/q")
        far = baton.queue()
        ended = after([far, r, w, q], lambda: ENDS[end](r, w, q, s))
        assert ended == {"its close": [r], "the watch's close": [w], "the queue's close": [q]}.get(end, ended)
        assert ended and far not in ended
        for x in ended:
            with pytest.raises(baton.Closed):
                x.get(0) if x is q else x.receive(0)
        assert baton.wait_any([far, *ended], 0) == ended


def test_a_reader_that_another_thread_has_comes_behind_it(name):
    topic, q = baton.topic(name), baton.queue()
    r = topic.reader()
    got = []
    receiver = threading.Thread(target=lambda: got.append(r.receive().value), daemon=True)
    receiver.start()
    eventually(lambda: asleep(receiver), "a thread to receive")
    assert after([r, q], lambda: q.put(1)) == [q]  # it does not wait for its turn
    assert q.get(0) == 1
    # The one that receives has the first message, and the wait the second.
    assert after([r, q, r], lambda: (topic.send(1), receiver.join(PATIENCE), topic.send(2))) == [r, r]
    assert got == [1] and r.receive(0).value == 2
    receiver = threading.Thread(
        target=lambda: got.append(type(pytest.raises(baton.Closed, r.receive).value)), daemon=True
    )
    receiver.start()
    eventually(lambda: asleep(receiver), "a thread to receive")
    assert after([q, r], r.close) == [r]
    receiver.join(PATIENCE)
    assert got == [1, baton.Closed]


def test_ctrl_c_ends_the_wait(name, child):
    for objects in ("[q, r]", "[q, r, baton.connect().queue(n + '/other')]"):
        c = child(
            f"n = sys.argv[1]\nr, q = baton.topic(n).reader(), baton.queue(n + '/q')\nassert not baton.wait_any({objects}, 0)\n"
            f"say('waits')\ntry:\n    baton.wait_any({objects})\nexcept KeyboardInterrupt:\n    say('interrupted')",
            name,
        )
        assert c.hear() == "waits"
        eventually(lambda c=c: "S" in open(f"/proc/{c.pid}/stat").read().rsplit(")", 1)[1].split()[0], "it to sleep")
        os.kill(c.pid, signal.SIGINT)
        assert c.hear() == "interrupted"
        c.end()


def test_a_signal_whose_handler_does_not_raise_lets_it_go_on(name, child):
    c = child(
        """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"handled\\n"))
r, q = baton.topic(sys.argv[1]).reader(), baton.queue()
say("waits")
say(baton.wait_any([q, r], 120) == [r])
""",
        name,
    )
    assert c.hear() == "waits"
    for _ in range(3):
        os.kill(c.pid, signal.SIGUSR1)
        assert c.hear() == "handled"
    baton.topic(name).send(1)
    assert c.hear() == "True"
    c.end()


def test_a_child_of_a_fork_waits_by_what_it_inherited(name):
    topic, r, q = baton.topic(name), baton.topic(name).reader(), baton.queue(name + "/q")
    q.put(1)
    assert baton.wait_any([r, q]) == [q]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if baton.wait_any([r, q], PATIENCE) == [q] and q.get(0) == 1:
                topic.send(2)
                status = 0 if baton.wait_any([q, r], PATIENCE) == [r] and r.receive(0).value == 2 else 3
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert baton.wait_any([q, r]) == [r]


def test_tasks_wait_for_the_first_of_several(name):
    """As the page says: a wait that is cancelled has taken nothing."""

    async def main():
        topic, q = baton.topic(name), baton.queue(name + "/q")
        r = topic.reader()
        for k in range(40):
            topic.send(k) if k % 2 else q.put(k)
            tasks = [asyncio.create_task(r.receive_async()), asyncio.create_task(q.get_async())]
            done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            (first,) = done
            got = first.result()
            assert (got.value if k % 2 else got) == k

    asyncio.run(main())
