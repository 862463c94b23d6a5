"""A program of torch.multiprocessing after its import was changed, as a type checker sees it. tools/python lint checks it."""

from typing import Any

import baton.torch
import baton.torch.multiprocessing as mp
import torch
from torch.utils.data import DataLoader, Dataset


def work(q: "mp.Queue[torch.Tensor]", done: "mp.SimpleQueue[int]") -> None:
    x = q.get()
    q.put(torch.ones(1) + x)
    done.put(1)


class Actor(mp.Process):
    def __init__(self, model: torch.nn.Module, lock: Any) -> None:
        super().__init__()
        self.model, self.lock = model, lock

    def run(self) -> None:
        with self.lock:
            baton.torch.share_module(self.model)


def main(data: Dataset[torch.Tensor]) -> None:
    mp.set_start_method("spawn")
    mp.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call] # as torch has it
    ctx = mp.get_context("fork")
    q, steps = ctx.Queue(3), mp.Value("i", 0)
    p = mp.Process(target=work, args=(q, mp.SimpleQueue()))
    p.start()
    with mp.Pool(2) as pool:
        print(pool.map(len, ["a"]))
    with steps.get_lock():
        steps.value += 1
    mp.spawn(work, args=(1,), nprocs=2)  # type: ignore[no-untyped-call] # as torch has it
    Actor(torch.nn.Linear(1, 1), mp.Lock()).start()
    for batch in DataLoader(data, multiprocessing_context=ctx):
        q.put(batch)
