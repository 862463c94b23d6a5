"""Loaders that are paused, that are left early, and that run for long: nothing is lost, and nothing grows.

BATON_PAUSE is for how many seconds a trainer is suspended (the issue's is 600), BATON_LEFT how many loaders are left
early (200), BATON_BATCHES how many batches a loader makes (100,000), BATON_REVISIONS how many versions of weights are
sent (1,000).
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import baton
import pytest
from conftest import command, eventually, suspend
from torch_kit import module, torch

PAUSE = float(os.environ.get("BATON_PAUSE", "0.2"))
LEFT = int(os.environ.get("BATON_LEFT", "20"))
BATCHES = int(os.environ.get("BATON_BATCHES", "2000"))
REVISIONS = int(os.environ.get("BATON_REVISIONS", "50"))

# A DataLoader.
ROADS = ("context", "install")
KIT = """
import gc, importlib, os, torch, torch.utils.data, baton.torch
import baton.torch.multiprocessing as mp

ROADS = ("context", "install")

class Rows(torch.utils.data.Dataset):
    def __init__(self, n, width, made=None):
        self.n, self.width, self.made = n, width, made
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        if self.made is not None:
            os.write(self.made, b".")
        return torch.full((self.width,), float(i))

def loader(road, rows, **options):
    context = mp.get_context("fork") if road == "context" else None
    return torch.utils.data.DataLoader(rows, num_workers=2, multiprocessing_context=context, **options)
"""


class Use(NamedTuple):
    """What a process has."""

    descriptors: int
    mappings: int
    private: int  # bytes

    @staticmethod
    def of(pid):
        status = Path(f"/proc/{pid}/status").read_text()
        private = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))
        maps = Path(f"/proc/{pid}/maps").read_text().count("\n")
        return Use(len(os.listdir(f"/proc/{pid}/fd")), maps, private)

    def is_flat(self, before):
        return (
            self.descriptors <= before.descriptors + 4
            and self.mappings <= before.mappings + 16
            and self.private <= before.private + (8 << 20)
        )


class Had(NamedTuple):
    """What the broker has: bytes that it has granted, and how much there is of what."""

    granted: int
    orphans: int  # bytes of ended sessions
    queues: int
    leases: int
    storages: int

    @staticmethod
    def now():
        status = json.loads(command("status", "--json"))
        memory, counts = status["memory"], status["counts"]
        return Had(memory["granted"], memory["orphans"], counts["queues"], counts["leases"], counts["storages"])


def children_of(pid):
    return [int(pid) for pid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_loader_whose_trainer_is_suspended_for_long_goes_on(own, child, tmp_path):
    """Meanwhile memory is asked for until it is refused, so that whatever may be given up is, and what the drop-in keeps
    for a time has passed."""
    c = child(
        KIT
        + """
for road in ROADS:
    made = os.open(sys.argv[1] + road, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    all = iter(loader(road, Rows(64, 1 << 18, made), batch_size=2, prefetch_factor=4))  # 2 MiB a batch
    seen = next(all)[:, 0].tolist()
    importlib.import_module("baton.torch.multiprocessing._on_the_way").KEPT = 0.0
    mp.queue._on_the_way.all.clear()
    say(road)
    sys.stdin.readline()
    for batch in all:
        assert (batch[:, 0] == batch[:, -1]).all()
        seen += batch[:, 0].tolist()
    say(seen == list(range(64)))
    del all, batch
""",
        str(tmp_path / "made by "),
    )
    for road in ROADS:
        assert c.hear() == road
        made = tmp_path / f"made by {road}"
        # One batch was taken, which asked for another: eight and one lie ready.
        eventually(lambda: made.stat().st_size == 2 * (1 + 8), "all that the workers make ahead")  # noqa: B023
        eventually(lambda: all(asleep(pid) for pid in children_of(c.pid)), "its workers to have nothing to do")
        suspend(c.process)
        until = time.monotonic() + PAUSE
        greedy, held = baton.connect(own.socket), []
        with pytest.raises((baton.OutOfMemory, baton.QuotaExceeded)):
            while True:
                held.append(greedy.full(1 << 20, 7, "uint8"))
        time.sleep(max(until - time.monotonic(), 0))
        held.clear()
        greedy.close()
        os.kill(c.pid, signal.SIGCONT)
        c.tell()
        assert c.hear() == "True"
    c.end()


def asleep(pid):
    """Whether all threads of a process sleep."""
    states = [p.read_text().rsplit(")", 1)[1].split()[0] for p in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"S"}


def test_loaders_that_are_left_early_leave_nothing(own, child):
    """By the context of the drop-in memory is flat. By install() what the workers had ready is kept for 30 s after their
    end, so that it is bounded, and all of it is free in the end."""
    c = child(
        KIT
        + """
for line in sys.stdin:
    road, n = line.split()
    for _ in range(int(n)):
        for batch in loader(road, Rows(64, 1 << 16), batch_size=4):  # 1 MiB a batch
            break
        del batch
    gc.collect()
    say("left")
"""
    )
    for road in ROADS:
        c.tell(f"{road} 3")
        assert c.hear() == "left"
        eventually(lambda: not children_of(c.pid), "the workers' end")
        own_before, before, begun = Use.of(c.pid), Had.now(), time.monotonic()
        c.tell(f"{road} {LEFT}")
        assert c.hear() == "left"
        took = time.monotonic() - begun
        own_after, after = Use.of(c.pid), Had.now()
        print(f"{road}: {LEFT} loaders in {took:.1f} s: {before} {after} {own_before} {own_after}")
        if road == "context":
            eventually(lambda: Had.now().queues <= before.queues, "the queues' end")  # noqa: B023
            assert after.granted <= before.granted + (16 << 20) and own_after.is_flat(own_before)
        else:  # each of two workers has three batches ready at most, in chunks of 8 MiB
            kept = min(LEFT, 40 * LEFT / took) + 3
            assert after.granted <= before.granted + kept * 2 * (8 << 20)
        if LEFT > 20:
            eventually(lambda: Had.now().leases == 0 and Had.now().granted <= before.granted, "all to be free")  # noqa: B023
            eventually(lambda: Use.of(c.pid).is_flat(own_before), "what its process has to be as before")  # noqa: B023
    c.end()


def test_a_loader_stays_flat_over_many_batches(own, child):
    c = child(
        KIT
        + """
n = int(sys.argv[1])
for road in ROADS:
    for k, batch in enumerate(loader(road, Rows(n * 4, 1 << 10), batch_size=4)):
        if k in (n // 4, n - 1):
            del batch
            gc.collect()
            say(k)
            sys.stdin.readline()
""",
        str(BATCHES),
    )
    for road in ROADS:
        looks: list[tuple[list[Use], Had]] = []
        for k in (BATCHES // 4, BATCHES - 1):
            assert c.hear() == str(k)
            looks.append(([Use.of(pid) for pid in (c.pid, *children_of(c.pid))], Had.now()))
            c.tell()
        print(f"{road}: {BATCHES} batches: {looks}")
        (uses, before), (uses_after, after) = looks
        # At the end of an epoch its workers may have ended.
        assert all(a.is_flat(b) for a, b in zip(uses_after, uses, strict=False))
        assert after.granted <= before.granted + (16 << 20) and after.leases <= before.leases + 8
    c.end()


def test_versions_of_weights_stay_flat(own, child, name):
    c = child(
        """
import torch, baton.torch.weights
import multiprocessing

model = torch.nn.Linear(512, 512)

def act(told):
    receiver = baton.torch.weights.Receiver(sys.argv[1], into=model)
    while told.recv():
        receiver.receive(timeout=120)
        told.send((receiver.version, model.bias[3].item()))

context = multiprocessing.get_context("fork")
here, there = context.Pipe()
actor = context.Process(target=act, args=(there,))
actor.start()
sender = baton.torch.weights.Sender(sys.argv[1])
for line in sys.stdin:
    first, last = map(int, line.split())
    for k in range(first, last):
        with torch.no_grad():
            model.bias.fill_(float(k))
            if k % 2:
                model.weight.fill_(float(k))
        sender.send(model)
        here.send(True)
        assert here.recv() == (k, k)
    say(last)
here.send(False)
actor.join()
""",
        name,
    )
    looks, warm = [], max(REVISIONS // 4, 8)
    for first, last in ((1, warm), (warm, REVISIONS)):
        c.tell(f"{first} {last}")
        assert c.hear() == str(last)
        looks.append(([Use.of(pid) for pid in (c.pid, *children_of(c.pid))], Had.now()))
    print(f"{REVISIONS} revisions: {looks}")
    (uses, before), (uses_after, after) = looks
    assert len(uses) == 2 and all(a.is_flat(b) for a, b in zip(uses_after, uses, strict=True))
    assert after.granted <= before.granted and after.storages <= before.storages + 2
    c.end()
