"""Ray's actors hand tensors over by Baton: what one returns the other takes where it lies.

    python ray_actors.py

It needs Ray, and prints what came, and what 16 MiB cost by Ray's object store and by Baton.
"""

import time

import baton.ray
import ray
import torch

baton.ray.register()  # before a class names the transport


@ray.remote(enable_tensor_transport=True)
class Rollout:
    """Gives batches."""

    @ray.method(tensor_transport="BATON")
    def by_baton(self, n: int) -> torch.Tensor:
        return torch.full((n,), 2.0)

    def by_store(self, n: int) -> torch.Tensor:
        return torch.full((n,), 2.0)


@ray.remote(enable_tensor_transport=True)
class Learner:
    """Takes them."""

    def total(self, batch: torch.Tensor) -> float:
        return float(batch[0] + batch[-1])


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    rollout, learner = Rollout.remote(), Learner.remote()
    print("came:", ray.get(learner.total.remote(rollout.by_baton.remote(10))))
    for name, give in (("store", rollout.by_store), ("Baton", rollout.by_baton)):
        times = []
        for _ in range(8):
            start = time.perf_counter()
            ray.get(learner.total.remote(give.remote(1 << 22)))
            times.append(time.perf_counter() - start)
        print(f"16 MiB by {name}: {1e3 * min(times):.1f} ms")
    ray.shutdown()


if __name__ == "__main__":
    main()
