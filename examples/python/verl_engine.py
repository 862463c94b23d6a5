"""verl's weights by Baton: a CheckpointEngine over `baton.torch.weights`, for one machine.

In verl's configuration:

    checkpoint_engine.backend: baton
    checkpoint_engine.custom_backend_module: verl_engine

A trainer copies the weights once into Baton's memory, and only what has changed since the step before; every rollout
worker sees them where they lie, until it copies them to its GPU. They stay while a rollout goes on generating:
`get_weights` gives the last ones again. Without verl the interface of engine_bases.py stands in for verl's.

    python verl_engine.py       # a trainer and two workers on the CPU
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Any

import baton
import baton.torch.weights
import torch

try:
    from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache
except ImportError:
    from engine_bases import CheckpointEngineRegistry, CheckpointEngineWithCache

Weights = Iterable[tuple[str, torch.Tensor]]


@CheckpointEngineRegistry.register("baton")
class BatonCheckpointEngine(CheckpointEngineWithCache):
    """Each step is a version under one name, which the first trainer's rank chooses.

    bucket_size: verl's, not used: there are no buckets. rollout_dtype: what the weights become before they are sent.
    timeout: how many seconds a worker waits for its step.
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        rollout_dtype: torch.dtype | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.is_master, self.rollout_dtype, self.timeout = is_master, rollout_dtype, timeout
        self.own_name = f"verl/{secrets.token_hex(8)}"
        self.rank = -1
        self.sender: baton.torch.weights.Sender | None = None
        self.receiver: baton.torch.weights.Receiver | None = None
        self.last: dict[str, torch.Tensor] = {}

    def prepare(self) -> dict[str, Any]:
        return {"name": self.own_name}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        name = metadata[0]["name"]
        trainers = {"rank": [0] + [-1] * (actor_wg_world_size - 1), "name": [name] * actor_wg_world_size}
        rollouts = {"rank": list(range(1, rollout_world_size + 1)), "name": [name] * rollout_world_size}
        return trainers, rollouts

    def init_process_group(self, rank: int, name: str) -> None:
        self.rank = rank  # verl does this at each step: what is open already stays
        if rank == 0 and (self.sender is None or self.sender.name != name):
            self.sender = baton.torch.weights.Sender(name)
        if rank > 0 and (self.receiver is None or self.receiver.name != name):
            if self.receiver is not None:
                self.receiver.close()
            self.receiver = baton.torch.weights.Receiver(name)

    def finalize(self) -> None:
        pass  # the last version is the cache

    async def send_weights(self, weights: Weights, global_steps: int | None = None) -> None:
        if self.rank < 0:
            for _ in weights:  # the ranks gather together
                pass
            return
        assert self.sender is not None, "init_process_group comes first"
        # Copied one by one: a generator may use its memory for the next one.
        on_cpu = {name: w.detach().to("cpu", self.rollout_dtype, copy=True) for name, w in weights}
        await asyncio.to_thread(self.sender.send, on_cpu, {"global_steps": global_steps})

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        assert self.receiver is not None, "init_process_group comes first"
        while True:
            self.last = await asyncio.to_thread(self.receiver.receive, self.timeout)
            got = self.receiver.meta["global_steps"]
            if global_steps is None or got is None or got >= global_steps:
                break  # else it is the step before, of which this worker knew nothing
        for item in self.last.items():
            yield item

    async def get_weights(self) -> AsyncIterator[tuple[str, torch.Tensor]]:
        for item in self.last.items():
            yield item


async def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    engines = [CheckpointEngineRegistry.new("baton", bucket_size=1 << 20, timeout=60.0) for _ in range(3)]
    for step in range(2):
        trainers, rollouts = engines[0].build_topology(1, 2, [e.prepare() for e in engines])
        for i, engine in enumerate(engines):
            kwargs, k = (trainers, 0) if i == 0 else (rollouts, i - 1)
            engine.init_process_group(**{key: values[k] for key, values in kwargs.items()})
        with torch.no_grad():
            model.bias.fill_(float(step))

        async def received(engine: Any, step: int = step) -> dict[str, torch.Tensor]:
            return {name: w async for name, w in engine.receive_weights(global_steps=step)}

        _, *got = await asyncio.gather(
            engines[0].send_weights(iter(model.state_dict().items()), global_steps=step),
            *(received(e) for e in engines[1:]),
        )
        same = all(torch.equal(g[name], w) for g in got for name, w in model.state_dict().items())
        again = [name async for name, _ in engines[1].get_weights()]
        print(
            f"step {step}: {len(got)} workers, equal {same}, changed {sorted(engines[1].receiver.changed)}, kept {again}"
        )
        for engine in engines:
            engine.finalize()
    baton.delete(engines[0].own_name)


if __name__ == "__main__":
    asyncio.run(main())
