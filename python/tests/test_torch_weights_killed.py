"""Trainers and those that infer, killed between and during what they do: the others go on, and nothing is left behind."""

import gc
import multiprocessing
import os
import signal
import zlib
from pathlib import Path

import baton
import pytest
from conftest import PATIENCE, eventually, listing, need

torch = need("torch")
ctx = multiprocessing.get_context("fork")


def weights(n):
    """Those of version n: what always changes, what seldom does, and what stays."""
    return {"all": torch.full((1 << 16,), float(n)), "some": torch.full((300,), n // 5), "same": torch.ones(1 << 16)}


def checksum(tensors):
    return zlib.crc32(b"".join(tensors[k].numpy().tobytes() for k in sorted(tensors)))


def send(sender, by, n):
    w = weights(n)
    sender.send(w, meta={"by": by, "n": n, "checksum": checksum(w)})


def storages():
    """Memory that this process or another one holds. What this one has let go of is no part of it."""
    gc.collect()
    baton._default.session().collect()
    return {(row["index"], row["serial"], row["generation"]) for row in listing("storages")}


def sends(name, by, most):
    """Sends as many as that, and stays."""
    torch.set_num_threads(1)  # OpenMP's are not in the child
    sender = baton.torch.weights.Sender(name)
    for n in range(most):
        send(sender, by, n)
    signal.pause()


def receive(receiver, by):
    """The next version that a sender has sent; those of the ones before may still come."""
    while True:
        got = receiver.receive(PATIENCE)
        assert checksum(got) == receiver.meta["checksum"], receiver.meta
        assert got["all"][0] == receiver.meta["n"]
        if receiver.meta["by"] == by:
            return receiver.meta["n"]


@pytest.mark.parametrize("copy", [False, True])
def test_senders_that_are_killed_leave_whole_versions(name, copy):
    before = storages()
    with baton.torch.weights.Receiver(name, copy=copy) as receiver:
        for by in range(16):
            between = by % 4 == 0  # else it is killed while it sends
            p = ctx.Process(target=sends, args=(name, by, 3 if between else 1 << 30))
            p.start()
            try:
                n = receive(receiver, by)
                assert not copy or receiver.changed == {"all", "some", "same"}  # of another sender
                while n < (2 if between else by):
                    later = receive(receiver, by)
                    assert later > n
                    n = later
            finally:
                os.kill(p.pid, signal.SIGKILL)
                p.join(PATIENCE)
        sender = baton.torch.weights.Sender(name)
        for n in range(2):
            send(sender, "last", n)
            assert receive(receiver, "last") == n
        assert receiver.changed == {"all"}
    baton.delete(name)
    del sender, receiver
    eventually(lambda: storages() <= before, "the end of all versions")


def receives(name, held, go_on):
    torch.set_num_threads(1)
    receiver = baton.torch.weights.Receiver(name)
    kept = []
    while True:
        kept.append(receiver.receive())
        held.release()
        if not go_on:
            signal.pause()


@pytest.mark.parametrize("go_on", [False, True], ids=["between", "during"])
def test_a_receiver_that_is_killed_holds_nothing(name, go_on):
    before = storages()
    sender, held = baton.torch.weights.Sender(name, keep=1), ctx.Semaphore(0)
    sender.send({"w": torch.zeros(1 << 16)})
    for n in range(1, 4):
        p = ctx.Process(target=receives, args=(name, held, go_on))
        p.start()
        try:
            for k in range(3):
                assert k and not go_on or held.acquire(timeout=PATIENCE)
                sender.send({"w": torch.full((1 << 16,), 10.0 * n + k)})
            assert len(storages() - before) > 1  # what it holds, and the newest
        finally:
            os.kill(p.pid, signal.SIGKILL)
            p.join(PATIENCE)
        while held.acquire(block=False):
            pass
        eventually(lambda: len(storages() - before) == 1, "all but the newest version to be free")
    baton.delete(name)
    del sender
    eventually(lambda: storages() <= before, "the end of all versions")


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_versions_older_than_are_kept_are_free(name, keep):
    before = storages()
    sender = baton.torch.weights.Sender(name, keep=keep)
    for n in range(6):
        sender.send({"w": torch.full((1 << 16,), float(n))})
        now = min(n + 1, keep)
        eventually(lambda: len(storages() - before) == now, f"{now} versions to be held")  # noqa: B023
    new = storages() - before
    rows = [r for r in listing("storages") if (r["index"], r["serial"], r["generation"]) in new]
    assert sum(r["bytes"] for r in rows) < (keep + 1) << 18
    baton.delete(name)
    del sender
    eventually(lambda: storages() <= before, "the end of all versions")


@pytest.mark.parametrize("copy", [False, True])
def test_hundreds_of_versions_leave_what_twenty_left(name, copy):
    def use():
        maps = Path("/proc/self/maps").read_text().count("memfd:baton")
        return len(os.listdir("/proc/self/fd")), maps, len(storages())

    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))
    into = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))
    sender = baton.torch.weights.Sender(name)
    with baton.torch.weights.Receiver(name, into=into, copy=copy) as receiver:
        for n in range(1, 301):
            with torch.no_grad():
                module[0].weight.add_(1)
                module[1].num_batches_tracked.add_(n % 3 == 0)
            sender.send(module, meta=n)
            receiver.receive(PATIENCE)
            assert receiver.meta == n and torch.equal(into[0].weight, module[0].weight)
            if n == 20:
                after_twenty = use()
        eventually(lambda: all(a <= b for a, b in zip(use(), after_twenty, strict=True)), "no more than of twenty")
    baton.delete(name)
