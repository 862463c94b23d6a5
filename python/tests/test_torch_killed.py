"""Workers of the drop-in that are killed at any point of their work: the others go on, and nothing is left behind.

BATON_KILLS is how many; a campaign has 10,000.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

from conftest import PATIENCE, eventually, listing
from torch_kit import module, torch

mp: Any = None  # the drop-in, by the fixture module

KILLS = int(os.environ.get("BATON_KILLS", "40"))


def work(inbox, out):
    """Answers each tensor with a new one, and with the memory of the one that came."""
    torch.set_num_threads(1)
    while (item := inbox.get()) is not None:
        number, x = item
        x.add_(1)
        out.put((number, x, x * 2, {"a": x[:1]}))


def own_use():
    """Descriptors of this process, and mappings of Baton's memory."""
    maps = Path("/proc/self/maps").read_text().count("memfd:baton")
    return len(os.listdir("/proc/self/fd")), maps


def storages():
    return {(row["index"], row["serial"], row["generation"]) for row in listing("storages")}


def campaign(chance):
    """Has two workers at work, and kills one and starts another as often as said."""
    inbox, out = mp.Queue(8), mp.Queue(8)

    def start():
        p = mp.get_context("fork").Process(target=work, args=(inbox, out))
        p.start()
        return p

    x = twice = part = None
    workers, put, came, warm = [start(), start()], 0, set(), own_use()
    for killed in range(KILLS):
        for _ in range(chance.randrange(1, 12)):
            if not inbox.full():
                n = chance.choice((1, 10, 1000, 100_000))
                inbox.put((put, torch.full((n,), float(put))))
                put += 1
            while not out.empty():
                number, x, twice, part = out.get(timeout=PATIENCE)
                assert number not in came and x[-1] == number + 1 and twice[0] == 2 * x[0] and part["a"] == x[:1]
                came.add(number)
        p = workers.pop(chance.randrange(2))
        os.kill(p.pid, signal.SIGKILL)
        p.join()
        workers.append(start())
        if killed == KILLS // 2:
            warm = own_use()

    def drained():
        while not out.empty():
            came.add(out.get(timeout=PATIENCE)[0])
        return not any(p.is_alive() for p in workers)

    for _ in workers:
        eventually(lambda: drained() or not inbox.full(), "a place")
        inbox.put(None)
    eventually(drained, "the workers' end")
    drained()
    assert all(p.exitcode == 0 for p in workers)
    # A worker that was killed had one item in its hands and no more; all others came, none twice.
    assert put - KILLS <= len(came) <= put
    # The places of both queues are all there: no killed worker has taken one along.
    for q in (inbox, out):
        for k in range(8):
            q.put(k, timeout=PATIENCE)
        assert q.full() and [q.get() for _ in range(8)] == list(range(8))
    x = twice = part = None
    now = own_use()
    assert all(a <= b + 8 for a, b in zip(now, warm, strict=True)), (warm, now)
    inbox.close()
    out.close()


def test_killed_workers_leave_nothing():
    before, seed = storages(), random.randrange(1 << 32)
    print("seed", seed)
    campaign(random.Random(seed))
    eventually(lambda: storages() <= before, "the end of all storages")
