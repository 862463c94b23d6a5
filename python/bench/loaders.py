"""DataLoaders on torch's memory and on Baton's: batches a second, and what a batch costs the processors.

The datasets cost next to nothing, so that what is measured is how batches travel.
"""

import os
from collections.abc import Callable
from typing import Any

import baton.torch
import torch
from pair import both_cpus, choose_strategy, now
from torch.utils.data import DataLoader, Dataset

# Batches that are not timed: workers start, and memory gets warm.
WARM = 4


class Images(Dataset[torch.Tensor]):
    """Pictures that lie there, 0.6 MB each."""

    size = 64

    def __init__(self) -> None:
        self.images = torch.rand(8, 3, 224, 224)

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.images[i % 8]


class Normalised(Images):
    """Pictures of bytes, each made a normalised one of float32."""

    def __init__(self) -> None:
        self.images = torch.randint(0, 256, (8, 3, 224, 224), dtype=torch.uint8)
        self.mean, self.scale = torch.full((3, 1, 1), 0.45), torch.full((3, 1, 1), 1 / (255 * 0.22))

    def __getitem__(self, i: int) -> torch.Tensor:
        return (self.images[i % 8].float() - self.mean) * self.scale


class Small(Images):
    """Twenty tensors of four numbers."""

    size = 8

    def __init__(self) -> None:
        self.sample = {f"k{i}": torch.rand(4) for i in range(20)}

    def __getitem__(self, i: int) -> Any:
        return self.sample


DATASETS = {"images": Images, "normalised": Normalised, "small": Small}


def ends(batch: Any) -> float:
    """Reads the first and the last element of a batch's last tensor."""
    t = list(batch.values())[-1] if isinstance(batch, dict) else batch
    flat = t.view(-1)
    return float(flat[0]) + float(flat[-1])


def processor(pid: int) -> int:
    """ns of the processors that a process has had."""
    tasks = f"/proc/{pid}/task"
    return sum(int(open(f"{tasks}/{task}/schedstat").read().split()[0]) for task in os.listdir(tasks))


def loaded(way: str, kind: str, workers: int) -> Callable[..., Any]:
    """A role: n batches by a way of torch's, `install()`, or Baton's context."""

    def role(n: int, size: int) -> Any:
        choose_strategy(way if way != "context" else "drop-in")
        context = None
        if way == "context":
            import baton.torch.multiprocessing as drop_in

            context = drop_in.get_context("fork")
        dataset = DATASETS[kind]()
        with both_cpus():
            how = context or "fork"
            batches: Any = iter(DataLoader(dataset, dataset.size, num_workers=workers, multiprocessing_context=how))
            for _ in range(WARM * workers):
                ends(next(batches))
            pids = [w.pid for w in batches._workers]
            before = [processor(os.getpid()), sum(map(processor, pids))]
            start = now()
            for _ in range(n):
                ends(next(batches))
            took = now() - start
            trainer, others = (b - a for a, b in zip(before, (processor(os.getpid()), sum(map(processor, pids)))))
            del batches
        baton.torch.uninstall()
        return {"rate": [n / took * 1e9], "trainer": [trainer / n], "workers": [others / n]}

    return role


def copied(n: int, size: int) -> Any:
    """A batch copied into warm memory, as often as said."""
    batch, room = torch.rand(64, 3, 224, 224), torch.rand(64, 3, 224, 224)
    times = []
    for _ in range(n):
        start = now()
        room.copy_(batch)
        times.append(now() - start)
    return {"ns": times}


ROLES = {"loader copied": copied} | {
    f"loader {way} {kind} {workers}": loaded(way, kind, workers)
    for way in ("default", "fastest", "installed", "context")
    for kind in DATASETS
    for workers in (1, 2)
}
