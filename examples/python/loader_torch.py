"""A stock DataLoader, as torch shares its batches and as Baton does: batches a second, and what they cost.

usage: loader_torch.py [BATCHES]

The dataset costs nothing, so that what is left is the hand-over: a worker stacks images into a batch, the
trainer gets it. `baton.torch.install()` is the only difference.
"""

import resource
import sys
import time
from typing import Any

import baton.torch
import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[torch.Tensor]):
    """The same image over and over."""

    def __init__(self, images: int) -> None:
        self.images, self.image = images, torch.rand(3, 224, 224)

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, _: Any) -> torch.Tensor:
        return self.image


def processor() -> tuple[float, float]:
    """Seconds of the processor: this process's, its ended children's."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


def run(batches: int) -> str:
    """Goes through the batches."""
    began, before = time.monotonic(), processor()
    total = sum(float(batch[0, 0, 0, 0]) for batch in DataLoader(Images(32 * batches), batch_size=32, num_workers=2))
    took, after = time.monotonic() - began, processor()
    trainer, workers = ((b - a) / batches * 1000 for a, b in zip(before, after, strict=True))
    assert total > 0
    return (
        f"{batches} batches, {batches / took:.0f} a second; a batch: trainer {trainer:.2f} ms, workers {workers:.2f} ms"
    )


if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("torch", run(n))
    baton.torch.install()
    print("Baton", run(n))
