"""Pickles whose handles nothing reads, where memory runs out; and names of queues that a former run has closed."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import baton
import pytest
from conftest import Broker, Child, command, handed_over, suspend

SIZE = 16 << 20


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Broker]]:
    """Starts a broker with room for three pickles of SIZE, which are old after a time."""
    brokers: list[Broker] = []

    def start(old: str) -> Broker:
        folder = tmp_path / "r"
        folder.mkdir(mode=0o700)
        brokers.append(Broker(str(folder), "--memory", "64M", "--unread-pickles", old))
        monkeypatch.setenv("BATON_ADDRESS", brokers[0].socket)
        return brokers[0]

    yield start
    for b in brokers:
        b.end(signal.SIGKILL)


def pickles(session: Any) -> list[bytes]:
    """Three pickles, whose tensors begin with 0, 1 and 2, and have no other holder."""
    made = []
    for i in range(3):
        x = session.empty((SIZE,), "uint8")
        x.numpy()[0] = i
        made.append(handed_over(x))
        x.release()
    return made


READ = """
import pickle
for data in sys.argv[1:]:
    try:
        say(pickle.loads(bytes.fromhex(data))[0].item())
    except baton.Expired:
        say("expired")
"""


def read(child: Callable[..., Child], pickles: list[bytes]) -> list[str]:
    """What another process reads of each: the number with which it begins, or `expired`."""
    c = child(READ, *(data.hex() for data in pickles))
    return [c.hear() for _ in pickles]


def test_a_young_pickle_is_kept_where_memory_is_refused(
    small: Callable[[str], Broker], child: Callable[..., Child]
) -> None:
    small("1h")
    with baton.connect() as s:
        made = pickles(s)
        with pytest.raises((baton.QuotaExceeded, baton.OutOfMemory)):
            s.empty((2 * SIZE,), "uint8")
        stats = s.stats()
        assert (stats["pickles_unread"], stats["pickles_may_go"], stats["pickles_given_up"]) == (3, 0, 0)
        assert read(child, made) == ["0", "1", "2"]


def test_the_oldest_pickle_is_given_up_where_memory_would_be_refused(
    small: Callable[[str], Broker], child: Callable[..., Child]
) -> None:
    small("0s")
    with baton.connect() as s:
        made = pickles(s)
        assert s.stats()["pickles_may_go"] == 3
        assert all_may_go(json.loads(command("ls", "leases", "--json")))
        x = s.empty((SIZE + SIZE // 2,), "uint8")
        assert x.nbytes == SIZE + SIZE // 2
        assert s.stats()["pickles_given_up"] > 0
        numbers = read(child, made)
        assert (numbers[0], numbers[2]) == ("expired", "2")


def all_may_go(rows: list[dict[str, Any]]) -> bool:
    return len(rows) == 3 and all(r["may_go"] and r["unread_seconds"] >= 0 for r in rows)


def test_pickles_of_another_process_are_given_up(small: Callable[[str], Broker], child: Callable[..., Child]) -> None:
    small("0s")
    c = child(
        """
import pickle
s = baton.connect()
for i in range(3):
    with baton.pickle_handles():
        pickle.dumps(s.empty((16 << 20,), "uint8"))
say("pickled")
input()
"""
    )
    assert c.hear() == "pickled"
    with baton.connect() as s:
        assert s.empty((2 * SIZE,), "uint8").nbytes == 2 * SIZE


RUN = """
q = baton.queue({name!r})
q.put({first})
q.put({first} + 1)
say(q.get())
q.close()
"""


def test_a_second_run_uses_the_name_of_a_queue_that_the_first_has_closed(
    name: str, child: Callable[..., Child]
) -> None:
    for first in (1, 11):
        c = child(RUN.format(name=name, first=first))
        assert c.hear() == str(first)
        c.process.wait()


def test_what_a_run_has_left_in_a_closed_queue_is_there_for_a_taker(name: str, child: Callable[..., Child]) -> None:
    c = child(RUN.format(name=name, first=1))
    assert c.hear() == "1"
    c.process.wait()
    assert list(baton.queue(name)) == [2]


def test_a_queue_is_closed_as_long_as_a_process_of_the_former_run_has_it(
    name: str, child: Callable[..., Child]
) -> None:
    former = baton.queue(name)
    c = child(RUN.format(name=name, first=1))
    assert c.hear() == "1"
    c.process.wait()
    with baton.connect(os.environ["BATON_ADDRESS"]) as s, pytest.raises(baton.Closed):
        s.queue(name).put(3)
    assert list(former) == [2]


@pytest.mark.parametrize("suspended", [False, True])
def test_what_another_process_keeps_empty_is_had_at_once(small, child, suspended):
    """What it has just released as well; a process that is suspended, and keeps less, is not waited for."""
    small("1m")
    if suspended:
        other = child("x = baton.empty(1000)\nsay(x.nbytes)\nsys.stdin.readline()")
        assert other.hear() == "4000"
        suspend(other.process)
    c = child(
        """
for line in sys.stdin:
    x = baton.empty((48 << 20,), "uint8")
    x.release()
    say("released")
"""
    )
    with baton.connect() as s:
        for _ in range(3):
            c.process.stdin.write("\n")
            c.process.stdin.flush()
            assert c.hear() == "released"
            with s.empty((48 << 20,), "uint8"):
                pass
    if suspended:
        os.kill(other.pid, signal.SIGCONT)


def test_what_a_process_keeps_empty_is_its_own_for_queues(small, name):
    small("1m")
    with baton.connect() as s:
        s.empty((60 << 20,), "uint8").release()
        q = s.queue(name)
        q.put(7, 0)
        assert q.get(0) == 7
